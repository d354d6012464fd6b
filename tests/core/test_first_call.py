"""First calls: what ends, hangs or floods a process does so to a copy; then the plug-in is refused."""

import os
import time
from pathlib import Path

import pytest

from longca.core.children import trial
from longca.core.plugin import BrokenPlugin, Registry

QUIET_CRASH = "import ctypes, faulthandler; faulthandler.disable(); ctypes.string_at(0)"
ODD = "class Odd(BaseException): pass\n        raise Odd"
KERNEL = """
from longca.kernels.contract import Kernel
class Mine(Kernel):
    label = "Mine"
    def available(self, device_type):
        {what}
        return f"not on {{device_type}}"
"""


def loaded(plugins: Path, name: str, what: str):
    (plugins / "kernels" / f"{name}.py").write_text(KERNEL.format(what=what))
    return Registry("kernel").load(name)


@pytest.fixture(autouse=True)
def _with_trials(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(trial.VARIABLE)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # pytest may have more


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("exits", "import os; os._exit(0)", "ends the process with exit code 0"),
        ("crashes", QUIET_CRASH, "has the process killed by signal 11"),
        ("odd", ODD, "raises what is no Exception"),
        ("floods", "import os; [os.write(1, bytes(1 << 20)) for _ in range(11)]", "prints more than 10 MiB"),
        ("endless", "import os\n        while os.write(1, b'y' * 1000): pass", "prints more than 10 MiB"),
    ],
)
def test_a_call_that_ends_a_process_refuses_the_plugin(plugins: Path, name: str, what: str, why: str):
    kernel = loaded(plugins, name, what)
    for _ in range(2):
        with pytest.raises(BrokenPlugin, match=f"{name}.py' cannot be used: its method available {why}"):
            kernel.available("cpu")


def test_a_call_that_hangs_refuses_the_plugin(plugins: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = loaded(plugins, "hangs", "import time; time.sleep(600)")
    begun = time.monotonic()
    monkeypatch.setenv("LONGCA_LIMIT_PLUGIN_SECONDS", "1")
    for _ in range(2):
        with pytest.raises(BrokenPlugin, match="available is not done after 1 s"):
            kernel.available("cpu")
    assert time.monotonic() - begun < 60


def test_a_good_call_answers_and_only_the_first_is_copied(plugins: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = loaded(plugins, "good", "pass")
    assert kernel.available("cpu") == "not on cpu"
    monkeypatch.setattr(os, "fork", None)
    assert kernel.available("cuda") == "not on cuda"


def test_an_exception_is_the_callers(plugins: Path):
    with pytest.raises(ZeroDivisionError):
        loaded(plugins, "raises", "1 / 0").available("cpu")
