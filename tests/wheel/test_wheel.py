"""The wheel in a virtual environment of its own, away from the checkout: `make test-wheel`.

It is built from the source distribution, as a release is. The packages that it needs are those of this
environment.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from longca.core.version import VERSION
from longca.lab.store.load import committed
from tests.helpers.support import ROOT, TINY

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]
SHA = "0a" * 20
MOST_BYTES = 10_000_000
RELEASES = "file:///nowhere/releases"
SOURCES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "Snakefile",
    "config",
    "workflow",
    "longca",
    "requirements.lock",
    "torch.lock",
    "torch-cpu.lock",
)
OWN = """
title: a kernel of the user's own
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids: [{kernel: own, mask: causal, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}]
"""
READING = [  # the command, and what it answers: a part of stdout, or of stderr where it refuses
    ("list", "20 masks"),
    ("list matrix", "causal_document"),
    ("list kernels", "sdpa"),
    ("choose causal --gpu h100", "records of h100-dense"),
    ("advise -m causal -s 64K -w 8", "GPUs"),
    ("plan quick", "quick"),
    ("plan h100-dense -k band -m causal", "band"),
    ("config show", "shipped/config/studies"),
    ("data list", "prolong64k"),
    ("new mask mine", "It is whole"),
    ("explain quick -k flex -m causal -d bwd -s 512", "visible pairs"),
    ("image list", "a checkout has them"),
]
REFUSED = [
    ("archive quick", "Archive from a clone"),
    ("image get cpu", "a checkout has them"),
    ("plan quik", "did you mean 'quick'"),
    ("report quick", "Measure first with `longca run`"),
    ("records get", f"'{RELEASES}/v{VERSION}/SHA256SUMS' cannot be fetched: No such file"),
]


def built(folder: Path) -> Path:
    """The wheel, from the source distribution of the files that make one."""
    source = folder / "source"
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(path, source / name)
    for path in committed():
        (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, source / path.relative_to(ROOT))
    (source / "config/site.yaml").write_text("account: somebody\n")
    (source / "COMMIT").write_text(f"{SHA}-dirty\n")
    (source / "RELEASES").write_text(f"{RELEASES}\n")
    code = "from setuptools.build_meta import build_sdist; build_sdist('.')"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    [archive] = source.glob("longca-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        packed.extractall(folder)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        folder / "dist",
    ]
    subprocess.run([*command, folder / archive.name.removesuffix(".tar.gz")], check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder of programs. Its packages are the present ones; none of its paths leads to the
    checkout."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(command, check=True, capture_output=True)
    [site] = folder.glob("lib/python3*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "present.pth").write_text("\n".join(others) + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a `config` that is another program's."""
    folder = tmp_path_factory.mktemp("away")
    (folder / "config").mkdir()
    (folder / "config/train.yaml").write_text("lr: 1e-3\n")
    return folder


def ran(
    environment: Path, away: Path, program: str, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("LONGCA_", "PYTHON"))
    }
    environ |= {"LONGCA_LOCKS": os.environ["LONGCA_LOCKS"], "CI": "1", "COLUMNS": "200", **env}
    command = [environment / program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=away, env=environ, check=False)


def test_what_it_holds(wheel: Path):
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        assert not any(name.endswith("site.yaml") for name in names), "an account is nobody else's"
        assert {
            "longca/py.typed",
            "longca/shipped/config/hardware.yaml",
            "longca/shipped/config/studies/quick.yaml",
        } <= names
        assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"longca"}
        for path in committed():
            with packed.open(f"longca/shipped/{path.relative_to(ROOT).as_posix()}") as file:
                table = pq.read_table(file)
            whole = pq.read_table(path, columns=table.column_names)
            assert table.equals(whole.select(table.column_names), check_metadata=True)
    assert wheel.stat().st_size <= MOST_BYTES, (
        "leave columns of records out in setup.py, or fetch records from a release"
    )


def test_it_is_the_one_that_runs(environment: Path, away: Path):
    code = (
        "import longca, longca.lab.studies.checkout as c, longca.core.reading as p;"
        "print(longca.__file__, p.ROOT, c.is_checkout(), p.origin(), c.described(c.source()))"
    )
    package, root, is_checkout, origin, commit = ran(environment, away, "python", "-c", code).stdout.split()
    assert Path(package).is_relative_to(environment.parent) and not Path(root).is_relative_to(ROOT)
    assert (is_checkout, origin) == ("False", f"{Path(package).parent}/shipped")
    assert commit == f"{SHA}-dirty", "records name the code that the wheel was built from"


