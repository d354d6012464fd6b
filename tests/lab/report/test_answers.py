"""Sentences of the page follow from the numbers."""

import re

import pytest

from longca.lab.ranking.sentences import counts_text
from longca.lab.report.answers import tiles
from longca.lab.report.decide.views import decision
from longca.lab.report.findings import at_largest, leaders, leaders_text, standings_of
from longca.lab.report.matrix import matrices, reasons
from longca.lab.report.rates import rate_points
from longca.lab.report.series import labelled, mask_order, rate_unit
from longca.lab.report.tables import worst_errors
from longca.lab.report.winners import Winner, rankings
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Incorrect, OutOfMemory
from longca.lab.studies.record import Samples
from tests.helpers.records import quick_study, record


def cell(kernel="sdpa", mask="causal", seqlen=1024, **fields):
    return Cell(
        **{
            "kind": "kernel",
            "kernel": kernel,
            "mask": mask,
            "seqlen": seqlen,
            "num_q_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 64,
            "dtype": "bf16",
            "direction": "fwd",
            **fields,
        }
    )


def rates(records):
    return rate_points(derived(records), "kernel", ["direction", "seqlen"])


def judged(records):
    """Mask → (length, standing) at which it is judged."""
    return {
        mask: chosen
        for (mask,), chosen in at_largest(standings_of(rates(records), ["mask_label", "seqlen"])).items()
    }


def told(records):
    return counts_text({mask: case for mask, (_, case) in judged(records).items()})


def timed(kernel, *times, **fields):
    return record(cell(kernel, **fields), samples=Samples(time_ms=(times,), warmup=1, timer="monotonic"))


def test_nothing_is_the_fastest_where_nothing_else_ran():
    """The longest length that two ran counts; a method that is alone under a mask has beaten nobody."""
    records = [
        record(cell("naive", seqlen=512), tflops=9.0),
        record(cell("sdpa", seqlen=512), tflops=1.0),
        record(cell("sdpa"), tflops=3.0),
        record(cell("sdpa", "full"), tflops=4.0),
    ]
    verdicts = judged(records)
    assert (verdicts["causal"][0], verdicts["causal"][1].leaders) == (512, ("naive",)) and not verdicts[
        "full"
    ][1].is_compared
    assert told(records).startswith("naive leads on the one mask, against 1 other")
    rows = {row.title: row.winners["fwd"] for row in rankings(derived(records))[0].rows}
    assert rows["causal"].method == "naive" and re.fullmatch(
        r"only sdpa ran: [\d.]+ TFLOP/s at 1K; 1 other not asked", rows["full"]
    )
    assert not [tile for tile in tiles(derived(records[2:])) if "Leading" in tile.label]


def test_places_shares_and_ties():
    records = [timed("naive", 1.0, 1.1, 1.2), timed("sdpa", 1.0, 1.05, 1.2), timed("flex", 2.1, 2.1, 2.1)]
    (case,) = standings_of(rates(records), ["mask_label"]).values()
    assert [entry.method for entry in case.entries] == ["sdpa", "naive", "flex"] and case.leaders == (
        "sdpa",
        "naive",
    )
    assert [entry.share for entry in case.entries] == pytest.approx([1, 1.05 / 1.1, 0.5])
    assert leaders(rates(records), ["mask_label"], 2) == ["sdpa", "naive"]


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


def test_the_fastest_is_judged_at_the_longest_length():
    records = [
        record(cell("naive", seqlen=512), tflops=9.0),
        record(cell("sdpa", seqlen=512), tflops=1.0),
        record(cell("naive"), tflops=2.0),
        record(cell("sdpa"), tflops=3.0),
    ]
    seqlen, case = judged(records)["causal"]
    assert (seqlen, case.winner, case.leaders, case.second.method) == (1024, "", ("sdpa",), "naive")
    assert case.lead.ratio == pytest.approx(1.5, rel=0.1)


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


def test_a_lead_within_what_repeats_differ_by_is_a_tie():
    assert (
        told([timed("naive", 1.0, 1.1, 1.2), timed("sdpa", 1.0, 1.05, 1.2)])
        == "No method leads alone on the one mask, against 1 other"
    )
    assert told([timed("naive", 1.0, 1.1, 1.2), timed("sdpa", 0.5, 0.55, 0.6)]).startswith(
        "sdpa leads on the one mask"
    )


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


def test_an_incorrect_result_never_wins():
    records = [record(cell("naive"), Incorrect(reason="wrong")), record(cell("sdpa"), tflops=1.0)]
    data = rates(records)
    assert data.value[data.method == "naive"].isna().all() and list(data.status[data.method == "naive"]) == [
        "incorrect"
    ]
    assert told(records) == "Only sdpa ran"


def test_rows_as_released_are_never_ranked():
    records = [
        record(cell("sdpa"), tflops=1.0),
        record(cell("naive"), tflops=0.5),
        record(cell("as_released_naive"), tflops=9.0),
    ]
    assert set(rates(records).method) == {"sdpa", "naive"}
    [ranking] = rankings(derived(records))
    assert "as_released" not in str(ranking)
    assert any("as_released_naive" in str(matrix) for matrix in matrices(derived(records))), (
        "the page has them all the same"
    )


