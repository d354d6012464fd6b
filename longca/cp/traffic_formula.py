"""Bytes that a rank sends in one direction by the books: what stands beside the bytes that were counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.partition.mesh import Mesh

if TYPE_CHECKING:
    from longca.kernels.contract import Problem

SUM_BYTES = 4  # of an element of a float32 sum


def formula_bytes(problem: Problem, mesh: Mesh) -> float:
    """Table 3 of arXiv 2510.17896 with Na = `mesh.heads`, Np = `mesh.ring`; of heads alone (N−1)/N² · T·(Hkv + Hq)·D·2 elements.

    The table is about forward passes. Backward, keys go round again and their gradients come home: twice its ring part.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2
    heads = (mesh.heads - 1) / (mesh.ring * mesh.heads ** 2) * (problem.num_kv_heads + problem.num_q_heads)
    ring = (mesh.ring - 1) / mesh.world * problem.num_kv_heads
    return element * (heads + ring * (2 if problem.needs_backward else 1))


def summing_ring_bytes(problem: Problem, ring: int, num_elements: float) -> float:
    """Keys and values, so many elements each, round a ring; backward also their gradients in float32, home with the last hop."""
    hops = (ring - 1) * problem.dtype.itemsize + (ring * SUM_BYTES if problem.needs_backward and ring > 1 else 0)
    return 2 * num_elements * hops
