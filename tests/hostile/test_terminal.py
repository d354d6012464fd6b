"""No text that longca prints moves a terminal's cursor, whatever has made it and on whichever stream."""

import contextlib
import io
import sys

import pytest
from rich.console import Console

from longca.lab.bench.run.progress import PlainProgress, RichProgress
from longca.lab.cli.terminal import escaped_output, styled_errors, styled_output
from longca.lab.studies.outcome import Failed
from tests.lab.bench.test_progress import cells, record

HOSTILE = "\x1b]0;pwn\x07\x1b[31mRED\x9b2J\u202e\r"
SAFE = r"\x1b]0;pwn\x07\x1b[31mRED\x9b2J\u202e\r"


def test_both_streams_of_a_command_escape():
    output = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), escaped_output():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stderr.writelines([HOSTILE])
        styled_output().write("\x1b[1m")
        styled_errors().write("\x1b[2m")
    assert output.getvalue() == f"{SAFE}\n\x1b[1m" and errors.getvalue() == f"{SAFE}\n{SAFE}\x1b[2m"


@pytest.mark.parametrize("display", ["plain", "rich"])
def test_a_failed_cells_message_reaches_no_terminal(display: str):
    """A worker's exception may hold anything, and the display writes it while it draws with escapes of its
    own."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), escaped_output():
        show = (
            PlainProgress(sys.stderr) if display == "plain" else RichProgress(Console(file=errors, width=400))
        )
        show.start(cells(1))
        show.end(record(Failed(type="RuntimeError", message=HOSTILE, log="")))
        show.note(HOSTILE)
        show.close()
    text = errors.getvalue()
    assert text.replace("\n", "").count("pwn") == 2 and r"\x1b]0;pwn" in text
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(text)
