"""Tests of the benchmark of adapters, on a CPU."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.kernels import adapter_cost, by_hand
from benchmarks.kernels.adapter_cost import HANDS, Row, cells, kept, main, parse, table, without_hand
from longca.core.plugin import Registry
from tools.table import read_records

MEASURED = Row("sdpa", "8K causal", adapter_ms=1.01, by_hand_ms=1.0, difference=0.01, iqr=0.002)


def test_no_kernel_is_left_out_silently() -> None:
    attention = {
        name for name in Registry("kernel").names() if Registry("kernel").load(name).family != "control"
    }
    others = without_hand()
    assert HANDS.keys() | {row.kernel for row in others} == attention
    assert all(row.reason for row in others) and not HANDS.keys() & {row.kernel for row in others}


def test_hands_do_not_go_through_adapters() -> None:
    tree = ast.parse(Path(by_hand.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in modules if name.startswith("longca")} == {
        "longca.ops",
        "longca.ops.flashmask.forward",
        "longca.ops.flashmask.backward",
    }  # this project's own


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (MEASURED, "yes"),
        (replace(MEASURED, difference=-0.3), "yes"),
        (replace(MEASURED, difference=0.013), "no"),
        (replace(MEASURED, difference=0.013, iqr=0.004), "within the noise"),
        (Row("fa2", "8K causal", reason="gone"), "–"),
    ],
)
def test_verdicts(row: Row, verdict: str) -> None:
    assert row.verdict() == verdict


def test_table_shows_times_or_the_reason() -> None:
    made = table([MEASURED, Row("fa2", "8K causal", reason="gone")], "caption")
    assert made.rows == (
        ("sdpa", "8K causal", "1.010", "1.000", "+1.0 %", "0.2 %", "yes", "F.scaled_dot_product_attention"),
        ("fa2", "8K causal", "–", "–", "–", "–", "–", "gone"),
    )


def test_runs_what_it_can_and_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--kernels",
        "sdpa,fa2_sparse",
        "--lengths",
        "64,128",
        "--blocks-length",
        "128",
        "--heads",
        "4:2",
        "--out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    rows = [Row.read(record) for record in read_records(tmp_path, adapter_cost.NAME)]
    assert rows[6:] == without_hand()
    rows = rows[:6]
    assert [(row.kernel, row.cell.split()[0], row.cell[-3:]) for row in rows] == [
        ("fa2_sparse", "128", "fwd"),
        ("fa2_sparse", "128", "bwd"),
        ("sdpa", "64", "fwd"),
        ("sdpa", "64", "bwd"),
        ("sdpa", "128", "fwd"),
        ("sdpa", "128", "bwd"),
    ]
    assert all(row.reason == "Triton compiles for GPUs only" for row in rows[:2])
    assert all(
        row.adapter_ms and row.by_hand_ms and row.iqr is not None and not row.reason for row in rows[2:]
    )
    assert "128 causal, 4:2, bwd" in capsys.readouterr().out


def test_rows_that_come_too_late_are_named_and_can_be_added(tmp_path: Path) -> None:
    arguments = ["--kernels", "sdpa", "--lengths", "64", "--heads", "2:2", "--out", str(tmp_path)]
    main([*arguments, "--max-seconds", "-1"])
    assert "not begun" in (tmp_path / "adapter_cost.md").read_text()
    added = kept(parse([*arguments, "--keep"]), [MEASURED])
    others = without_hand()
    assert [row.cell for row in added] == [
        "64 causal, 2:2, fwd",
        "64 causal, 2:2, bwd",
        "8K causal",
        *(row.cell for row in others),
    ]
    assert kept(parse(arguments), [MEASURED]) == [MEASURED, *others]
    again = kept(parse([*arguments, "--keep"]), [replace(MEASURED, cell=added[0].cell)])
    assert [row.cell for row in again[:2]] == [added[1].cell, added[0].cell] and again[1].by_hand_ms == 1.0


def test_what_differs_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(given: by_hand.Given) -> by_hand.Hand:
        return by_hand.by_autograd(
            given, "BHTD", lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v)
        )

    monkeypatch.setitem(adapter_cost.HANDS, "sdpa", (full, "no mask"))
    cell = next(cells(parse(["--kernels", "sdpa", "--lengths", "64", "--heads", "2:2"])))
    assert "the results of the two calls are" in adapter_cost.measured(cell, torch.device("cpu")).reason


def test_layouts_come_back() -> None:
    x_THD = torch.randn(6, 4, 8)
    for there, back in by_hand.LAYOUTS.values():
        assert torch.equal(back(there(x_THD)), x_THD)


def test_lists_of_blocks_are_ascending() -> None:
    visible = torch.tensor([[[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]]], dtype=torch.bool)
    lists, counts = by_hand.block_lists(visible)
    assert counts.tolist() == [[2, 3, 1]] and lists.dtype == counts.dtype == torch.int32
    assert [line[:count] for line, count in zip(lists[0].tolist(), counts[0].tolist(), strict=True)] == [
        [1, 3],
        [0, 1, 2],
        [3],
    ]


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_flex_by_hand_agrees_on_cpu(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiles:
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    cell = next(cells(parse(["--kernels", "flex", "--lengths", "128", "--heads", "2:2"])))
    row = adapter_cost.measured(cell, torch.device("cpu"))
    assert row.adapter_ms or "compiler" in row.reason, row.reason


def test_options() -> None:
    options = parse(["--kernels", "fa3,vsa", "--lengths", "8K,1K", "--write", "docs/results/h200/timer.md"])
    assert (
        options.kernels == ["vsa", "fa3"]
        and options.lengths == [8192, 1024]
        and options.write == [Path("docs/results/h200/timer.md")]
    )
    for wrong in (["--kernels", "fa9"], ["--lengths", "many"]):
        with pytest.raises(SystemExit):
            parse(wrong)
