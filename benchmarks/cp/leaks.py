"""Counts leaks: one token is perturbed, and the outputs that change are compared with those that the mask
lets change.

    python -m benchmarks.cp.leaks --device cpu --ranks 4 [--write docs/guide/context-parallel.md]

For each mask and strategy, q, k and v of a token change, one token after another. An output may change where
its query sees the token, and that of the token itself where it sees anything. Outputs are compared bit by
bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.common.text import machine
from benchmarks.cp.cells import OWN
from benchmarks.cp.ranks import TIMEOUT_S, add_rank_options, run_on_ranks
from longca.core import Registry, parse_heads, parse_length
from longca.cp import ContextParallel, context_parallel
from longca.cp.comm.backend import Comm
from longca.masks import Mask, build_mask
from tools.table import Table, add_options

PARAMS = {
    "sliding_window": {"window": 24},
    "causal_sliding_window": {"window": 24},
    "block_causal_document": {"block": 16},
    "global_sliding_window": {"window": 10, "num_global": 8},
    "block_sparse_uniform": {"block": 16, "density": 0.3},
    "block_sparse_variable": {"mean_block": 16, "density": 0.3},
}


def counts(cp: ContextParallel, num_perturbed: int, shape: tuple[int, int, int]) -> dict[str, int]:
    """Returns how many (output, perturbed token) pairs the mask allows, how many changed, and how many
    changed against it or did not.

    Args:
        shape: query heads, KV heads, head dim.
    """
    num_q_heads, num_kv_heads, head_dim = shape
    mask = cp.masks[0]
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(cp.seqlen, heads, head_dim, generator=generator)
        for heads in (num_q_heads, num_kv_heads, num_kv_heads)
    ]
    before = output(cp, tensors)
    sums: dict[str, int] = {"expected": 0, "observed": 0, "leaks": 0, "missing": 0}
    for token in np.linspace(0, cp.seqlen - 1, num_perturbed).astype(int):
        moved = [x.clone() for x in tensors]
        for x in moved:
            x[token] = torch.randn(x[token].shape, generator=generator)
        changed = (output(cp, moved) != before).any(-1).any(-1).cpu().numpy()
        allowed = may_change(mask, int(token))
        sums["expected"] += int(allowed.sum())
        sums["observed"] += int(changed.sum())
        sums["leaks"] += int((changed & ~allowed).sum())
        sums["missing"] += int((allowed & ~changed).sum())
    return sums


def output(cp: ContextParallel, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        q, k, v = (cp.shard(x.to(cp.positions.device)) for x in tensors)
        return cp.unshard(cp.attention(q, k, v))


def may_change(mask: Mask, token: int) -> np.ndarray:
    """Returns the queries whose output depends on a token, (T,) bool, by the dense mask."""
    visible = mask.dense().reshape(mask.num_groups, mask.seqlen_q, mask.seqlen_k)
    values = np.array(visible[:, :, token].any(axis=0))
    values[token] |= visible[:, token].any()
    return values


def report(comm: Comm, options: argparse.Namespace) -> None:
    num_q_heads, num_kv_heads = options.heads
    lines = []
    for name in options.masks:
        for strategy in OWN:
            mask = build_mask(name, seqlen=options.tokens, num_kv_heads=num_kv_heads, **PARAMS.get(name, {}))
            cp = context_parallel(
                mask,
                None,
                strategy,
                num_q_heads=num_q_heads,
                num_kv_heads=num_kv_heads,
                head_dim=options.head_dim,
                dtype=torch.float32,
                kernel=options.kernel,
                device=comm.device,
                timeout=TIMEOUT_S,
            )
            counted = counts(cp, options.perturbed, (num_q_heads, num_kv_heads, options.head_dim))
            lines.append({"mask": name, "strategy": strategy} | counted)
            cp.close()
    if comm.rank == 0:
        table(
            lines,
            f"{comm.world} ranks, {options.tokens} tokens, {options.perturbed} of them perturbed one after "
            f"another; {machine(comm.device)}.",
        ).publish(options)


def table(lines: Sequence[dict[str, Any]], conditions: str) -> Table:
    names = dict.fromkeys(line["mask"] for line in lines)
    by_case = {(line["mask"], line["strategy"]): line for line in lines}
    rows = tuple(
        (
            f"`{name}`",
            str(by_case[name, OWN[0]]["expected"]),
            *(_cell(by_case[name, strategy]) for strategy in OWN),
        )
        for name in names
    )
    leaks, missing, observed = (
        sum(line[what] for line in lines) for what in ("leaks", "missing", "observed")
    )
    caption = (
        f"{observed} outputs changed in all: {leaks or 'none'} that its mask forbids, and "
        f"{missing or 'none'} was missing of those "
        f"that it allows. Expected are outputs that depend on a perturbed token by the dense mask. "
        f"{conditions}"
    )
    return Table("cp_leaks", caption, ("mask", "expected", *OWN), rows, tuple(lines), ("mask",))


def _cell(facts: dict[str, Any]) -> str:
    wrong = [f"{facts[what]} {what}" for what in ("leaks", "missing") if facts[what]]
    return f"{facts['observed']} ({', '.join(wrong)})" if wrong else str(facts["observed"])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cp.leaks", description=str(__doc__).partition("\n")[0]
    )
    add_rank_options(parser)
    parser.add_argument("--tokens", type=parse_length, default=192, help="of the whole sequence")
    parser.add_argument("--heads", type=parse_heads, default=(4, 4))
    parser.add_argument("--head-dim", type=int, default=16)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--perturbed", type=int, default=8, help="tokens")
    parser.add_argument("--masks", type=lambda text: text.split(","), default=Registry("mask").names())
    add_options(parser)
    run_on_ranks(report, parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
