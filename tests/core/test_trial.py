"""Trial imports: whatever a plug-in's import does, it is named and left out, and the others are loaded."""

import os
from pathlib import Path

import pytest

from longca.core.children import trial
from longca.core.errors import UserError
from longca.core.plugin import Registry

IMPORTS = {
    "exits": ("import os; os._exit(0)", "exits with code 0"),
    "leaves": ("raise SystemExit(0)", "SystemExit: 0"),
    "crashes": ("print('so long'); import ctypes; ctypes.string_at(0)", "is killed by SIGSEGV"),
    "odd": ("class Odd(BaseException): pass\nraise Odd('not an Exception')", "Odd: not an Exception"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "floods": (
        "import os\nfor _ in range(1 << 12): os.write(1, b'y' * (1 << 16))",
        "prints more than 10 MiB",
    ),
    "stays": (
        "import os, time\nif not os.fork(): os.setsid(); time.sleep(600)",
        "starts a process that outlives",
    ),
    "hangs": (
        "import time; time.sleep(600)",
        "is not done after 8 s; LONGCA_LIMIT_PLUGIN_SECONDS sets the limit",
    ),
}
SCRIBBLES = """
import os
for file in range(3, 64):
    try:
        os.write(file, b"no answer")
    except OSError:
        pass
from longca.kernels.contract import Kernel
class Mine(Kernel): label = "Mine"
"""


@pytest.fixture(autouse=True)
def _with_trials(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(trial.VARIABLE)
    monkeypatch.setenv("LONGCA_LIMIT_PLUGIN_SECONDS", "8")


@pytest.mark.long
def test_whatever_an_import_does_the_others_are_loaded(plugins: Path, capsys: pytest.CaptureFixture[str]):
    for name, (text, _) in IMPORTS.items():
        (plugins / "kernels" / f"{name}.py").write_text(text)
    loaded = {kernel.name for kernel in Registry("kernel").load_all()}
    assert {"naive", "toy_kernel"} <= loaded and loaded.isdisjoint(IMPORTS)
    lines = {
        line.partition(".py'")[0].rpartition("/")[2]: line for line in capsys.readouterr().err.splitlines()
    }
    assert lines.keys() == IMPORTS.keys()
    for name, (_, why) in IMPORTS.items():
        assert why in lines[name] and lines[name].endswith("Mend or remove the file")


def test_an_answer_arrives_whatever_is_written_to_wrong_files(plugins: Path):
    path = plugins / "kernels" / "scribbles.py"
    path.write_text(SCRIBBLES)
    assert trial.refusals("kernel", [path]) == {}


def test_what_was_tried_is_not_tried_again(plugins: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor by processes that this one starts."""
    path = plugins / "kernels" / "exits.py"
    path.write_text("import os; os._exit(3)")
    for _ in range(2):
        with pytest.raises(UserError, match="exits with code 3"):
            Registry("kernel").load("exits")
        monkeypatch.setattr(trial.subprocess, "Popen", None)
    assert "exits with code 3" in os.environ[trial.VARIABLE]


def test_files_of_the_package_are_not_tried(plugins: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial.subprocess, "Popen", None)
    assert Registry("kernel").load("naive").name == "naive"
    assert Registry("strategy", []).load_all()
