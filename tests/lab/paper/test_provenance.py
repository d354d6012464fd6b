"""Provenance of the numbers of the study's page."""

import re
from pathlib import Path

from longca.core.hardware import load_hardware
from longca.lab.paper.links import RunPage
from longca.lab.paper.provenance import StudyProvenance, provenance
from longca.lab.store.table import derived, in_order
from longca.lab.studies.record import Node, Record
from tests.helpers.records import gpu_study
from tests.helpers.report.few import few

GPUS = [record for record in gpu_study() if record.cell.mask == "full"][:6]


def _with_node(record: Record, **facts: object) -> Record:
    """The record, as if measured elsewhere."""
    assert record.environment is not None
    node = record.environment.nodes[0]
    changed = Node.model_validate(node.model_dump() | {"gpu": node.gpu | facts})
    return record.model_copy(
        update={"environment": record.environment.model_copy(update={"nodes": (changed,)})}
    )


def _of(records: list[Record], *pages: RunPage) -> StudyProvenance:
    ordered = in_order(records)
    return provenance(ordered, derived(ordered), load_hardware(), pages)


def test_gpus_are_counted_by_model_driver_and_power_limit() -> None:
    alike = _with_node(GPUS[1], uuid="another")
    limited = _with_node(GPUS[2], power_limit_w=500.0)
    many, few_of_them = _of([GPUS[0], alike, limited]).machines
    assert (many.num_gpus, many.num_cells, few_of_them.num_gpus, few_of_them.num_cells) == (2, 2, 1, 1)
    assert few_of_them.facts["power limit"] == "500 W" and many.facts["GPU"] == "NVIDIA H200"
    assert many.model is not None and many.model.peak_tflops.value == 989


def test_a_cell_of_several_ranks_counts_once() -> None:
    parallel = next(record for record in few() if record.cell.world > 1 and record.environment)
    assert parallel.environment is not None
    twice = parallel.environment.model_copy(update={"nodes": parallel.environment.nodes * 2})
    assert [
        machine.num_cells for machine in _of([parallel.model_copy(update={"environment": twice})]).machines
    ] == [1]


def test_versions_stand_with_their_cells() -> None:
    assert GPUS[0].environment is not None
    used = GPUS[0].environment.software
    other = used.model_copy(update={"packages": used.packages | {"torch": "2.99.0"}})
    changed = GPUS[0].model_copy(
        update={"environment": GPUS[0].environment.model_copy(update={"software": other})}
    )
    torch = next(entry for entry in _of([*GPUS[1:3], changed]).software if entry.name == "torch")
    assert torch.versions == ((used.packages["torch"], 2), ("2.99.0", 1))


def test_studies_have_their_days_code_and_pages() -> None:
    page = RunPage("h200", "../runs/h200.html", (), {}, "../runs/h200.parquet")
    later = GPUS[0].model_copy(update={"started_at": "2026-12-01T00:00:00Z", "run_id": "later"})
    (study,) = _of([*GPUS[1:], later], page).studies
    assert study.page is page and (study.num_cells, study.num_runs, study.first[:7], study.last) == (
        6,
        2,
        "2026-11",
        "2026-12-01",
    )
    assert GPUS[0].environment is not None
    sha = GPUS[0].environment.source.git_sha
    assert study.commits and sha is not None and study.commits[0].startswith(sha[:10])
    (quick,) = _of(few()).studies
    assert quick.page is None and quick.num_timed == sum(record.outcome.status == "ok" for record in few())


def test_the_order_of_records_changes_nothing() -> None:
    assert _of(list(reversed(GPUS))) == _of(GPUS)


def test_the_page_shows_it(text: str, page: Path) -> None:
    part = text[text.index('<section id="provenance">') :]
    assert 'href="../runs/quick.html"' in part and re.search(r"<td class=\"key\">torch</td>", part)
    assert "Software" in part and "Machines" in part and "1 run" in part and page.is_file()
