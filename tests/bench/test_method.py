"""A method version changes with what makes the number, and with nothing else."""

import os
from pathlib import Path

import pytest

from longca.bench.measure.environment import CONTAINER
from longca.bench.run import method_version as method
from longca.bench.run.method_version import method_version
from longca.core.plugin import PACKAGE_ROOT, Registry
from longca.core.study import Measure
from tests.bench.cells import small_cell, write_kernel

MEASURE = Measure()


def _files(**changes: object) -> set[str]:
    return set(method._named(method._files(small_cell(**changes))))


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
    kernel, strategy = ({method_version(cell, Measure(messages=way), "GPU") for way in ("nccl", "symmetric")} for cell in cells)
    assert (len(kernel), len(strategy)) == (1, 2)


def test_covers_the_code_that_runs_and_not_what_reports() -> None:
    files = _files()
    assert {"kernels/backends/naive.py", "kernels/contract.py", "lowering/dense.py", "lowering/intervals.py",
            "masks/patterns/causal_document.py", "masks/band.py", "data/corpora/pile.json", "data/sampler.py", "bench/measure/timer.py",
            "bench/check/oracle.py"} <= files
    assert not {"bench/measure/environment.py", "core/record.py", "kernels/backends/sdpa.py", "masks/patterns/full.py"} & files
    assert "ops/spin.py" in _files(kernel="control", mask="full")
    assert "lowering/flex.py" not in files and "lowering/flex.py" in _files(kernel="flex")
    assert not any(name.startswith("data/") for name in _files(mask="full"))


def test_covers_all_that_draws_a_mask_and_takes_it_apart() -> None:
    assert {"masks/build.py", "masks/choice.py", "masks/grid.py"} <= _files(mask="block_sparse_uniform")
    assert "masks/segments.py" in _files(kernel="flashmask", mask="causal")  # its lowering cuts bands into these


def test_covers_the_strategy() -> None:
    name = Registry("strategy").names()[0]
    files = _files(kind="cp", strategy=name, world=2)
    assert {f"cp/strategies/{name}.py", "cp/contract.py", "bench/measure/cp.py", "kernels/backends/naive.py"} <= files
    assert not any(file.startswith("cp/") for file in _files())


def test_every_named_file_exists() -> None:
    """One that is missing would silently not count."""
    for name in (*method.CALL_FILES, *method.BENCH_FILES, *method.CP_FILES, *method.DATA_FILES):
        assert (PACKAGE_ROOT / name).is_file(), name


def test_changes_when_a_kernel_outside_the_package_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel("outside", "pass", tmp_path, monkeypatch)
    before = method_version(small_cell("outside"), MEASURE, "CPU")
    path = tmp_path / "kernels" / "outside.py"
    path.write_text(path.read_text() + "\n# a change\n")
    os.utime(path, ns=(0, 1))
    assert method_version(small_cell("outside"), MEASURE, "CPU") != before
    assert "tmp" not in str(sorted(method._named(method._files(small_cell("outside")))))
