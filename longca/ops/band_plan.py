"""The plan of band attention: a mask as `Lines` for each kernel, made once and kept as long as the mask is used."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longca.masks.mask import Mask
from longca.ops.band_config import Tuned, Use, tiles_for
from longca.ops.band_lines import Lines
from longca.ops.band_spans import Spans, mask_spans, spread, visible_blocks
from longca.ops.band_steps import Steps, cut_spans
from longca.ops.band_turns import turns

AT_ONCE = 264  # programs that a large GPU runs at once, to judge by how long one of them may take
L2_BYTES = 24 << 20  # of keys and values that programs share at a time


@dataclass(frozen=True, eq=False)
class BandPlan:
    """What the kernels read of a mask, on one device, for one number of heads and one head dim. Reusable, never changed."""

    mask: Mask
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    device: torch.device
    kernels: dict[Use, tuple[Lines, Tuned]]
    kv_heads_at_once: int  # whose lines of queries start together; lines of keys start together for all heads

    @property
    def num_bytes(self) -> int:
        """Of all tables, a shared one once."""
        tables = {table.data_ptr(): table for lines, _ in self.kernels.values() for table in lines.tables}
        return sum(table.numel() * table.element_size() for table in tables.values())


def plan_band_attention(mask: Mask, *, num_q_heads: int, num_kv_heads: int, head_dim: int, device: torch.device | str,
                        needs_backward: bool = True, deterministic: bool = True, tuned: dict[Use, Tuned] | None = None) -> BandPlan:
    """
    Args:
        needs_backward: without it the plan is for the forward pass alone, and takes a third of the time.
        deterministic: gradients are the same, bit by bit, in every run. Without it dQ may be added up in any order; seldom faster.
        tuned: instead of the kernels' own tile sizes.

    Raises:
        ValueError: heads that cannot be shared evenly; a head dim without tile sizes.
    """
    if num_kv_heads < 1 or num_q_heads % num_kv_heads or num_kv_heads % mask.num_groups:
        raise ValueError(f"{num_q_heads} query heads, {num_kv_heads} KV heads and {mask.num_groups} head groups of the mask: each "
                         "must be a multiple of the next")
    device = torch.device(device)
    ratio = num_q_heads // num_kv_heads
    tuned = tuned or tiles_for(head_dim, device, pack=pack_size(ratio, 64), block=mean_block(mask, keys=True), deterministic=deterministic)
    bytes_of_head = 4 * head_dim * max(mask.seqlen_k, 1)
    kv_heads_at_once = max(n for n in range(1, num_kv_heads + 1) if num_kv_heads % n == 0 and (n == 1 or n * bytes_of_head <= L2_BYTES))
    visible, kernels = visible_blocks(mask, device), {}
    for use in [use for use in Use if use in tuned and (needs_backward or use is Use.FORWARD)]:
        chosen = tuned[use]
        if use is Use.KEYS:
            pack = min(pack_size(ratio, chosen.step), chosen.pack)
            parts = 1 if chosen.hopper else 4  # a program that has a multiprocessor for itself takes longer to begin with a piece
            turns = ratio // pack if chosen.hopper > 1 else 1  # how often a piece is worked on
            longest = 1.0 if chosen.in_order else num_kv_heads * turns / (parts * AT_ONCE)  # parts of a line would add to it in any order
            lines = make_lines(mask, chosen.rows, chosen.step // pack, transposed=True, device=device, longest=longest, visible=visible,
                               in_order=chosen.in_order == 1)
        else:
            block = mean_block(mask)
            pack = min(pack_size(ratio, chosen.rows, block), chosen.pack)
            rows = min(chosen.rows, max(64, pack * block)) if block else chosen.rows
            chosen = replace(chosen, rows=rows)
            lines = make_lines(mask, rows // pack, chosen.step, transposed=False, device=device,
                               longest=kv_heads_at_once * ratio / pack / (4 * AT_ONCE), visible=visible)
        if use is Use.QUERIES and mask.grid is not None and torch.equal(lines.runs, kernels[Use.FORWARD][0].runs):
            lines = replace(lines, runs=kernels[Use.FORWARD][0].runs)  # by far the largest table, and what a row of blocks sees is the same
        kernels[use] = lines, chosen
    device = kernels[Use.FORWARD][0].pieces.device  # with its number, as tensors have it
    return BandPlan(mask, num_q_heads, num_kv_heads, head_dim, device, kernels, kv_heads_at_once)


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


def make_lines(mask: Mask, tile: int, step: int, *, transposed: bool, device: torch.device,
               longest: float = 1.0, least: int = 16, visible: Tensor | None = None, in_order: bool = False) -> Lines:
    """
    Args:
        tile: most rows of a line: queries, or, with `transposed`, keys.
        step: columns of a step.
        longest: share of the steps of all lines that a piece may have; lines with more are split.
        least: steps that are never too many.
        visible: of `visible_blocks`, if it is there already.
        in_order: for pieces that wait for each other. Those of about the same length are then sorted by their rows: most masks let who
            comes first stay ahead.
    """
    spans = mask_spans(mask, tile, transposed, device, visible)
    steps = cut_spans(spans, tile, step)
    lines = _assemble(spans, steps, mask.num_groups, tile, step, longest, least, 1.5 if in_order else None)
    if not in_order:
        return lines
    waits, waits_of = turns(lines)
    return replace(lines, waits=waits, waits_of=waits_of)


def _assemble(spans: Spans, steps: Steps, num_groups: int, tile: int, step: int, longest: float, least: int,
              alike: float | None) -> Lines:
    of, num_lists = spans.list_of, len(spans.top)
    piece, column, value, full, cost = _in_order(steps, num_lists)
    length = _sums(cost, piece, num_lists)
    parts = torch.clamp(-(-length // max(least, int(longest * int(length[of].sum())))), min=1)
    num_parts = int(parts.sum())
    if num_parts > num_lists:
        piece, column, value, full, cost = _cut(piece, column, value, full, cost, length, parts, step)
    num_runs = torch.bincount(piece, minlength=num_parts)
    first = torch.cumsum(num_runs, 0) - num_runs
    of_part = torch.stack([first, first + _sums(full.long(), piece, num_parts), first + num_runs, _sums(cost * full, piece, num_parts)], 1)

    owner, rank = spread(parts[of])
    part = (torch.cumsum(parts, 0) - parts)[of][owner] + rank
    slot, split, splits, num_slots = _slots(spans, parts[of], owner, num_groups)
    table = torch.cat([torch.stack([spans.row0[owner], spans.row1[owner]], 1), of_part[part], torch.stack([slot, split], 1)], 1)
    group, length = spans.group[owner], _sums(cost, piece, num_parts)[part]
    if alike is not None:
        length = (torch.log(length.clamp(min=1)) / math.log(alike)).long()
    order = torch.argsort(group * (int(length.max()) + 1) - length, stable=True) if len(owner) else owner
    pieces = _by_group(table[order], group[order], num_groups)
    nobody = pieces.new_zeros(0, 2), pieces.new_zeros(num_groups, 0, 2)
    return Lines(tile, step, pieces, torch.stack([column, value], 1).to(torch.int32), steps.shapes, splits, num_slots, *nobody)


def _in_order(steps: Steps, num_lines: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(line, column, count or shape, is full, steps) of each run: line by line, full runs first."""
    num_full, num_part = (torch.bincount(line, minlength=num_lines) for line in (steps.full_line, steps.part_line))
    upto_full, upto_part = torch.cumsum(num_full, 0), torch.cumsum(num_part, 0)
    device, total = steps.full_line.device, len(steps.full_line) + len(steps.part_line)
    at_full = torch.arange(len(steps.full_line), device=device) + (upto_part - num_part)[steps.full_line]
    at_part = torch.arange(len(steps.part_line), device=device) + upto_full[steps.part_line]
    merged = torch.empty(5, total, dtype=torch.int64, device=device)
    merged[:, at_full] = torch.stack([steps.full_line, steps.full_column, steps.full_count, torch.ones_like(at_full), steps.full_count])
    merged[:, at_part] = torch.stack([steps.part_line, steps.part_column, steps.part_shape, torch.zeros_like(at_part),
                                      torch.ones_like(at_part)])
    return merged[0], merged[1], merged[2], merged[3].bool(), merged[4]


