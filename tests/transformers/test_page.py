"""The page `in-trainers-hands.md`: its Python runs from top to bottom, its commands run as they stand, and
its numbers are so."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tests.transformers.models  # noqa: F401  (skips without Transformers)
from longca.masks import build_mask
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

TEXT = (ROOT / "docs/guide/training/in-trainers-hands.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]
EXAMPLES = [command for command in COMMANDS if "examples/" in command]


def test_its_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"block {number}", "exec"), names)
    assert len(blocks) == 4 and float(names["loss"]) > 0 and names["mask"].area == 155


@pytest.mark.parametrize(
    "command", [EXAMPLES[0], *(pytest.param(line, marks=pytest.mark.slow) for line in EXAMPLES[1:])]
)
def test_its_commands_run_and_print_what_it_says(command: str):
    program, *arguments = shlex.split(command)
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "torch.distributed.run"]
    done = subprocess.run([*start, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    [said] = re.findall(r"the loss `(\S+ → \S+)`", TEXT)
    assert (
        f"loss {said} on" in done.stdout
        and "61 of its tokens have other outputs, and 0 of other documents" in done.stdout
    )


def test_every_command_is_known():
    others = {
        'pip install "longca[transformers]"',
        "python -m pytest tests/transformers tests/masks/test_tree.py",
    }
    assert set(COMMANDS) == {*EXAMPLES, *others}
    assert all(Path(ROOT, part).exists() for part in ("tests/transformers", "tests/masks/test_tree.py"))


def test_what_a_tree_saves():
    mask = build_mask("prefix_tree", seqlen="32K")
    pairs = f"{mask.area / 1e6:.1f} of {mask.params['unrolled_area'] / 1e6:.1f} million"
    assert f"| 4 prompts | {mask.params['unrolled_tokens']:,} | 51 % | {pairs} | 32 % |" in TEXT
