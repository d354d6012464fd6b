"""The script's data: the numbers of every view, and switches for GPU, corpus and window. Masks that have none
of these are in the map of each."""

import json
from pathlib import Path

import pytest

from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data, unpacked
from longca.lab.report.decide.script import described, switches, views_json
from longca.lab.report.decide.views import Decision, decision
from longca.lab.report.series import Unit
from longca.lab.store.table import derived
from longca.lab.store.text import number
from longca.lab.studies.outcome import OutOfMemory
from longca.lab.studies.record import Record
from tests.helpers.records import gpu_study, record
from tests.helpers.report.cases import both, cell, timed

UNIT = Unit(1.0, "TFLOP/s")


def test_methods_without_any_number_or_rank_are_left_out():
    lost = OutOfMemory(requested_bytes=None, where="fwd")
    table = derived(
        [
            timed("sdpa", "causal", 1.0, 1.0),
            timed("flex", "causal", 2.0, 2.0),
            record(cell("naive", "causal"), lost),
            record(cell("as_released_flex", "causal"), lost),
        ]
    )
    decided = decision(table)
    assert decided and set(decided.default.missing) == {("causal", "naive")}
    data = json.loads(views_json(decided, {cell_id: row for row, cell_id in enumerate(table.cell_id)}, UNIT))
    assert data["methods"] == ["flex", "sdpa"] and data["views"][0]["missing"] == []


def test_the_script_has_the_numbers_of_every_view():
    table = derived(
        [entry for entry in gpu_study() if entry.cell.mask in ("full", "causal_document", "sliding_window")]
    )
    decided = decision(table)
    assert decided
    rows = {cell_id: row for row, cell_id in enumerate(table.cell_id)}
    data = json.loads(views_json(decided, rows, UNIT))
    assert (
        len(data["views"]) == len(decided.views) == 16 and data["default"]["seqlen"] == decided.default.seqlen
    )
    for view, packed in zip(decided.views, data["views"], strict=True):
        assert [data["masks"][mask] for mask in packed["masks"]] == view.masks
        assert [data["methods"][name] for name, *_ in packed["columns"]] == [
            column.method for column in view.columns
        ]
        assert packed["verdicts"] == [view.verdicts[mask] for mask in view.masks]
        names = ("mask", "method", "rate", "ms", "percent", "rank", "margin", "row", "state")
        assert packed["count"] == len(view.entries)
        columns = (unpacked(packed["entries"][column], packed["count"]) for column in names)
        for mask, name, rate, ms, share, rank, margin, row, state in zip(*columns, strict=True):
            entry = view.entries[data["masks"][mask], data["methods"][name]]
            assert (rate, ms, share, rank, margin) == (
                number(entry.tflops),
                number(entry.ms),
                entry.percent,
                entry.rank,
                entry.margin,
            )
            assert data["states"][state]["frame"] == entry.frame
            assert table.method[row] == data["methods"][name] and table["mask"][row] == data["names"][mask]
        for mask in view.masks:
            shares = [entry.share for _, entry in view.ranking(mask)]
            assert shares[0] == 1 and shares == sorted(shares, reverse=True)
            for entry in (entry for _, entry in view.ranking(mask) if not entry.is_alone):
                assert int(float(entry.percent)) == int(entry.text)


def found(records: list[Record], *, apart: bool = False) -> Decision:
    decided = decision(derived(records), apart=apart)
    assert decided
    return decided


def by(decided: Decision, *names: str) -> dict[tuple[str, ...], list[str]]:
    return {tuple(getattr(view.switches, name) for name in names): view.masks for view in decided.views}


def shown(decided: Decision) -> dict[str, list[str]]:
    """Label → texts of the switches with a choice."""
    return {
        switch["label"]: [text for _, text in switch["options"]]
        for switch in switches(decided.views)
        if len(switch["options"]) > 1
    }


def test_corpora_have_a_switch_and_masks_without_documents_are_in_the_map_of_each() -> None:
    corpora = [entry for corpus in ("pile", "prolong64k") for entry in both("causal_document", corpus=corpus)]
    decided = found([*both("causal"), *corpora])
    assert by(decided, "corpus") == {
        ("pile",): ["causal", "causal_document"],
        ("prolong64k",): ["causal", "causal_document"],
    }
    assert shown(decided) == {"Documents of": ["pile", "prolong64k"]}
    assert described(decided.default, decided) == "1K tokens · documents of pile · forward"
    view, other = decided.views
    assert view.entries["causal", "flex"] == other.entries["causal", "flex"]
    assert view.entries["causal_document", "flex"].cell_id != other.entries["causal_document", "flex"].cell_id


def test_windows_have_a_switch_and_other_masks_are_in_the_map_of_each() -> None:
    windows = [
        entry for window in (64, 256) for entry in both("sliding_window", mask_params={"window": window})
    ]
    decided = found([*both("causal"), *windows])
    assert by(decided, "window") == {
        ("64",): ["causal", "sliding_window · window 64"],
        ("256",): ["causal", "sliding_window · window 256"],
    }
    assert shown(decided) == {"Window": ["64", "256"]}
    assert [described(view, decided) for view in decided.views] == [
        "1K tokens · window 256 · forward",
        "1K tokens · window 64 · forward",
    ]


def test_one_corpus_and_one_window_are_named_and_not_asked_for() -> None:
    decided = found(
        [*both("causal_document", corpus="pile"), *both("sliding_window", mask_params={"window": 64})]
    )
    assert shown(decided) == {} and len(decided.views) == 1
    assert described(decided.default, decided) == "1K tokens · documents of pile · window 64 · forward"


def test_two_gpus_have_a_switch_and_one_has_none() -> None:
    gpus = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    decided = found([entry for gpu in gpus for entry in both("causal", gpu)])
    assert by(decided, "gpu", "heads") == {(gpu, ""): ["causal"] for gpu in gpus}
    assert shown(decided) == {"GPU": ["H100", "H200"]}
    assert all(view.cases["causal"].device == view.switches.gpu for view in decided.views)
    assert shown(found(both("causal"))) == {}


def test_kinds_of_masks_are_apart_where_a_page_asks_for_it() -> None:
    records = [*both("causal"), *both("block_sparse_uniform", mask_params={"block": 64, "density": 0.5})]
    assert [len(masks) for masks in by(found(records), "family").values()] == [2]
    apart = found(records, apart=True)
    assert {family: len(masks) for (family,), masks in by(apart, "family").items()} == {
        "dense": 1,
        "block-sparse": 1,
    }
    assert apart.default.switches.family == "dense"


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("gpus", [("NVIDIA H200",), ("NVIDIA H100 80GB HBM3", "NVIDIA H200")])
def test_the_page_asks_for_a_gpu_where_there_are_two(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    records = [entry for gpu in gpus for entry in both("causal", gpu)]
    text = build(records, [], tmp_path / "page.html", study_title="x").read_text(encoding="utf-8")
    switches = json.dumps(page_data(text, "views"), separators=(",", ":"))
    assert ('["NVIDIA H100 80GB HBM3","H100"]' in switches) == (len(gpus) > 1)