def _cut(line: Tensor, column: Tensor, value: Tensor, full: Tensor, cost: Tensor, length: Tensor, parts: Tensor,
         step: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Runs cut where a piece ends: (piece, column, value, is full, steps). The pieces of a line have equally many steps, or one less."""
    size = -(-length // parts)
    begin = torch.cumsum(cost, 0) - cost - (torch.cumsum(length, 0) - length)[line]
    of = size[line]
    run, rank = spread((begin + cost - 1) // of - begin // of + 1)
    part = begin[run] // of[run] + rank
    first = torch.maximum(begin[run], part * of[run])
    cost = torch.minimum(begin[run] + cost[run], (part + 1) * of[run]) - first
    column = column[run] + (first - begin[run]) * step
    return (torch.cumsum(parts, 0) - parts)[line[run]] + part, column, torch.where(full[run], cost, value[run]), full[run], cost


def _slots(spans: Spans, parts: Tensor, owner: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """(slot, split line) of each piece, −1 where its line is whole; the table of split lines; most slots of a group."""
    lines = torch.nonzero(parts > 1).squeeze(1)
    group, count = spans.group[lines], parts[lines]
    slots_of = _sums(count, group, num_groups)
    lines_of = torch.bincount(group, minlength=num_groups)
    first = torch.cumsum(count, 0) - count - (torch.cumsum(slots_of, 0) - slots_of)[group]
    place = torch.arange(len(lines), device=lines.device) - (torch.cumsum(lines_of, 0) - lines_of)[group]
    splits = _by_group(torch.stack([spans.row0[lines], spans.row1[lines], first, count], 1), group, num_groups)
    slot_of_line, place_of_line = torch.full_like(parts, -1), torch.full_like(parts, -1)
    slot_of_line[lines], place_of_line[lines] = first, place
    rank = torch.arange(len(owner), device=owner.device) - (torch.cumsum(parts, 0) - parts)[owner]
    slot = slot_of_line[owner]
    return torch.where(slot < 0, -1, slot + rank), place_of_line[owner], splits, int(slots_of.max())


def _sums(values: Tensor, at: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=values.dtype, device=values.device).scatter_add_(0, at, values)


def _by_group(table: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """Rows sorted by group as int32 (groups, most of a group, columns), padded with zeros."""
    count = torch.bincount(group, minlength=num_groups)
    out = torch.zeros(num_groups, int(count.max()), table.shape[1], dtype=torch.int32, device=table.device)
    out[group, torch.arange(len(group), device=group.device) - (torch.cumsum(count, 0) - count)[group]] = table.to(torch.int32)
    return out