@pytest.mark.parametrize(("command", "part"), READING)
def test_commands_that_read(environment: Path, away: Path, command: str, part: str):
    done = ran(environment, away, "longca", *command.split())
    assert done.returncode == 0, done.stderr
    assert part in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "part"), REFUSED)
def test_what_it_cannot_is_one_line(environment: Path, away: Path, command: str, part: str):
    done = ran(environment, away, "longca", *command.split())
    assert (done.returncode, done.stdout) == (2, "") and part in done.stderr and done.stderr.count("\n") == 1


def test_a_study_is_measured_and_drawn_in_the_working_folder(environment: Path, away: Path):
    """With a kernel of the user's own; quick's study by its name."""
    done = ran(environment, away, "longca", "new", "kernel", "own")
    assert "longca bench mine" in done.stdout and "python -m pytest" not in done.stdout, (
        "contract tests are in a checkout"
    )
    (away / "own.yaml").write_text(OWN)
    done = ran(
        environment, away, "longca", "run", "own.yaml", "--no-repeats", LONGCA_PLUGINS=str(away / "mine")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = ran(environment, away, "longca", "report", "own.yaml")
    assert (
        done.stdout.endswith("results/own/report.html\n")
        and (away / "results/own/report.html").stat().st_size > 100_000
    )
    done = ran(
        environment,
        away,
        "longca",
        "run",
        "quick",
        "-k",
        "sdpa",
        "-m",
        "causal",
        "-d",
        "fwd",
        "-c",
        "!*",
        "--no-repeats",
    )
    assert done.returncode == 0 and list((away / "results/quick/cells").rglob("*.json")), (
        done.stdout + done.stderr
    )
    done = ran(environment, away, "longca", "paper", "own.yaml", "--out", "my-paper")
    assert done.returncode == 0 and (away / "my-paper/index.html").stat().st_size > 100_000, done.stderr
    done = ran(
        environment,
        away,
        "python",
        "-c",
        "import longca; print(len(longca.load('own.yaml')), len(longca.load('power')))",
    )
    rows = pq.read_table(committed("power")[0], columns=["playoff", "repeat"]).to_pylist()
    own = [row for row in rows if not row["playoff"] and not row["repeat"]]
    assert done.stdout.split() == ["1", str(len(own))], done.stderr


def test_the_workflow_of_another_project(environment: Path, away: Path, tmp_path: Path):
    """As `snakedeploy deploy-workflow` makes one: config and profiles are copied, and workflow/Snakefile is a
    module."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(
        f'configfile: "config/config.yaml"\n\nmodule longca:\n    snakefile: "{ROOT}/workflow/Snakefile"\n   '
        f" config: config\n\n"
        "use rule * from longca\n"
    )
    (tmp_path / "config/studies/tiny.yaml").write_text(TINY)
    command = ("-m", "snakemake", "--profile", "profiles/local", "--dry-run", "--config", "study=tiny")
    done = ran(environment, tmp_path, "python", *command)
    assert done.returncode == 0, done.stderr
    assert all(
        f"\n{stage} " in done.stdout
        for stage in ("corpora", "masks", "cp", "collect", "report", "all")  # one machine: one job measures
    )


@pytest.mark.parametrize(
    "command", ["claims --json", "choose causal -d both --json", "advise -m causal -w 8 --json"]
)
def test_answers_are_those_of_the_checkout(environment: Path, away: Path, command: str):
    here = ran(environment, away, "python", "-m", "longca", *command.split(), PYTHONPATH=str(ROOT))
    assert here.returncode == 0 and here.stdout == ran(environment, away, "longca", *command.split()).stdout


@pytest.mark.slow
def test_the_whole_study_from_the_records_that_came_with_it(environment: Path, away: Path):
    done = ran(environment, away, "longca", "paper")
    assert done.returncode == 0, done.stderr
    page = away / "reports/paper/index.html"
    assert page.stat().st_size > 1_000_000 and len(list(page.parent.glob("data/*.csv"))) > 20
