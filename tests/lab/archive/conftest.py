"""A study that was measured, once for all tests of bundles, without a device: two cells of naive and a
control."""

import shutil
from pathlib import Path

import pytest

from longca.lab.archive.bundle import Bundle, write_bundle
from longca.lab.archive.manifest import NAME as MANIFEST
from longca.lab.archive.packing import BundleFile, opened
from longca.lab.archive.project import project_files
from longca.lab.store.cells import CellStore
from longca.lab.store.rows.load import load_rows
from longca.lab.studies.config import Config
from longca.lab.studies.record import Record
from longca.lab.studies.study import Study, load_study
from tests.helpers.archive import DIGEST, rehash
from tests.helpers.records import record

STUDY = """
title: Three cells
grids:
  - {kernel: naive, mask: causal, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32, direction: [fwd, bwd]}
  - {kernel: control, mask: full, seqlen: 512, heads: "2:1", head_dim: 16, dtype: fp32, direction: fwd}
"""


@pytest.fixture(scope="session", autouse=True)
def without_committed_pages():
    """Bundles hold no `reports/`, more than half of the bytes of the project; `tests/lab/cli/test_archive.py`
    makes a whole one."""

    def files(root: Path) -> dict[str, BundleFile]:
        return {name: file for name, file in project_files(root).items() if not name.startswith("reports/")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longca.lab.archive.bundle.project_files", files)
        yield


@pytest.fixture(scope="session")
def study_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study") / "three.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="session")
def study(study_file: Path) -> Study:
    return load_study(str(study_file))


@pytest.fixture(scope="session")
def records(study: Study) -> list[Record]:
    first, *others = (record(cell, study=study.name) for cell in study.cells())
    assert first.environment is not None
    contained = first.environment.software.model_copy(
        update={"container": DIGEST, "lock": f"sha256:{'cd' * 32}"}
    )
    environment = first.environment.model_copy(update={"software": contained, "slurm_job": "17_3"})
    return [first.model_copy(update={"environment": environment}), *others]


@pytest.fixture(scope="session")
def results(tmp_path_factory, study: Study, records: list[Record]) -> Path:
    folder = tmp_path_factory.mktemp("results") / study.name
    store = CellStore(folder)
    for each in records:
        store.write(each)
    (folder / "masks.json").write_text("[]\n")
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, study: Study, study_file: Path, results: Path) -> Bundle:
    return write_bundle(
        study,
        study_file,
        Config(),
        results,
        load_rows(results),
        tmp_path_factory.mktemp("bundle") / "three.tar.gz",
    )


@pytest.fixture(scope="session")
def without_code(tmp_path_factory, bundle: Bundle) -> Path:
    """An unpacked bundle of few files, and so quickly copied: what was measured, its settings and what
    describes it."""
    with opened(bundle.path) as (place, _):
        folder = Path(
            shutil.copytree(
                place,
                tmp_path_factory.mktemp("unpacked") / "three",
                ignore=lambda path, names: [
                    name
                    for name in names
                    if path == str(place) and name not in ("measured", "config", MANIFEST, "provenance.json")
                ],
            )
        )
    rehash(folder)
    return folder
