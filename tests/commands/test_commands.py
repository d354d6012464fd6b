"""The commands of README and guides, run as they stand there, in a project of their own: `make
test-commands`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.documented import run_here
from tests.support import ROOT, TINY

pytestmark = [pytest.mark.commands, pytest.mark.timeout(300)]
LINKED = ("config", "reports", "containers", "workflow", "Snakefile", "slurm")
FIRST = "longca run quick -k sdpa -m 'causal*'"
SLOW = (
    "longca report h100-dense",
    "longca report reports/h100/h100-dense.parquet",
    "longca advise --records",  # 3,832 records each
    "longca run --force",  # the whole quick study; the default run has `--force` with one cell
)
CODE = {
    "longca bench wrong.py": 1,
    "longca bench raises.py": 1,
    "longca bench hangs.py": 1,
    "longca bench mykernel.py": (0, 1),
}


def ten_lines() -> str:
    """The kernel of docs/guide/own-kernel.md."""
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/guide/own-kernel.md").read_text(encoding="utf-8"), re.M | re.S
    )[0]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages take for granted, and the records of the quick study's first command."""
    folder = tmp_path_factory.mktemp("commands") / "project"
    folder.mkdir()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    own = ten_lines()
    head, _, body = own.partition("def forward(q, k, v, mask):\n")
    assert body
    (folder / "mykernel.py").write_text(own)
    for name, line in (
        ("raises", "raise RuntimeError('tile of 96 rows does not fit')"),
        ("hangs", "while True: pass"),
        ("wrong", "return v.repeat_interleave(q.shape[1] // k.shape[1], 1)"),
    ):
        (folder / f"{name}.py").write_text(f"{head}def forward(q, k, v, mask):\n    {line}\n")
    (folder / "mine.yaml").write_text(TINY)
    (folder / "texts").mkdir()
    (folder / "texts/some.jsonl").write_text(
        "".join(f'{{"text": "{"word " * (7 + 91 * n % 400)}"}}\n' for n in range(300))
    )
    for gpu in ("h100", "h200"):  # as if it had been measured here
        (folder / f"results/{gpu}-dense").mkdir(parents=True)
        shutil.copy(
            ROOT / f"reports/{gpu}/{gpu}-dense.parquet", folder / f"results/{gpu}-dense/records.parquet"
        )
    (folder / "empty").mkdir()
    for command in (FIRST, "longca archive quick"):
        done = run(folder, command)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")}
    plugins = {"LONGCA_PLUGINS": "plugins"} if (folder / "plugins").is_dir() else {}
    script = f'longca() {{ {sys.executable} -m longca "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        env={
            **environ,
            **plugins,
            "PYTHONPATH": str(ROOT),
            "LONGCA_DEVICE": "cpu",
            "CI": "1",
            "COLUMNS": "120",
        },
    )


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[pytest.mark.slow] * command.startswith(SLOW)) for command in run_here()],
)
def test_command(command: str, project: Path):
    done = run(project / "empty" if command.startswith("longca new") else project, command)
    expected = next((code for start, code in CODE.items() if command.startswith(start)), 0)
    assert done.returncode in (expected if isinstance(expected, tuple) else (expected,)), (
        done.stdout[-3000:] + done.stderr[-3000:]
    )
    assert "Traceback" not in done.stdout + done.stderr


def test_make_report(project: Path):
    """`make report STUDY=mine.yaml`, by the Makefile of this checkout."""
    environ = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }  # of `make test-…`
    command = [
        "make",
        "-o",
        "setup",
        "report",
        f"STUDY={project}/mine.yaml",
        f"ARGS=--config results={project}/made device=cpu",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, env=environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "made/mine/report.html").stat().st_size > 100_000
    assert done.stdout.splitlines()[-1].endswith("/results/mine/report.html")
