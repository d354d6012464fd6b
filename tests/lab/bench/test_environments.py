"""Workers name the software that they ran, the runner stores each listing once, and records find it there."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from longca.lab.bench.run.progress import PlainProgress
from longca.lab.bench.run.runner import asked, run_cells
from longca.lab.environment.taking import environments_of
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.studies.config import Config
from longca.lab.studies.facts.drawn import MOST_LENGTHS, DrawnLengths
from longca.lab.studies.facts.inventory import (
    Distribution,
    Installation,
    listing_content,
    listing_digest,
    read_listing,
)
from longca.lab.studies.grid import Grid, Measure
from longca.lab.studies.study import Study
from tests.lab.store.test_environments import INSTALLED, LOADED, environment, listings

pytestmark = pytest.mark.long

MEASURE = Measure(warmup=0, repeats=3, max_seconds=1, timeout_s=60)
STUDY = Study(
    name="tiny",
    measure=MEASURE,
    grids=(
        Grid(
            kernel="naive",
            mask="causal_document",
            seqlen=64,
            heads="2:1",
            head_dim=16,
            dtype="fp32",
            direction="fwd",
        ),
        Grid(
            kind="cp",
            strategy="ulysses",
            kernel="naive",
            world=2,
            mask="causal",
            seqlen=64,
            heads="2:1",
            head_dim=16,
            dtype="fp32",
            direction="fwd",
        ),
    ),
)


def test_records_of_a_run_name_software_that_is_listed_beside_them(tmp_path: Path):
    config = Config(results=tmp_path, device="cpu", disturbed="keep")
    run_cells(STUDY, STUDY.cells(), config, progress=PlainProgress(io.StringIO()))
    loaded = load(tmp_path / "tiny")
    assert {record.outcome.status for record in loaded.records} == {"ok"} and not loaded.problems
    for record in loaded.records:
        assert record.environment is not None and len(record.environment.ranks) in (1, record.cell.world)
        for rank in record.environment.ranks:
            installed = loaded.environments.installed(rank)
            software = loaded.environments.loaded(rank)
            assert installed is not None and software is not None and "torch" in software.distributions
            assert any(shared.owner == "torch" and shared.build_id for shared in software.objects)
        assert record.measure == {**asked(MEASURE), "repeats": 3, "timeout_s": 60}
        assert record.cell.input_values == "normal" and record.mask is not None
    documents = next(record for record in loaded.records if record.cell.mask == "causal_document")
    lengths = documents.mask.lengths["documents"] if documents.mask else DrawnLengths.of([])
    assert sum(lengths.lengths) == 64 and lengths.count == len(lengths.lengths)
    content = json.loads(export(loaded.records, tmp_path, loaded.environments)[2].read_text())
    assert len(content["environments"]) >= 2
    row = load(tmp_path / "records.json")
    taken = [record.environment for record in loaded.records]
    assert row.environments.contents(taken) == loaded.environments.contents(taken)


def test_a_distribution_without_a_record_of_its_files_is_listed():
    """An old pip leaves such where it builds a package without wheels."""
    listing = Installation(
        python="CPython 3.11.2",
        machine="x86_64",
        kernel="Linux 6",
        libc="glibc 2.36",
        distributions=(Distribution(name="legacy", version="1", record=None),),
    )
    content = listing_content(listing)
    assert read_listing(listing_digest(content), content) == listing


def answer(**changes: Any) -> dict[str, Any]:
    return {"environment": environment()[0].model_dump(mode="json"), "listings": listings(), **changes}


def test_ranks_are_told_apart_where_their_software_differs():
    assert environments_of([answer(), answer(listings={})]) == (environment(), listings())
    other = LOADED.model_copy(update={"changed": ("torch/a.py",)})
    second = answer(environment=environment(other)[0].model_dump(mode="json"), listings=listings(other))
    ranks, known = environments_of([answer(), second])
    assert ranks == (*environment(), *environment(other)) and known == listings(INSTALLED, LOADED, other)


@pytest.mark.parametrize(
    "changes", [{"environment": None}, {"environment": {"installed": "x"}}, {"environment": 7}]
)
def test_of_a_rank_that_does_not_tell_nothing_is_believed(changes: dict[str, Any]):
    assert environments_of([answer(), answer(**changes)]) == ((), {})


def test_a_listing_of_another_digest_is_left_out():
    forged = {digest: {**content, "kind": "loaded"} for digest, content in listings().items()}
    ranks, known = environments_of([answer(listings=forged)])
    assert ranks == environment() and set(known) < set(listings())


def test_lengths_are_exact_up_to_a_number_and_then_digest_and_quantiles():
    few = DrawnLengths.of([5, 3, 5])
    assert (
        few.lengths == (5, 3, 5) and few.quantiles == () and few.digest != DrawnLengths.of([3, 5, 5]).digest
    )
    many = DrawnLengths.of(range(MOST_LENGTHS + 1, 0, -1))
    assert many.count == MOST_LENGTHS + 1 and many.lengths == () and many.quantiles == (1, 129, 257, 385, 513)
    assert DrawnLengths.model_validate_json(many.model_dump_json()) == many
