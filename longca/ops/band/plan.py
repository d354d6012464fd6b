"""The plan of band attention: a mask as `Lines` for each kernel, made once and kept as long as the mask is used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from longca.masks.mask import Mask
from longca.ops.band.config import HOPPER_QUERIES, Tuned, Use, tiles_for
from longca.ops.band.tables.block_grid import steps_of_blocks
from longca.ops.band.tables.dq_order import KV_HEADS, takes_turns, with_turns
from longca.ops.band.tables.kv_blocks import cut_spans
from longca.ops.band.tables.layout import layout_of
from longca.ops.band.tables.partial_masks import shapes_of
from longca.ops.band.tables.pieces import lines_of
from longca.ops.band.tables.row_tiles import spans_of
from longca.ops.band.tables.schedule import ROW0, ROW1, Lines, Wanted

AT_ONCE = 264  # programs that a large GPU runs at once, to judge by how long one of them may take
UNEVEN = 4  # lines of a block of queries, at least, where blocks differ: so that the last one of each, which is not full, is short
UNIT = 128  # rows: lines are no longer, and begin at multiples of their length
L2_BYTES = 24 << 20  # of what programs share at a time: keys and values, or queries and gradients of the output


@dataclass(frozen=True, eq=False)
class BandPlan:
    """What the kernels read of a mask, on one device, for one number of heads and one head dim. Reusable, never changed.

    It does not refer to the mask, which may keep it: so the tables' memory is free as soon as nobody uses either.
    """

    seqlen_q: int
    seqlen_k: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    device: torch.device
    kernels: dict[Use, tuple[Lines, Tuned]]
    units: torch.Tensor | None = None
    """the first row of each unit of queries, if it is for some of them alone, (N,) int32"""

    @property
    def num_bytes(self) -> int:
        """Of all tables."""
        return bytes_of([self])


def bytes_of(plans: Sequence[BandPlan]) -> int:
    """Of all tables, a shared one once."""
    tables = {table.data_ptr(): table for plan in plans for lines, _ in plan.kernels.values() for table in lines.tables}
    return sum(table.numel() * table.element_size() for table in tables.values())


@torch.inference_mode(False)  # tables made under it could not be saved for a backward pass
def plan_band_attention(mask: Mask, *, num_q_heads: int, num_kv_heads: int, head_dim: int, device: torch.device | str,
                        needs_backward: bool = True, deterministic: bool = True, tuned: dict[Use, Tuned] | None = None) -> BandPlan:
    """
    Args:
        needs_backward: without it the plan is for the forward pass alone, and smaller.
        deterministic: gradients are the same, bit by bit, in every run. Without it they may be added up in any order: up to 5 % faster
            where pieces would take turns else (`takes_turns`), up to 25 % slower where not (docs/band.md).
        tuned: instead of the kernels' own tile sizes.

    Raises:
        ValueError: what is no mask; heads that cannot be shared evenly; a head dim without tile sizes.
    """
    if not isinstance(mask, Mask):
        raise ValueError(f"the mask must be a longca Mask or a plan of plan_band_attention; it is a {type(mask).__name__}")
    if min(num_q_heads, num_kv_heads) < 1 or num_q_heads % num_kv_heads or num_kv_heads % mask.num_groups:
        raise ValueError(f"{num_q_heads} query heads, {num_kv_heads} KV heads and {mask.num_groups} head groups of the mask: each "
                         "must be a multiple of the next, and none 0")
    device = torch.device(device)
    ratio = num_q_heads // num_kv_heads
    block = mean_block(mask)
    lines_of_block = 1 if block is None or fills_blocks(mask, block) else UNEVEN
    if tuned is None:
        in_turns = takes_turns(mask, num_kv_heads)
        block_rows = block and block * min(ratio & -ratio, HOPPER_QUERIES.pack)
        tuned = tiles_for(head_dim, device, block=mean_block(mask, keys=True), block_rows=block_rows,
                          at_once=not deterministic or in_turns, in_order=deterministic and in_turns)
    uses = {use: tuned[use] for use in Use if use in tuned and (needs_backward or use is Use.FORWARD)}
    wanted = []
    for use, chosen in uses.items():
        parts = 1 if chosen.hopper else 4  # a program that has a multiprocessor for itself takes longer to begin with a piece
        if use is Use.KEYS:
            pack = min(pack_size(ratio, chosen.step), chosen.pack)
            if not chosen.hopper and fills_blocks(mask, chosen.step):
                pack = 1  # of one head, what all programs read fits into L2
            rounds = ratio // pack if chosen.hopper > 1 else 1  # how often a piece is worked on
            longest = 1.0 if chosen.in_order else num_kv_heads * rounds / (parts * AT_ONCE)  # parts of a line would add to it in any order
            wanted.append(Wanted(chosen.rows, chosen.step // pack, True, longest, in_order=chosen.in_order))
            at_once = num_kv_heads  # all, so that the longest come first
            if chosen.hopper > 1:  # it adds to memory as well, and so is at fewer; who waits for his turn waits less where they are several
                at_once = math.gcd(num_kv_heads, KV_HEADS) if chosen.in_order else 1
            elif mask.grid is not None:  # what they read is scattered
                at_once = heads_that_fit(num_kv_heads, 4 * head_dim * mask.seqlen_q * pack)
            uses[use] = replace(chosen, at_once=chosen.at_once or at_once)
        else:
            pack = min(pack_size(ratio, chosen.rows, block and max(block // lines_of_block, 1)), chosen.pack)
            rows = min(chosen.rows, max(64, pack * block)) if block else chosen.rows
            at_once = chosen.at_once or heads_that_fit(num_kv_heads, 4 * head_dim * mask.seqlen_k)
            uses[use] = replace(chosen, rows=rows, at_once=at_once)
            wanted.append(Wanted(rows // pack, chosen.step, False, at_once * ratio / pack / (parts * AT_ONCE)))
    kernels = dict(zip(uses, zip(make_lines(mask, wanted, device), uses.values(), strict=True), strict=True))
    if Use.QUERIES in kernels and mask.grid is not None:
        (lines, chosen), shared = kernels[Use.QUERIES], kernels[Use.FORWARD][0]
        if lines.step == shared.step and torch.equal(lines.runs, shared.runs):  # the largest table; what a row of blocks sees is the same
            kernels[Use.QUERIES] = replace(lines, runs=shared.runs), chosen
    device = kernels[Use.FORWARD][0].pieces.device  # with its number, as tensors have it
    return BandPlan(mask.seqlen_q, mask.seqlen_k, num_q_heads, num_kv_heads, head_dim, device, kernels)


def of_rows(plan: BandPlan, ranges: Sequence[tuple[int, int]]) -> BandPlan:
    """The same for some queries alone: other rows of an output, an LSE or dq are not touched. Lines of keys stay as they are.

    Args:
        ranges: (first, behind), in order and apart, each of whole units of `UNIT` rows, or to the last row. For masks of bands alone, whose
            lines begin at multiples of their length.
    """
    assert all(UNIT % lines.tile == 0 for use, (lines, _) in plan.kernels.items() if use is not Use.KEYS), "a line would be in two units"
    bounds = torch.tensor(ranges, dtype=torch.int32, device=plan.device).flatten()

    def inside(table: torch.Tensor) -> torch.Tensor:
        """Of (M, n, columns) those that begin in a range, and have rows; groups padded as in `Lines`."""
        first, behind = table[..., ROW0].contiguous(), table[..., ROW1]
        kept = (torch.searchsorted(bounds, first, right=True) % 2 == 1) & (behind > first)
        return pad_sequence([rows[of] for rows, of in zip(table, kept, strict=True)], batch_first=True)

    kernels = {use: (lines if use is Use.KEYS else replace(lines, pieces=inside(lines.pieces), splits=inside(lines.splits)), tuned)
               for use, (lines, tuned) in plan.kernels.items()}
    units = [unit for first, behind in ranges for unit in range(first, behind, UNIT)]
    return replace(plan, kernels=kernels, units=torch.tensor(units, dtype=torch.int32, device=plan.device))


def heads_that_fit(num_heads: int, bytes_of_head: int) -> int:
    """Of how many, dividing them evenly, the level-2 cache has what programs read in common; at least one."""
    return max(n for n in range(1, num_heads + 1) if num_heads % n == 0 and (n == 1 or n * bytes_of_head <= L2_BYTES))


def fills_blocks(mask: Mask, step: int) -> bool:
    """Whether blocks of queries are made of whole steps."""
    return mask.grid is not None and not any((bounds[:-1] % step).any() for bounds in mask.grid.q_bounds)


def pack_size(heads_per_kv_head: int, size: int, block: int | None = None) -> int:
    """How many query heads of a KV head share `size` rows or columns: the more, the fewer tokens are in it, and the less of it is
    hidden where the mask has an edge. Lines keep to a row of blocks, so that more tokens than those of a block are in vain, and
    fewer only make more lines.
    """
    most = heads_per_kv_head & -heads_per_kv_head
    return max(min(most, size // (block or 8)), 1)


def mean_block(mask: Mask, *, keys: bool = False) -> int | None:
    """Queries (or keys) of a block, rounded up to a power of two; None for a mask that is not made of blocks."""
    if mask.grid is None:
        return None
    num_tokens, num_blocks = (mask.seqlen_k if keys else mask.seqlen_q), max(mask.grid.visible.shape[2 if keys else 1], 1)
    return 1 << (-(-num_tokens // num_blocks) - 1).bit_length()


def make_lines(mask: Mask, wanted: Sequence[Wanted], device: torch.device) -> list[Lines]:
    """All in one pass, which on a GPU takes hardly longer than one of them."""
    layout = layout_of(mask, wanted, device)
    if mask.grid is None:
        spans = spans_of(mask, layout, device)
        full, partial = cut_spans(spans)
        partial = shapes_of(spans, partial)
    else:
        full, partial = steps_of_blocks(mask.grid, layout, device)
    made = zip(wanted, lines_of(layout, full, partial), strict=True)
    return [with_turns(lines) if one.in_order else lines for one, lines in made]
