"""Kernels in files of their own as plug-ins for one run, and their rivals."""

import pytest

from longca.core.errors import UserError
from longca.lab.bench.run import own_file
from longca.lab.bench.run.own_file import _as_plugin
from tests.helpers.bench.own_files import cell, outcome, write

pytestmark = pytest.mark.long


def test_what_is_no_kernel_is_said_in_a_line(tmp_path):
    for text, said in (("x = 1", "is no kernel"), ("def forward(:", "line 1 is not valid Python")):
        path = tmp_path / "none.py"
        path.write_text(text)
        with pytest.raises(UserError, match=said), _as_plugin(path):
            pass
    with pytest.raises(UserError, match=r"Cannot read .*nosuch.py"), _as_plugin(tmp_path / "nosuch.py"):
        pass


def test_a_plugin_and_a_known_name_are_taken_too(tmp_path, monkeypatch):
    monkeypatch.delenv("LONGCA_PLUGINS", raising=False)
    with _as_plugin(write(tmp_path, "sdpa")) as name:
        assert name == "own_sdpa"
    plugin = tmp_path / "as_plugin.py"
    plugin.write_text(
        ("from longca.kernels.backends.naive import Naive\n\n\nclass MyKernel(Naive):\n    label = 'x'\n")
        .replace("Naive\n\n", "Naive as Kernel\n\n")
        .replace("(Naive)", "(Kernel)")
    )
    assert outcome(plugin).status == "ok"


def test_rivals_are_those_that_can_run_here():
    assert set(own_file.rivals_of(cell("sdpa"), "cpu")) == {"naive", "flex"}
    assert set(own_file.rivals_of(cell("sdpa", "bwd"), "cpu")) == {"naive"}, (
        "no control, nothing as released, none without a backward"
    )
