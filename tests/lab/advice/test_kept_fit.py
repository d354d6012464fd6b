"""A fit that is kept is that of the records as they are now."""

from dataclasses import replace

import pytest

from longca.core.errors import UserError
from longca.lab.advice import kept_fit
from longca.lab.store.cells import CellStore
from longca.lab.store.load import load
from longca.lab.studies.fitting import fit_records
from tests.helpers.committed import committed

pytestmark = pytest.mark.long


@pytest.fixture
def store(tmp_path, monkeypatch) -> CellStore:
    """Short calls of two kernels on an H200."""
    monkeypatch.setattr(kept_fit, "FEWEST", 3)
    made = CellStore(tmp_path)
    chosen = committed("h200-dense", kernel=("fa3", "cudnn"), seqlen=(1024, 2048, 4096, 8192))
    for record in chosen:
        made.write(record)
    return made


def test_it_is_that_of_the_records_and_made_once(store, monkeypatch):
    expected = fit_records(load(store.folder).records, (str(store.folder),))
    assert kept_fit.fit_sources([store.folder]) == (expected, []) and len(expected.models) > 1
    with monkeypatch.context() as patch:
        patch.setattr(kept_fit, "fit_records", None)
        assert kept_fit.fit_sources([store.folder]) == (expected, [])
    changed = next(each for each in load(store.folder).records if each.samples is not None)
    slower = tuple(tuple(3 * time for time in times) for times in changed.samples.time_ms)
    store.write(
        changed.model_copy(update={"samples": changed.samples.model_copy(update={"time_ms": slower})})
    )
    again, _ = kept_fit.fit_sources([store.folder])
    assert again == fit_records(load(store.folder).records, (str(store.folder),)) != replace(expected)
    (store.cells / kept_fit.NAME).write_text("{")
    assert kept_fit.fit_sources([store.folder]) == (again, [])


def test_damaged_cells_are_named_and_none_at_all_is_an_error(store, tmp_path):
    path = store.path(load(store.folder).records[0].cell_id)
    path.write_text("{")
    _, [problem] = kept_fit.fit_sources([store.folder])
    assert problem.path == path
    with pytest.raises(UserError, match="no records"):
        kept_fit.fit_sources([tmp_path / "nowhere"])
