"""The chooser asks for GPU, corpus and window apart; masks that have none are in the map of each."""

import json
from pathlib import Path

import pytest

from longca.lab.report.build import build
from longca.lab.report.content.packing import page_data
from longca.lab.report.decide.script import described, switches
from longca.lab.report.decide.views import Decision, decision
from longca.lab.report.series import short_labels
from longca.lab.store.table import derived
from longca.lab.studies.record import Record
from tests.helpers.records import record
from tests.lab.report.test_answers import cell


def both(mask: str, gpu: str = "NVIDIA H200", **fields: object) -> list[Record]:
    """Two kernels under a mask."""
    return [record(cell(kernel, mask, **fields), gpu=gpu) for kernel in ("sdpa", "flex")]


def found(records: list[Record], *, apart: bool = False) -> Decision:
    decided = decision(derived(records), apart=apart)
    assert decided
    return decided


def by(decided: Decision, *names: str) -> dict[tuple[str, ...], list[str]]:
    return {tuple(getattr(view.place, name) for name in names): view.masks for view in decided.views}


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
    assert all(view.cases["causal"].device == view.place.gpu for view in decided.views)
    assert shown(found(both("causal"))) == {}


def test_kinds_of_masks_are_apart_where_a_page_asks_for_it() -> None:
    records = [*both("causal"), *both("block_sparse_uniform", mask_params={"block": 64, "density": 0.5})]
    assert [len(masks) for masks in by(found(records), "family").values()] == [2]
    apart = found(records, apart=True)
    assert {family: len(masks) for (family,), masks in by(apart, "family").items()} == {
        "dense": 1,
        "block-sparse": 1,
    }
    assert apart.default.place.family == "dense"


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("gpus", [("NVIDIA H200",), ("NVIDIA H100 80GB HBM3", "NVIDIA H200")])
def test_the_page_asks_for_a_gpu_where_there_are_two(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    records = [entry for gpu in gpus for entry in both("causal", gpu)]
    text = build(records, [], tmp_path / "page.html", study_title="x").read_text(encoding="utf-8")
    switches = json.dumps(page_data(text, "views"), separators=(",", ":"))
    assert ('["NVIDIA H100 80GB HBM3","H100"]' in switches) == (len(gpus) > 1)


def test_titles_have_short_names_of_gpus_where_these_stay_distinct():
    label = "paper compat · NVIDIA H100 80GB HBM3"
    assert short_labels([label, "NVIDIA H200"]) == {label: "paper compat · H100", "NVIDIA H200": "H200"}
    both = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 96GB HBM3"]
    assert short_labels(both) == {name: name for name in both}
