"""The page `composition.md`: its commands run as they stand and print what it says; its Python is valid."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

TEXT = (ROOT / "docs/guide/training/composition.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)).splitlines()
TRAIN, PREFILL = (
    [command for command in COMMANDS if f"examples/{name}.py" in command]
    for name in ("train_composed", "prefill")
)
CHECKS = "python -m pytest tests/examples tests/cp/calls/test_differentiable.py tests/cp/test_inference.py"


def printed(command: str) -> str:
    program, *arguments = shlex.split(command)
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "torch.distributed.run"]
    return subprocess.run([*start, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_the_model_trains_as_the_page_says(number: int):
    [said] = re.findall(r"the loss `(\S+ → \S+)`", TEXT)
    [shapes] = re.findall(r", on 1, (\S+ × \S+ × \S+) and (\S+ × \S+ × \S+) ranks", TEXT)
    assert f"loss {said} on {['1 × 1 × 1', *shapes][number]} ranks" in printed(TRAIN[number])


@pytest.mark.slow
def test_a_prompt_is_prefilled_alone_and_under_torchrun():
    alone, together = (re.search(r"loss \S+, next token \d+;", printed(command)) for command in PREFILL)
    assert alone and together and alone[0] == together[0]


def test_its_python_compiles_and_every_command_is_known():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for number, block in enumerate(blocks, 1):
        compile(block, f"block {number}", "exec")
    assert len(blocks) == 3
    assert [*TRAIN, *PREFILL, CHECKS] == COMMANDS and (len(TRAIN), len(PREFILL)) == (3, 2)
    assert all(Path(ROOT, path).exists() for path in CHECKS.split()[3:])
