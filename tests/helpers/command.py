"""The command line, called in this process: each start of a process costs a second."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from tests.helpers.support import ROOT


def called(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    from longca.lab.cli.main import main

    out = io.StringIO()
    err = io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["longca", *command])
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
