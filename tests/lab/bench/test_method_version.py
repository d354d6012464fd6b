"""A method version changes with what makes the number, and with nothing else."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longca.core.plugin import PACKAGE_ROOT, Registry
from longca.lab.bench.measure.environment import CONTAINER
from longca.lab.bench.run import method_version as method
from longca.lab.bench.run.method_version import method_version
from longca.lab.code import digest
from longca.lab.code.source import modules_of_package
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from tests.helpers.bench.cells import small_cell, write_kernel
from tests.helpers.core.renamed import renamed

MEASURE = Measure()


def _files(**changes: object) -> set[str]:
    """Relative paths; a file outside the package has its name only."""
    return {
        str(path.relative_to(PACKAGE_ROOT)) if path.is_relative_to(PACKAGE_ROOT) else path.name
        for path in method._Sources().files(small_cell(**changes))
    }


def test_is_the_same_for_cells_measured_alike() -> None:
    version = method_version(small_cell(), MEASURE, "GPU")
    assert len(version) == 12 and int(version, 16) >= 0
    assert version == method_version(small_cell(seqlen=256, direction="bwd", seed=4), MEASURE, "GPU")


def test_changes_with_what_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = small_cell(), small_cell("sdpa"), small_cell(mask="full_document")
    versions = [method_version(cell, MEASURE, "GPU") for cell in cells]
    versions.append(method_version(small_cell(), Measure(repeats=11), "GPU"))
    versions.append(method_version(small_cell(), MEASURE, "another GPU"))
    monkeypatch.setenv(CONTAINER, "sha256:abc")
    versions.append(method_version(small_cell(), MEASURE, "GPU"))
    monkeypatch.setattr(method, "_module_version", lambda module: "0.0")
    versions.append(method_version(small_cell(), MEASURE, "GPU"))
    assert len(set(versions)) == len(versions)


def test_changes_with_how_messages_go_where_there_are_any() -> None:
    cells = small_cell(), small_cell(kind="cp", strategy=Registry("strategy").names()[0], world=2)
    kernel, strategy = (
        {method_version(cell, Measure(messages=way), "GPU") for way in ("nccl", "symmetric")}
        for cell in cells
    )
    assert (len(kernel), len(strategy)) == (1, 2)


def test_covers_the_code_that_runs_and_not_what_reports() -> None:
    files = _files()
    assert {
        "kernels/backends/naive.py",
        "kernels/contract.py",
        "lowering/dense.py",
        "masks/patterns/causal_document.py",
        "masks/band.py",
        "data/corpora/pile.json",
        "data/sampler.py",
        "lab/bench/measure/timer.py",
        "lab/bench/check/oracle.py",
    } <= files
    assert (
        not {
            "lab/bench/measure/environment.py",
            "lab/studies/record.py",
            "kernels/backends/sdpa.py",
            "masks/patterns/full.py",
        }
        & files
    )
    assert "ops/spin.py" in _files(kernel="control", mask="full")
    assert "lowering/flex.py" not in files and "lowering/flex.py" in _files(kernel="flex")
    assert not any(name.startswith("data/") for name in _files(mask="full"))


def test_covers_all_that_draws_a_mask_and_takes_it_apart() -> None:
    assert {"masks/build.py", "masks/choice.py", "masks/grid.py"} <= _files(mask="block_sparse_uniform")
    assert "masks/traits.py" in _files(
        kernel="flashmask", mask="causal"
    )  # its lowering cuts bands into these


def test_covers_the_strategy() -> None:
    name = Registry("strategy").names()[0]
    files = _files(kind="cp", strategy=name, world=2)
    assert {
        f"cp/strategies/{name}.py",
        "cp/contract.py",
        "lab/bench/measure/cp.py",
        "kernels/backends/naive.py",
    } <= files
    assert not any(file.startswith("cp/") for file in _files())


def test_every_named_module_exists() -> None:
    """One that is missing would silently not count, or not be left out."""
    assert {
        *method.FOLLOWED,
        *method.FOLLOWED_FOR_DOCUMENTS,
        *method.LEFT_OUT,
        *method.MEASURED_BY.values(),
    } <= modules_of_package().keys()


def test_covers_packages_on_the_way() -> None:
    assert {
        "masks/__init__.py",
        "kernels/__init__.py",
        "lab/bench/__init__.py",
        "lab/bench/check/__init__.py",
    } <= _files()
    assert "__init__.py" not in _files()  # it holds the release's number


@pytest.mark.long
@pytest.mark.parametrize(
    "cell",
    [
        small_cell("naive", "block_sparse_uniform", "bwd"),
        pytest.param(small_cell("sdpa"), marks=pytest.mark.slow),
        small_cell(kind="cp", strategy="ring_p2p", direction="bwd"),
        pytest.param(small_cell(kind="cp", strategy="ulysses"), marks=pytest.mark.slow),
    ],
    ids=lambda cell: f"{cell.method}-{cell.mask}",
)
def test_covers_all_that_is_really_imported(cell: Cell) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.bench.measure_one", cell.model_dump_json()],
        cwd=PACKAGE_ROOT.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    status, modules = json.loads(done.stdout)
    assert status == "ok"
    covered = method._Sources().files(cell)
    followed = {
        module for module in modules if module.startswith(method.FOLLOWED + method.FOLLOWED_FOR_DOCUMENTS)
    }
    assert (
        followed - method.LEFT_OUT - {name for name, path in modules_of_package().items() if path in covered}
        == set()
    )
    assert not any(module.startswith(("longca.lab.report", "longca.lab.bench.run")) for module in modules)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("kernels/backends/naive.py", True),
        ("kernels/backends/sdpa.py", False),
        ("lab/bench/measure/timer.py", True),
        ("lab/bench/measure/environment.py", False),
        ("masks/__init__.py", True),
        ("lab/studies/record.py", False),
        ("lab/report/build.py", False),
    ],
)
def test_counts_the_statements_of_covered_files_only(
    name: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as if a line stood at the file's end: a comment, then a statement."""
    before = method_version(small_cell(), MEASURE, "CPU")
    read = Path.read_bytes
    parsed = digest._parsed
    monkeypatch.setattr(
        digest,
        "_parsed",
        lambda path, mtime: (parsed.__wrapped__ if path == PACKAGE_ROOT / name else parsed)(path, mtime),
    )

    def version(line: bytes) -> str:
        monkeypatch.setattr(
            Path, "read_bytes", lambda path: read(path) + (line if path == PACKAGE_ROOT / name else b"")
        )
        digest._digest.cache_clear()
        return method_version(small_cell(), MEASURE, "CPU")

    assert version(b"\n# a sentence\n") == before
    assert (version(b"\nSIZE = 4\n") != before) == counts
    assert (version(b"\nSIZE = 4\n") != version(b"\nSIZE = 5\n")) == counts
    digest._digest.cache_clear()


