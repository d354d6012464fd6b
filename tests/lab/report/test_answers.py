"""The numbers of the headline: cells, and the fastest method of each device and kind."""

from longca.lab.report.answers import tiles
from longca.lab.report.decide.views import decision
from longca.lab.report.findings import leaders_text, standings_of
from longca.lab.store.table import derived
from tests.helpers.records import quick_study, record
from tests.helpers.report.cases import cell, rates


def test_strategies_stand_before_kernels():
    labels = [tile.label for tile in tiles(derived(quick_study()))]
    parallel = [
        record(cell("sdpa", kind="cp", strategy=name, world=2), tflops=speed)
        for name, speed in (("ulysses", 9.0), ("usp", 5.0))
    ]
    kernels = [record(cell(name), tflops=speed) for name, speed in (("naive", 1.0), ("sdpa", 2.0))]
    shown_tiles = tiles(derived(kernels + parallel))
    assert [(tile.label, tile.value) for tile in shown_tiles if "Leading" in tile.label] == [
        ("Leading strategy, forward", "ulysses+sdpa"),
        ("Leading kernel alone, forward", "sdpa"),
    ]
    assert (
        shown_tiles[1].detail
        == "leads alone on 1 of 1 combination of mask, ranks and length; against 1 other; none played off"
    )
    assert "Leading kernel alone, forward" in labels
    assert {tile.link for tile in shown_tiles if "strategy" in tile.label} == {"#fastest-cp"}
    assert {tile.link for tile in tiles(derived(kernels + parallel), ["cp"]) if "Leading" in tile.label} == {
        "#fastest"
    }


def test_a_page_has_one_answer_to_who_leads():
    """Its headline and its finding are of one setting; at a length that few masks have, another may lead."""
    speeds = {512: {"naive": 2.0, "sdpa": 1.0}, 1024: {"naive": 1.0, "sdpa": 2.0}}
    masks = {512: ("causal", "full", "prefix_lm"), 1024: ("causal", "full")}
    records = [
        record(cell(kernel, mask, seqlen), tflops=speed)
        for seqlen, of_length in speeds.items()
        for kernel, speed in of_length.items()
        for mask in masks[seqlen]
    ]
    table = derived(records)
    decided = decision(table)
    assert decided and "naive leads alone in all 3 cases" in decided.finding
    (tile,) = [tile for tile in tiles(table, decided=decided) if "Leading" in tile.label]
    assert (tile.value, tile.link) == ("naive", "#decide")
    assert tile.detail.startswith("at 512 tokens: leads alone on 3 of 3 masks; against 1 other")


def test_devices_have_tiles_of_their_own():
    records = [
        record(cell(kernel), tflops=speed, gpu=gpu)
        for gpu, speeds in (("NVIDIA H200", (2.0, 1.0)), ("NVIDIA A100", (1.0, 2.0)))
        for kernel, speed in zip(("sdpa", "naive"), speeds, strict=True)
    ]
    text = leaders_text(standings_of(rates(records), ["mask_label", "setting"]), "mask")
    assert (
        text.startswith("on NVIDIA A100 naive leads on the one mask")
        and "; on NVIDIA H200 sdpa leads on the one mask" in text
    )
    actual = {tile.label: tile.value for tile in tiles(derived(records)) if "Leading" in tile.label}
    assert actual == {
        "Leading kernel, forward, NVIDIA H200": "sdpa",
        "Leading kernel, forward, NVIDIA A100": "naive",
    }


def test_tiles_count_what_is_there():
    actual = {tile.label: tile for tile in tiles(derived(quick_study()))}
    assert (
        actual["Cells measured"].value == "232 of 281" and "42 unsupported" in actual["Cells measured"].detail
    )
    assert "1 cell beyond it" in actual["Largest ratio of error to budget"].detail
