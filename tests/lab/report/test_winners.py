"""The fastest methods of each mask and of each family of masks."""

import re

from longca.lab.report.answers import tiles
from longca.lab.report.winners import Winner, rankings
from longca.lab.store.table import derived
from longca.lab.studies.outcome import OutOfMemory
from tests.helpers.records import record
from tests.helpers.report.cases import cell, repeated


def test_counts_and_families_leave_repeats_out():
    (tile,) = (tile for tile in tiles(derived(repeated())) if "Leading" in tile.label)
    assert (tile.value, tile.detail) == (
        "flex",
        "leads alone on 1 of 1 mask; against 1 other; none played off",
    )
    family, usual, paper = rankings(derived(repeated()))[0].rows
    assert isinstance(family.winners["fwd"], Winner) and family.winners["fwd"].method == "flex"
    assert [
        row.winners["fwd"].method for row in (usual, paper) if isinstance(row.winners["fwd"], Winner)
    ] == ["flex", "naive"]


def test_a_family_is_won_by_a_kernel_that_ran_all_of_it():
    records = [
        record(cell("naive", "causal"), tflops=1.0),
        record(cell("naive", "full"), tflops=1.0),
        record(cell("sdpa", "causal"), tflops=9.0),
        record(cell("sdpa", "full"), OutOfMemory(requested_bytes=None, where="fwd")),
    ]
    (ranking,) = rankings(derived(records))
    family, *masks = ranking.rows
    assert ranking.length == "1K" and family.is_family
    assert family.winners["fwd"].startswith("only naive ran all 2 masks: ")
    full, causal = (row.winners["fwd"] for row in masks)
    assert full.startswith("only naive ran: ") and "not asked" not in full and causal.method == "sdpa"
    more, *_ = rankings(
        derived(
            [*records, record(cell("flex", "causal"), tflops=2.0), record(cell("flex", "full"), tflops=3.0)]
        )
    )[0].rows
    assert more.winners["fwd"].method == "flex" and "; first of 2; 1 could not" in more.winners["fwd"].rest
    assert family.winners["bwd"] == "not timed" and isinstance(causal, Winner)


def test_strategies_are_ranked_by_ranks_and_tokens():
    def parallel(strategy, world, seqlen, tflops, mask="causal"):
        return record(cell("sdpa", mask, seqlen, kind="cp", strategy=strategy, world=world), tflops=tflops)

    records = [
        parallel("ulysses", 2, 4096, 9.0),
        parallel("usp", 2, 4096, 5.0),
        parallel("usp", 4, 4096, 3.0),
        record(cell("naive")),
        *(
            parallel(name, 4, 32768, speed, mask)
            for mask in ("full", "causal")
            for name, speed in (("usp", 1.0), ("ulysses", 0.5))
        ),
        *(parallel(f"{name}_{number}", 4, 32768, 2.0) for name in ("ring", "torch") for number in "abc"),
    ]
    first, third = rankings(derived(records), "cp")
    assert [ranking.setting for ranking in (first, third)] == [
        "2 ranks × 2K tokens",
        "4 ranks × 8K tokens",
    ] and third.length == "32K"
    assert first.rows[1].winners["fwd"].method == "ulysses+sdpa"
    assert "; first of 2; 6 were not asked" in third.rows[0].winners["fwd"].rest
    assert rankings(derived(records)) == [], "a kernel alone is ahead of nobody"


def test_winners_are_held_against_the_ceiling_of_their_own_device():
    actual = []
    for gpu, tflops in (("NVIDIA H200", 370.0), ("NVIDIA A100-SXM4-80GB", 185.0)):
        actual += [
            record(cell("naive"), tflops=9.0, gpu=gpu),
            record(cell(), tflops=tflops, gpu=gpu),
            record(cell("matmul", "full", 8192), gpu=gpu),
        ]
    shares = {ranking.setting: ranking.rows[1].winners["fwd"].rest for ranking in rankings(derived(actual))}
    assert {setting: re.search(r"(\d+) % of ceiling", rest)[1] for setting, rest in shares.items()} == {
        "NVIDIA A100-SXM4-80GB": "25",
        "NVIDIA H200": "50",
    }
    (alone,) = rankings(derived(actual[:2]))
    assert "ceiling" not in alone.rows[1].winners["fwd"].rest


def test_settings_are_told_apart():
    records = [
        record(cell(kernel, num_kv_heads=heads), tflops=heads)
        for heads in (2, 8)
        for kernel in ("sdpa", "naive")
    ]
    assert [ranking.setting for ranking in rankings(derived(records))] == ["8:2 heads", "8:8 heads"]
