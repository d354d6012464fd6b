"""The tables of leaks, of the face's cost and of a fixed order, at toy size on two CPU processes."""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cp.cells import OWN
from benchmarks.cp.leaks import counts, may_change, report, table
from benchmarks.cp.public import line
from benchmarks.cp.reduction import line as reduction_line
from longca.cp.comm.backend import Comm
from longca.cp.context import context_parallel
from longca.masks import build_mask
from tests.helpers.cp.ranks import on_ranks

HEADS = (4, 2)
HEAD_DIM = 8
TOKENS = 65
MASKS = ("causal_document", "full_document", "global_sliding_window")


def both_tables(comm: Comm, folder: Path) -> dict[str, Any]:
    options = argparse.Namespace(kernel="naive", tokens=32, heads=HEADS, head_dim=HEAD_DIM, rounds=1)
    leaks = argparse.Namespace(
        kernel="auto",
        tokens=TOKENS,
        heads=HEADS,
        head_dim=HEAD_DIM,
        perturbed=3,
        masks=MASKS,
        out=folder,
        write=[],
    )
    report(comm, leaks)
    return {"line": line(comm, options, "causal_document", "ring_allgather"), "leak": a_leak(comm)} | {
        strategy: reduction_line(comm, options, "causal", strategy) for strategy in ("ring_p2p", "ulysses")
    }


def a_leak(comm: Comm) -> dict[str, int]:
    """Counts of attention that shows more than its mask says: such a leak must be seen."""
    documents = build_mask("causal_document", seqlen=TOKENS, documents=np.array([30, 35]))
    cp = context_parallel(
        build_mask("causal", seqlen=TOKENS),
        strategy="ring_p2p",
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        dtype=torch.float32,
    )
    cp.masks = (documents,)
    actual = counts(cp, 3, (*HEADS, HEAD_DIM))
    cp.close()
    return actual


@pytest.mark.long
def test_no_mask_leaks_a_leak_is_seen_and_the_face_has_the_bits_of_a_cell(tmp_path: Path):
    first, _ = on_ranks(both_tables, 2, tmp_path)
    lines = list(csv.DictReader((tmp_path / "cp_leaks.csv").open()))
    assert [(row["mask"], row["strategy"]) for row in lines] == [
        (mask, strategy) for mask in MASKS for strategy in OWN
    ]
    for row in lines:
        assert row["expected"] == row["observed"] and int(row["expected"]) > 0
        assert row["leaks"] == row["missing"] == "0"
    assert first["leak"] == {"expected": 30 + 33 + 1, "observed": 65 + 33 + 1, "leaks": 35, "missing": 0}
    assert first["line"]["same_bits"]
    assert first["ring_p2p"]["fixed_bits"] == first["ulysses"]["fixed_bits"]
    assert first["ring_p2p"]["fast_bits"] != first["ulysses"]["fast_bits"]
    assert min(first["line"][f"{way}_{what}_ms"] for way in ("fwd", "bwd") for what in ("cell", "face")) > 0


def test_the_table_says_what_leaked():
    record = {"expected": 5, "observed": 7, "leaks": 2, "missing": 0}
    actual = table([{"mask": "causal", "strategy": strategy, **record} for strategy in OWN], "Here.")
    assert actual.caption.startswith(
        "35 outputs changed in all: 10 that its mask forbids, and none was missing"
    )
    assert actual.rows == (("`causal`", "5", *["7 (2 leaks)"] * 5),)


def test_what_may_change_is_a_column_of_the_mask_and_the_token_itself():
    mask = build_mask("causal_document", seqlen=6, documents=np.array([3, 3]))
    assert may_change(mask, 1).tolist() == [False, True, True, False, False, False]
