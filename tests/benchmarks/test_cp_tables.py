"""Tests of the tables of context parallelism, on made-up records."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.cp.cells import Cells, Run
from benchmarks.cp.tables import other_masks, peers, shares
from benchmarks.cp.targets import targets
from tools.table import Table

HERE = Path(__file__).parents[2]


def _row(
    strategy: str = "",
    mask: str = "causal",
    world: int = 1,
    seqlen: int = 16384,
    tflops: float = 600.0,
    **changes: object,
) -> dict[str, object]:
    row = {
        "kind": "cp" if strategy else "kernel",
        "strategy": strategy,
        "strategy_params": "",
        "kernel": "band",
        "mask": mask,
        "world": world,
        "seqlen": seqlen,
        "direction": "fwd",
        "seed": 0,
        "status": "ok",
        "tflops_per_device": tflops,
        "above_shards_bytes": 1e9,
    }
    return {**row, **changes}


def _cells(*rows: dict[str, object]) -> Cells:
    return Cells(pd.DataFrame(rows))


def _lines(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _line(cells: Cells, start: str) -> dict[str, str]:
    return next(dict(record) for record in targets(cells).records if record["target"].startswith(start))


def test_a_share_is_that_of_the_same_mask_or_of_one_with_the_same_area() -> None:
    cells = _cells(
        _row(tflops=600),
        _row(seqlen=65536, tflops=500),
        _row(mask="full_document"),
        _row(mask="full_document", seqlen=65536),
        _row("ulysses", world=2, tflops=540),
        _row("usp", world=4, seqlen=131072, tflops=450),
        _row("usp", world=2, seqlen=131072),
        _row("usp", "full_document", 4, 131072),
    )
    assert cells.share(Run("ulysses", "band", "causal", 2, 8192), "fwd") == pytest.approx(0.9)
    assert cells.share(Run("usp", "band", "causal", 4, 32768), "fwd") == pytest.approx(0.9)
    assert cells.share(Run("usp", "band", "causal", 2, 65536), "fwd") is None
    assert cells.share(Run("usp", "band", "full_document", 4, 32768), "fwd") is None


def test_calls_with_rests_and_without_are_not_compared() -> None:
    rested = {"duty": 0.5}
    cells = _cells(
        _row(tflops=700, **rested),
        _row("ulysses", world=2, tflops=540),
        _row("usp", world=2, tflops=630, **rested),
        _row("torch_cp", world=2, tflops=500, kernel="cudnn"),
    )
    assert cells.share(Run("ulysses", "band", "causal", 2, 8192), "fwd") is None
    assert cells.share(Run("usp", "band", "causal", 2, 8192), "fwd") == pytest.approx(0.9)
    (line,) = _lines(shares(cells))
    assert (line["baseline"], line["ulysses"], line["usp"]) == ("700 / –", "540 / – T", "90 / –")
    assert _lines(peers(cells))[0]["strategies over `band`"] == "540 / –"
    assert _line(cells, "`band` over `torch_cp` (`cudnn`), causal, forward")["least"] == "1.08 ×"


def test_shares_stand_in_percent_and_rates_without_a_baseline() -> None:
    cells = _cells(
        _row(),
        _row("ulysses", world=2, tflops=540),
        _row("ulysses", world=2, tflops=540, status="incorrect", direction="bwd"),
        _row("ulysses", "full_document", 4, 131072, 327),
        _row("ulysses", "full_document", 4, 131072, 336, direction="bwd"),
    )
    first, second = _lines(shares(cells))
    assert (
        first["GPUs × tokens"] == "2 × 8K"
        and first["baseline"] == "600 / –"
        and first["ulysses"] == "90 / –"
        and first["usp"] == "–"
    )
    assert (
        second["GPUs × tokens"] == "4 × 32K"
        and second["baseline"] == "–"
        and second["ulysses"] == "327 / 336 T"
    )


def test_peers_stand_beside_the_strategies_over_their_kernel() -> None:
    fa2 = {"kernel": "fa2"}
    cells = _cells(
        _row(**fa2, seqlen=16384, tflops=380),
        _row("ring_flash_attn", world=2, tflops=350, **fa2),
        _row("usp", world=2, tflops=340, **fa2),
        _row("ulysses", world=2, tflops=360, **fa2),
        _row("ulysses", world=2, tflops=500),
        _row("ring_p2p", "sliding_window", 2, tflops=300),
    )
    (line,) = _lines(peers(cells))
    assert list(line.values())[2:] == [
        "`ring_flash_attn`, `fa2`",
        "350 / –",
        "380 / –",
        "340–360 / –",
        "500 / –",
    ]
    assert [line["mask"] for line in _lines(other_masks(cells))] == ["sliding_window"]


def test_a_target_is_met_where_every_cell_reaches_it() -> None:
    alone = _row(seqlen=65536, tflops=600)
    reached = _row("ulysses", world=2, seqlen=65536, tflops=570)
    title = "`band` over its single-GPU baseline, full and causal, 32K"
    assert _line(_cells(alone, reached), title)["verdict"] == "met"
    missed = _line(_cells(alone, reached, _row("usp", world=2, seqlen=65536, tflops=540)), title)
    assert (
        missed["verdict"] == "missed"
        and missed["least"] == "90 %"
        and missed["where"] == "usp, causal, 2 × 32K, forward"
    )
    assert missed["most"] == "95 %" and missed["reached in"] == "1 of 2"
    assert _line(_cells(alone), "`band` over `torch_cp`")["verdict"] == "not measured"


def test_each_strategy_has_its_best_kernel_against_torch() -> None:
    cells = _cells(
        _row("torch_cp", world=2, tflops=400, kernel="cudnn"),
        _row("usp", world=2, tflops=440),
        _row("ulysses", world=2, tflops=400),
        _row("usp", world=2, tflops=500, kernel="fa3"),
        _row("usp", world=2, tflops=900, kernel="fa3", direction="bwd"),
    )
    line = _line(cells, "each strategy over its best kernel")
    assert (
        line["least"] == "1.00 ×"
        and line["where"] == "ulysses, causal, 2 × 8K, over band, forward"
        and line["reached in"] == "1 of 2"
    )
    assert line["most"] == "1.25 ×" and line["most where"] == "usp, causal, 2 × 8K, over fa3, forward"


def test_means_are_over_what_both_ran_and_memory_must_not_grow() -> None:
    flex = [
        _row("torch_flex_cp", mask, 4, kernel="flex", tflops=100)
        for mask in ("prefix_lm", "shared_question", "sliding_window")
    ]
    own = [
        _row("usp", mask, 4, tflops=tflops)
        for mask, tflops in (("prefix_lm", 200), ("shared_question", 800), ("causal_blockwise", 9))
    ]
    line = _line(_cells(*flex, *own), "`band` over `torch_flex_cp`")
    assert line["least"] == "4.00 ×" and line["where"] == "usp, 2 masks, 2 cells" and line["verdict"] == "met"
    rings = [
        _row("ring_p2p", world=world, seqlen=world * 8192, above_shards_bytes=size)
        for world, size in ((2, 1 << 28), (4, 5 << 26))
    ]
    assert (
        _line(_cells(*rings), "memory")["most"] == "1.25 ×"
        and _line(_cells(*rings), "memory")["verdict"] == "missed"
    )


def test_the_pages_have_a_place_for_each_table(tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("context-parallelism.md", "peers.md")]
    for page in pages:
        page.write_text(
            (HERE / "docs/results/h200" / page.name).read_text(encoding="utf-8"), encoding="utf-8"
        )
    cells = _cells(_row(), _row("ulysses", world=2))
    for table in (shares(cells), targets(cells), other_masks(cells), peers(cells)):
        table.write_into(*pages)
    assert "| 2 × 8K | causal | 600 / – | 100 / – |" in pages[0].read_text(encoding="utf-8")
    assert "TFLOP/s of a GPU, forward / backward: a peer" in pages[1].read_text(encoding="utf-8")
