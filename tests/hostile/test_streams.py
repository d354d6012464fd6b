"""Standard streams that are closed or full, and plug-ins that hold up the end of a command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.support import ROOT

pytestmark = pytest.mark.long


def run(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell; `longca` stands for this interpreter's."""
    command = line.replace("longca", f"{sys.executable} -m longca", 1)
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("longca list >&-", 2, "longca: Cannot use 'standard output': it is closed\n"),
        ("longca list <&- >&- 2>&-", 2, ""),
        ("longca list corpora <&- 2>&-", 0, ""),
        ("longca plan nosuch 2>/dev/full", 2, ""),
        (
            "longca plan quick >/dev/full",
            2,
            "longca: Cannot use 'standard output': No space left on device\n",
        ),
    ],
)
def test_a_stream_that_is_closed_or_full_is_one_line(line: str, code: int, told: str):
    done = run(line)
    assert (done.returncode, done.stderr) == (code, told)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path):
    """A library's output would be written into it."""
    text = (
        "import os\nfrom longca.lab.cli.terminal import open_closed_streams\nclosed = open_closed_streams()\n"
        f"file = open({str(tmp_path / 'x')!r}, 'w')\nos.write(1, b'printed')\nassert file.fileno() > 2\n"
        "assert closed == ['stdin', 'stdout'], closed"
    )
    (tmp_path / "try.py").write_text(text)
    done = run(f"longca; PYTHONPATH={ROOT} {sys.executable} {tmp_path / 'try.py'} <&- >&-")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x").read_text() == ""


@pytest.mark.parametrize(
    "left", ["atexit.register(time.sleep, 600)", "threading.Thread(target=time.sleep, args=(600,)).start()"]
)
def test_a_plug_in_cannot_hold_up_the_end_of_a_command(left: str, tmp_path: Path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/late.py").write_text(
        "import atexit, os, threading, time\nfrom longca.kernels.backends.naive import Naive\n"
        f"if 'LONGCA_TRIALS' in os.environ: {left}\nclass Late(Naive):\n    label = 'Late'\n"
    )
    done = run(
        "longca list kernels",
        LONGCA_PLUGINS=str(tmp_path),
        LONGCA_TRIALS="none",
        LONGCA_LIMIT_PLUGIN_SECONDS="2",
    )
    assert done.returncode == 0 and "late" in done.stdout
    assert "A plug-in holds up the end of this command for more than 2 s" in done.stderr
