"""A module that a template imports and whose `main` its children run: it tells about its process."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

IMPORTED = os.getpid()


def main() -> None:
    what, *others = sys.argv[1:]
    if what == "draw":
        print(random.random())
    elif what == "sleep":
        print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
        time.sleep(600)
    else:
        listed = list(Path("/proc/self/fd").iterdir())
        files = sorted(int(entry.name) for entry in listed if entry.exists())  # not that of the listing
        command = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        environ = dict(
            text.split("=", 1) for text in Path("/proc/self/environ").read_text().split("\0") if "=" in text
        )
        facts = {
            "parent": os.getppid(),
            "session": os.getsid(0),
            "size": os.environ["SIZE"],
            "folder": Path.cwd(),
            "files": " ".join(str(number) for number in files if number > 2),
            "words": " ".join(sys.argv[1:]),
            "command": " ".join(command[-2 - len(sys.argv[1:]) :]),
            "marked": environ["LONGCA_STARTED_AS"],
            "imported": "once" if os.getpid() != IMPORTED else "again",
        }
        os.write(int(others[0]), "".join(f"{name}={value}\n" for name, value in facts.items()).encode())
        print("to its output")
        sys.exit(3)
