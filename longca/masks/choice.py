"""The choice of the k-blocks of each q-block. It is the same on every machine, since scores are distinct
integers."""

import math

import numpy as np

HEAD_DIM = 128  # of the q and k that "qk" scores simulate
# of one unit of q and k: products of rounded values are exact in float64, in whatever order they are added
STEPS = 4096


def random_blocks(rng: np.random.Generator, num_q: int, num_k: int, density: float) -> np.ndarray:
    """Bool (num_q, num_k): every choice of ⌊density · num_k⌋ blocks (at least 1) of a row is equally
    likely."""
    scores = rng.integers(0, 1 << 32, size=(num_q, num_k), dtype=np.uint32)
    # the column in the low bits, so that none are equal
    scores &= np.uint32(0xFFFFFFFF << _bits(num_k) & 0xFFFFFFFF)
    scores |= np.arange(num_k, dtype=np.uint32)
    return _largest(scores, density)


def qk_blocks(rng: np.random.Generator, num_q: int, num_k: int, density: float) -> np.ndarray:
    """Bool (num_q, num_k): the ⌊density · num_k⌋ blocks (at least 1) of a row whose mean key is most like its
    mean query.

    q and k are independent standard normal; the mean of a block of them is also normal. It is sampled
    directly and scaled to unit variance, which keeps the order. The scores then have rank ≤ head dim, so that
    rows favour the same k-blocks, unlike random scores.
    """
    q, k = (np.rint(rng.standard_normal((num, HEAD_DIM)) * STEPS) for num in (num_q, num_k))
    scores = (q @ k.T).astype(np.int64)
    scores <<= _bits(num_k)
    scores |= np.arange(num_k)
    return _largest(scores, density)


def num_kept(num_blocks: int, density: float) -> int:
    """The number of visible blocks in a row of `num_blocks`; at least 1."""
    return max(1, math.floor(density * num_blocks + 1e-9))  # 0.29 · 100 is 28.999…


def _largest(scores: np.ndarray, density: float) -> np.ndarray:
    """True for each score among its row's largest. No two scores of a row are equal."""
    num_dropped = scores.shape[1] - num_kept(scores.shape[1], density)
    return scores >= np.partition(scores, num_dropped, axis=1)[:, num_dropped, None]


def _bits(num_columns: int) -> int:
    return (num_columns - 1).bit_length()
