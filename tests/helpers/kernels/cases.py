"""Small problems over every pattern, for the contract tests of kernels."""

from dataclasses import dataclass

import numpy as np
import torch

from longca.core.plugin import Registry
from longca.kernels.contract import Problem
from longca.lab.studies.cell import Cell
from longca.masks import Mask, build_mask
from longca.masks.band import INF, as_bands
from longca.masks.grid import BlockGrid

RAGGED = 133
# keys that are hidden from more than two runs of queries
BEYOND_FLASHMASK = "block_sparse", "hstu", "longformer", "speculative_tree"
SIZES = {  # pattern → (length, parameters): so small that windows, blocks and documents all bind
    "sliding_window": (RAGGED, {"window": 9}),
    "causal_sliding_window": (RAGGED, {"window": 9}),
    "global_sliding_window": (RAGGED, {"num_global": 5, "window": 9}),
    "prefix_tree": (RAGGED, {"trees": 2, "branches": 3}),
    "speculative_tree": (RAGGED, {"levels": 5}),
    "sink_local": (RAGGED, {"num_sinks": 5, "window": 9}),
    "chunked_local": (RAGGED, {"chunk": 30}),
    "longformer": (RAGGED, {"num_global": 3, "window": 4, "dilation": 3}),
    "hstu": (RAGGED, {"num_context": 3, "num_candidates": 5}),
    "block_causal_document": (RAGGED, {"block": 19}),
    "block_sparse_uniform": (128, {"block": 16}),
    "block_sparse_variable": (160, {"mean_block": 32}),
}


@dataclass(frozen=True)
class Case:
    """A mask and the heads that see it."""

    mask: Mask
    num_q_heads: int
    num_kv_heads: int
    head_dim: int = 16

    def cell(self, kernel: str, direction: str, dtype: str = "fp32") -> Cell:
        return Cell(
            kind="kernel",
            kernel=kernel,
            mask=self.mask.name or "full",
            seqlen=self.mask.seqlen_q,
            dtype=dtype,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            direction=direction,
        )

    def problem(self, direction: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Problem:
        return Problem(
            self.mask,
            self.num_q_heads,
            self.num_kv_heads,
            self.head_dim,
            dtype,
            torch.device(device),
            needs_backward=direction == "bwd",
        )

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
        """q, k, v, dout."""
        generator = torch.Generator().manual_seed(7)
        shapes = [
            (self.mask.seqlen_q, self.num_q_heads),
            *[(self.mask.seqlen_k, self.num_kv_heads)] * 2,
            (self.mask.seqlen_q, self.num_q_heads),
        ]
        return [torch.randn(*shape, self.head_dim, generator=generator).to(device, dtype) for shape in shapes]

    def __str__(self) -> str:
        return f"{self.mask!r} {self.num_q_heads}:{self.num_kv_heads}"


def pattern_mask(name: str, num_kv_heads: int) -> Mask:
    """A small mask of that pattern; documents of uneven lengths, one of them a single token."""
    pattern = Registry("mask").load(name)
    seqlen, params = SIZES.get(name, (RAGGED, {}))
    documents = np.array([31, 1, 50, seqlen - 82]) if pattern.uses_documents else None
    return build_mask(name, seqlen=seqlen, seed=3, num_kv_heads=num_kv_heads, documents=documents, **params)


def pattern_cases() -> list[Case]:
    """Every pattern, with a KV head for each query head and with one for four."""
    return [
        Case(pattern_mask(name, num_kv_heads), num_q_heads, num_kv_heads)
        for name in Registry("mask").names()
        for num_q_heads, num_kv_heads in ((2, 2), (8, 2))
    ]


def hand_made_cases() -> list[Case]:
    """Rows without keys, at the edges and between; fewer keys than queries; one token."""
    holes = as_bands([(7, 40, 0, 60, -INF, 3), (64, 120, 30, 133, -10, INF)])
    wide = as_bands([(0, 70, 0, 41, -INF, 0)])
    first = as_bands([(0, 1, 0, 1, -INF, INF)])
    masks = [
        Mask(133, 133, (holes,), name="holes"),
        Mask(133, 133, (holes, holes[:1]), name="holes of heads"),
        Mask(70, 41, (wide,), name="fewer keys"),
        Mask(1, 1, (first,), name="one"),
    ]
    return [Case(mask, 4, 2) for mask in masks]


def empty_row_cases() -> list[Case]:
    """Rows without keys in every form that some kernel takes: bands, shared or of heads, and blocks, with GQA
    and without."""
    visible = np.array([[[0, 0, 0], [1, 0, 1], [0, 1, 0]], [[1, 1, 0], [0, 0, 1], [0, 0, 0]]], dtype=bool)
    bounds = np.tile([0, 64, 128, 192], (2, 1))
    blocks = Mask(192, 192, grid=BlockGrid(visible, bounds, bounds), name="blocks")
    return [
        *(case for case in hand_made_cases() if case.mask.traits.empty_rows),
        Case(blocks, 4, 2),
        Case(blocks, 2, 2),
    ]


def telling_cases() -> list[Case]:
    """The few that say most, for kernels that compile long: per-head blocks, ragged documents, rows without
    keys."""
    return [
        Case(pattern_mask("block_sparse_uniform", 2), 8, 2),
        Case(pattern_mask("causal_document", 2), 8, 2),
        hand_made_cases()[0],
    ]
