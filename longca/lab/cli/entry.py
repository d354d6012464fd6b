"""The entry of the command `longca`: one line where the laboratory's packages are not installed."""

import sys


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
