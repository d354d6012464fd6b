"""The entry of the command `longca`: one line where the laboratory's packages are not installed, and an end
that no plug-in can hold up."""

import os
import sys
import threading
import time


def main() -> None:
    """Run the command line. Exit code 2 where a package of the extra `lab` is missing."""
    try:
        from longca.lab.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        from longca.core import missing_of

        refusal = missing_of(error, "The command longca")
        if refusal is None:
            raise
        print(f"longca: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)
    except SystemExit as end:
        if os.environ.get("LONGCA_PLUGINS"):
            _end_in_time(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _end_in_time(code: int) -> None:
    """End this process with that exit code if what a plug-in has left behind holds up its end: threads, or
    functions that are called at exit."""
    from longca.core.reading import PLUGIN
    from longca.lab.cli.terminal import say_error

    seconds = PLUGIN.value()

    def end() -> None:
        time.sleep(seconds)
        say_error(f"A plug-in holds up the end of this command for more than {seconds:g} s; {PLUGIN.todo}")
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
