"""Small tables of the page: errors, machines and images, and sentences on its samples."""

import re
from typing import Any

import pytest

from longca.core.hardware import load_hardware
from longca.lab.report import tables
from longca.lab.report.build import build
from longca.lab.report.tables import steadiness, worst_errors
from longca.lab.store.table import derived
from longca.lab.studies.outcome import Unsupported
from longca.lab.studies.record import Record, Samples
from tests.helpers.compare import cell
from tests.helpers.records import gpu_study, quick_study, record
from tests.helpers.report.outline import Outline


def test_worst_errors_name_each_tensor_once():
    errors = worst_errors(quick_study())
    assert len({(row.method, row.direction, row.tensor) for row in errors}) == len(errors)
    (wrong,) = [row for row in errors if not row.right and row.tensor == "out"]
    assert wrong.method == "sdpa" and wrong.ratio > 1 and "prefix_lm" in wrong.where


def inside(entry: Record, image: str) -> Record:
    """The record as if it had been measured in an image, whose digest consists of these two letters; outside
    of any if empty."""
    assert entry.environment is not None
    contained = {"container": f"sha256:{image * 32}", "lock": f"sha256:{image[::-1] * 32}"} if image else {}
    software = entry.environment.software.model_copy(update=contained)
    return entry.model_copy(
        update={"environment": entry.environment.model_copy(update={"software": software})}
    )


@pytest.mark.parametrize(
    "images, finding",
    [
        (("", "", ""), ""),
        (("ab", "ab", "ab"), "3 cells were measured in 1 image"),
        (
            ("ab", "cd", "ab"),
            "3 cells were measured in 2 images: their software differs, and so can their numbers",
        ),
        (
            ("ab", "", ""),
            "1 cell was measured in 1 image, 2 outside of any: their software differs, and so can their "
            "numbers",
        ),
    ],
)
def test_records_of_several_images_are_told_apart(images, finding):
    used = tables.images(inside(entry, image) for entry, image in zip(gpu_study(), images, strict=False))
    assert tables.finding_of_images(used) == finding
    assert sum(use.num_cells for use in used) == (3 if finding else 0)


@pytest.mark.usefixtures("no_figures")
def test_a_page_of_several_images_warns_first_and_lists_them(tmp_path):
    chosen = [
        inside(entry, image) for entry, image in zip(gpu_study()[-9:], ("ab", "ab", "cd", ""), strict=False)
    ]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    warning, listed = re.search(
        r'<p class="warning"><svg.*?</svg>(.*?)</p>.*?id="images">(.*?)</table>', text, re.DOTALL
    ).groups()
    assert "3 cells were measured in 2 images, 1 outside of any" in warning and 'href="#images"' in warning
    assert re.findall(r"<td>(?:<code>)?(none|sha256:[a-d]{64})", listed)[:1] == [f"sha256:{'ab' * 32}"]
    assert listed.count("<tr>") == 4 and f"sha256:{'dc' * 32}" in listed
    Outline(text)


def test_alike_machines_are_one_and_their_differences_are_kept():
    node = quick_study()[0].environment.nodes[0]
    nodes = [node.model_copy(update={"hostname": name}) for name in ("a", "b", "b")]
    chosen = [
        entry.model_copy(update={"environment": entry.environment.model_copy(update={"nodes": (own,)})})
        for entry, own in zip(quick_study(), nodes, strict=False)
    ]
    (group,) = tables.machines(chosen, load_hardware())
    assert group.differing == ("host",) and "CPU" in group.shared and group.num_cells == 3
    assert [(row.values, row.num_cells) for row in group.rows] == [(("a",), 1), (("b",), 2)]


STEADY = (1.0,) * 12
RISING = tuple(1.0 + 0.01 * number for number in range(12))


def timed(times: tuple[float, ...], seqlen: int, **fields: Any) -> Record:
    samples = Samples(
        time_ms=(times,), warmup=9, timer="cuda_event", **{"duty": 0.5, "steady": True, **fields}
    )
    return record(cell(seqlen=seqlen), gpu="NVIDIA H100", samples=samples)


def test_drift_rests_precision_and_clocks_are_told():
    records = [
        timed(STEADY, 1024),
        timed(RISING, 2048),
        timed(RISING[::-1], 4096, steady=False),
        timed((1.0,) * 5, 8192),
        record(cell(seqlen=16384), Unsupported(reason="no"), gpu="NVIDIA H100"),
    ]
    texts = steadiness(derived(records))
    drift, precision, rests, clocks = texts.sentences
    assert drift.startswith("2 of 3 results drift: ") and "unknown for 1 more" in drift
    assert "in 1 of 3 results with six samples" in precision and clocks.startswith("In 1 of 4 results")
    assert rests == "GPUs rested after each call, busy for at most 50 % of the time."
    assert {drifting.text for drifting in texts.drifting} == {"+7.6 %", "-7.6 %"}


def test_records_without_rests_are_not_mixed_in_silence():
    old = timed(STEADY, 1024, duty=None, steady=None)
    new = timed(STEADY, 2048)
    assert "1 of 2 cells was measured by the protocol with rests: the other one is never ranked" in " ".join(
        steadiness(derived([old, new])).sentences
    )
    only_old = " ".join(steadiness(derived([old])).sentences)
    assert "without rests" in only_old and "not steady" not in only_old
    few = steadiness(derived([timed((1.0,) * 5, 1024, duty=None, steady=None)]))
    assert few.sentences[0].startswith("The drift of all results is unknown") and not few.drifting


def test_a_cpu_neither_rests_nor_is_told_to():
    samples = Samples(time_ms=(STEADY,), warmup=1, timer="monotonic")
    assert "rest" not in " ".join(steadiness(derived([record(cell(), samples=samples)])).sentences)
