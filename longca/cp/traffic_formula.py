"""Formulas for the bytes that a rank sends in one direction. Records have them next to the counted bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.cp.partition.mesh import Mesh

if TYPE_CHECKING:
    from longca.kernels import Problem

SUM_BYTES = 4  # of an element of a float32 sum


def formula_bytes(problem: Problem, mesh: Mesh) -> float:
    """Bytes by Table 3 of arXiv 2510.17896, with Na = `mesh.heads` and Np = `mesh.ring`.

    Without a ring that is (N−1)/N² · T·(Hkv + Hq)·D·2 elements. The table is for forward passes: backward,
    the ring part doubles, since KV circulates again and its gradients are sent to their owners.
    """
    element = problem.dtype.itemsize * problem.mask.seqlen_q * problem.head_dim * 2
    heads = (mesh.heads - 1) / (mesh.ring * mesh.heads**2) * (problem.num_kv_heads + problem.num_q_heads)
    ring = (mesh.ring - 1) / mesh.world * problem.num_kv_heads
    return element * (heads + ring * (2 if problem.needs_backward else 1))


def summing_ring_bytes(problem: Problem, ring: int, num_elements: float) -> float:
    """Bytes of a ring in which gradients are sent along with the keys: K and V, and backward also their
    float32 gradients, with one more hop.

    Args:
        num_elements: elements of the keys of a rank, the same as of the values.
    """
    hops = (ring - 1) * problem.dtype.itemsize + (
        ring * SUM_BYTES if problem.needs_backward and ring > 1 else 0
    )
    return 2 * num_elements * hops
