"""The process of a trial import: `longca.core.children.trial` starts it."""

import fcntl
import json
import os
import sys
from pathlib import Path

from longca.core.children.processes import die_with
from longca.core.children.trial import MEND
from longca.core.plugin import KINDS, BrokenPlugin, load_file

OUT_OF_REACH = 200  # lowest descriptor for answers, beyond descriptors that a plug-in may write to by mistake


def main() -> None:
    """Import the files of the request, a line of JSON on standard input, and answer for each. Ends the
    process.

    An answer is a line: the nonce, and a refusal as JSON, or `null` for a valid plug-in.
    """
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["path"]
    die_with(request["parent"])
    answers = fcntl.fcntl(request["writer"], fcntl.F_DUPFD_CLOEXEC, OUT_OF_REACH)
    os.close(request["writer"])
    for file in request["files"]:
        refusal = None
        try:
            load_file(KINDS[request["kind"]], Path(file))
        except BrokenPlugin as error:
            refusal = error.what, error.why, error.todo
        except KeyboardInterrupt:  # raised by the plug-in: there is no keyboard
            refusal = f"Plug-in '{file}' cannot be imported", "KeyboardInterrupt", MEND
        sys.stdout.flush()
        os.write(answers, f"{request['nonce']}{json.dumps(refusal)}\n".encode())
    os._exit(0)  # without exit handlers of plug-ins
