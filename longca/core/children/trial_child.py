"""The process of a trial import: `longca.core.children.trial` starts it."""

import fcntl
import json
import os
import sys
from pathlib import Path

from longca.core.children.processes import die_with
from longca.core.children.trial import MEND
from longca.core.plugin import BrokenPlugin, load_file

OUT_OF_REACH = 200  # the least number of the descriptor for answers: one that is written to by mistake has a small one


def main() -> None:
    """Import the files of the request, which is a line of JSON on standard input, and answer for each. Ends the process.

    An answer is a line: the nonce, and a refusal as JSON, or `null` of a file that is a plug-in.
    """
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["path"]
    die_with(request["parent"])
    answers = fcntl.fcntl(request["writer"], fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
    os.close(request["writer"])
    for file in request["files"]:
        refusal = None
        try:
            load_file(request["kind"], Path(file))
        except BrokenPlugin as error:
            refusal = error.what, error.why, error.todo
        except KeyboardInterrupt:  # nobody has pressed anything: it has raised it
            refusal = f"Plug-in '{file}' cannot be imported", "KeyboardInterrupt", MEND
        sys.stdout.flush()
        os.write(answers, f"{request['nonce']}{json.dumps(refusal)}\n".encode())
    os._exit(0)  # without what plug-ins may have registered for the end