def test_does_not_change_with_the_names_of_local_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the package is read with other names for its locals."""
    before = method_version(small_cell(), MEASURE, "CPU")
    read = Path.read_bytes

    def other_names(path: Path) -> bytes:
        return renamed(read(path).decode(), 0)[0].encode() if path.suffix == ".py" else read(path)

    monkeypatch.setattr(Path, "read_bytes", other_names)
    monkeypatch.setattr(digest, "_parsed", functools.cache(digest._parsed.__wrapped__))
    digest._digest.cache_clear()
    digest._counting.cache_clear()
    assert method_version(small_cell(), MEASURE, "CPU") == before
    digest._digest.cache_clear()
    digest._counting.cache_clear()


def test_changes_when_a_kernel_outside_the_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kernel("outside", "pass", tmp_path, monkeypatch)
    before = method_version(small_cell("outside"), MEASURE, "CPU")
    path = tmp_path / "kernels" / "outside.py"
    path.write_text(path.read_text() + "\n# a comment\n")
    os.utime(path, ns=(0, 1))
    assert method_version(small_cell("outside"), MEASURE, "CPU") == before
    path.write_text(path.read_text() + "\nCHANGED = 1\n")
    os.utime(path, ns=(0, 2))
    assert method_version(small_cell("outside"), MEASURE, "CPU") != before


def test_does_not_depend_on_where_a_kernel_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        write_kernel("outside", "pass", tmp_path / name, monkeypatch)
        versions.add(method_version(small_cell("outside"), MEASURE, "CPU"))
    assert len(versions) == 1
