"""FlashMask's column format: for each key, the queries that do not see it."""

import numpy as np

from longca.lowering.dense import col_intervals, fill
from longca.masks import FlashMaskColumns, Mask


def flashmask_columns(mask: Mask) -> FlashMaskColumns:
    """The format with the fewest columns that can express the mask.

    Raises:
        ValueError: some key is hidden from more runs of queries than the format can express.
    """
    seen = [col_intervals(mask, group) for group in range(mask.num_groups)]
    key = np.arange(mask.seqlen_k, dtype=np.int32)
    if all(_below_diagonal(table, key, mask.seqlen_q) for table in seen):
        hidden = [_gaps(table, np.minimum(key, mask.seqlen_q), mask.seqlen_q) for table in seen]
        if max(gaps.shape[1] for gaps in hidden) <= 2:
            columns = np.stack([_resized(gaps, 2, mask.seqlen_q) for gaps in hidden])
            to_the_end = (columns[..., 1] == mask.seqlen_q).all()
            return FlashMaskColumns(True, columns[..., :1] if to_the_end else columns)
    if all(table.shape[1] <= 2 for table in seen):
        columns = np.stack(seen)[..., ::-1]  # hidden after the end of its only run, and before its start
        return FlashMaskColumns(False, np.ascontiguousarray(columns))
    hidden = [_gaps(table, np.zeros_like(key), mask.seqlen_q) for table in seen]
    most = max(gaps.shape[1] for gaps in hidden) // 2
    if most > 2:
        raise ValueError(f"some key is hidden from {most} separate runs of queries; FlashMask can say 2")
    columns = np.stack([_resized(gaps, 4, mask.seqlen_q) for gaps in hidden])
    return FlashMaskColumns(False, np.ascontiguousarray(columns[..., [2, 3, 0, 1]]))  # the lower gap first


def _below_diagonal(table: np.ndarray, key: np.ndarray, seqlen_q: int) -> bool:
    """True if no query before the key sees it."""
    return bool((table[:, 0] >= np.minimum(key, seqlen_q)).all())


def _gaps(table: np.ndarray, begin: np.ndarray, seqlen_q: int) -> np.ndarray:
    """For each key, the runs of queries in [begin, Sq) that do not see it: int32 (Sk, 2n), some empty if n <=
    2."""
    starts, ends = (
        np.vstack([begin, table[:, 1::2].T]),
        np.vstack([table[:, 0::2].T, np.full_like(begin, seqlen_q)]),
    )
    real = (starts < ends).any(axis=1)
    starts = starts[real]
    ends = ends[real]
    if len(starts) > 2:
        used = (starts < ends).T
        counts = used.sum(axis=1)
        starts, ends = (
            fill(counts, side.T[used], int(counts.max()), unused=seqlen_q).T for side in (starts, ends)
        )
    return np.stack([starts, ends], axis=2).transpose(1, 0, 2).reshape(len(table), 2 * len(starts))


def _resized(gaps: np.ndarray, width: int, seqlen_q: int) -> np.ndarray:
    return np.pad(gaps, ((0, 0), (0, width - gaps.shape[1])), constant_values=seqlen_q)