def test_claims_count_masks():
    records = [
        record(cell(kernel, mask), tflops=speed)
        for mask, speeds in {"causal": (1.0, 2.0), "full": (1.0, 4.0), "prefix_lm": (3.0, 1.0)}.items()
        for kernel, speed in zip(("naive", "sdpa"), speeds, strict=True)
    ]
    assert told(records) == "sdpa leads on 2 of 3 masks, naive on 1, against 1 other, by up to 3.9×"
    assert told([]) == "Nothing could be timed"


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


def test_masks_that_differ_in_parameters_have_labels_that_say_so():
    table = labelled(
        derived(
            [record(cell(mask="sliding_window", mask_params={"window": window})) for window in (128, 256)]
            + [record(cell(mask="global_sliding_window", mask_params={"window": 64, "num_global": 2}))]
        )
    )
    assert list(table.mask_label) == [
        "sliding_window · window 128",
        "sliding_window · window 256",
        "global_sliding_window",
    ]


def test_masks_stand_from_dense_to_sparse_family_by_family():
    order = mask_order(labelled(derived(quick_study())))
    assert order[:2] == ["full", "prefix_lm"] and order[-3:] == [
        "block_sparse_variable",
        "block_sparse_uniform · density 0.5",
        "block_sparse_uniform · density 0.2",
    ]
    assert order.index("causal") < order.index("full_document")


def test_block_masks_stand_by_the_density_asked_then_by_block():
    """Whatever densities came out: that of the smaller blocks is nearer to what was asked."""
    asked = [(block, density) for density in (0.2, 0.8) for block in (128, 64)]
    records = [
        record(cell(mask="block_sparse_uniform", mask_params={"block": block, "density": density}))
        for block, density in asked
    ]
    assert mask_order(labelled(derived(records))) == [
        f"block_sparse_uniform · block {block} · density {density}"
        for density in (0.8, 0.2)
        for block in (64, 128)
    ]


def test_seeds_are_one_point_with_a_wider_spread():
    records = [
        record(cell(mask="causal_document", corpus="pile", seed=seed), tflops=speed)
        for seed, speed in enumerate((1.0, 2.0, 4.0))
    ]
    (point,) = rates(records).itertuples()
    assert (
        point.num_cells == 3
        and point.value == pytest.approx(2.0, rel=0.1)
        and point.low < 1.05
        and point.high > 3.8
    )


def test_the_matrix_shows_the_worst_and_says_why():
    records = [
        record(cell(seqlen=512)),
        record(cell(), OutOfMemory(requested_bytes=1 << 30, where="fwd")),
        record(cell("naive")),
    ]
    (matrix,) = matrices(derived(records))
    ((label, entries),) = matrix.rows
    assert matrix.methods == ["sdpa", "naive"] and label == "causal"
    assert (entries[0].status, entries[0].text, entries[0].partly) == ("oom", "1/2", True)
    assert (
        "ok: 512" in entries[0].tip
        and "oom: 1K – out of memory in fwd, asking for 1.00 GiB" in entries[0].tip
    )
    assert entries[0].link == "#records?method=sdpa&mask=causal&direction=fwd"
    assert entries[1] is None and entries[2].text == "ok"


def test_reasons_are_grouped_gravest_first():
    grouped = reasons(derived(quick_study()))
    assert [reason.status for reason in grouped] == [
        "incorrect",
        "implausible",
        "error",
        "timeout",
        "oom",
        "unavailable",
        "unsupported",
    ]
    assert sum(reason.count for reason in grouped) == sum(
        entry.outcome.status != "ok" for entry in quick_study()
    )


def test_tiles_count_what_is_there():
    actual = {tile.label: tile for tile in tiles(derived(quick_study()))}
    assert (
        actual["Cells measured"].value == "232 of 281" and "42 unsupported" in actual["Cells measured"].detail
    )
    assert "1 cell beyond it" in actual["Largest ratio of error to budget"].detail


def test_worst_errors_name_each_tensor_once():
    errors = worst_errors(quick_study())
    assert len({(row.method, row.direction, row.tensor) for row in errors}) == len(errors)
    (wrong,) = [row for row in errors if not row.right and row.tensor == "out"]
    assert wrong.method == "sdpa" and wrong.ratio > 1 and "prefix_lm" in wrong.where


def test_rates_have_few_digits():
    assert rate_unit(0.06).text(0.0613) == "61.3 GFLOP/s" and rate_unit(600.0).span(5.0, 612.3) == "5.00–612"


def test_settings_stand_in_the_order_of_their_numbers():
    records = [
        record(cell(kernel, num_q_heads=64, num_kv_heads=heads), tflops=speed)
        for heads in (64, 8)
        for kernel, speed in (("sdpa", 2.0), ("naive", 1.0))
    ]
    assert [ranking.setting for ranking in rankings(derived(records))] == ["64:8 heads", "64:64 heads"]
    data = rates(records)
    assert list(dict.fromkeys(data.detail)) == ["64:8 heads", "64:64 heads"]
