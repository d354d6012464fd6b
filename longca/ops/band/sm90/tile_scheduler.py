"""The tile scheduler of the Hopper kernels: the choice of a program's next work tile, and its broadcast to
the warps.

Kernels are persistent: one or two programs run on each multiprocessor until all items are done. An item is a
work tile of a `TileSchedule` for one head pack (or one KV head). The producer warp takes items and broadcasts
each one to the other warps of its program through a `WorkTileQueue` in shared memory.
"""

# Triton reads the types of fields as values
# pyright: reportInvalidTypeForm=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.core import _aggregate as aggregate

from longca.ops.band.tables import schedule

WG_ROWS = gl.constexpr(64)  # rows of a consumer warp group: the height of one wgmma
CONSUMERS = gl.constexpr(2)  # consumer warp groups of a program
# Columns of a work tile in `TileSchedule.work_tiles`.
ROW_START, ROW_END = gl.constexpr(schedule.ROW_START), gl.constexpr(schedule.ROW_END)
FULL_START, PARTIAL_START = gl.constexpr(schedule.FULL_START), gl.constexpr(schedule.PARTIAL_START)
PARTIAL_END, NUM_FULL, SLOT = (
    gl.constexpr(schedule.PARTIAL_END),
    gl.constexpr(schedule.NUM_FULL),
    gl.constexpr(schedule.SLOT),
)
NARROW = gl.constexpr(schedule.NARROW)
NUM_COLUMNS = gl.constexpr(schedule.NUM_COLUMNS)
# A message has a work tile's columns, then these. The pack is at the position of NARROW, the table's last
# column.
PACK_FIELD, INDEX_FIELD = gl.constexpr(schedule.NUM_COLUMNS - 1), gl.constexpr(schedule.NUM_COLUMNS)
NARROW_FIELD = gl.constexpr(schedule.NUM_COLUMNS)  # only in the forward kernel, which does not need the index
MESSAGE = gl.constexpr(16)  # numbers of a message, with room to spare
FROM_LAST = gl.constexpr(int(schedule.AddOrder.FROM_LAST))
RANGE = gl.constexpr(2)  # numbers of an entry of `TileSchedule.block_ranges`

Scalar = gl.tensor | gl.constexpr  # Triton specialises an argument of 1 to a constant


@gluon.constexpr_function
def scalar(x):
    """A field of type `Scalar`. Calls unwrap constants, and fields must be wrapped."""
    return x if isinstance(x, gl.tensor) else gl.constexpr(x)


@aggregate
class Tables:
    """Pointers to the tables of a `TileSchedule`."""

    work_tiles: gl.tensor
    block_ranges: gl.tensor
    partial_masks: gl.tensor

    @gluon.constexpr_function
    def __init__(self, work_tiles, block_ranges, partial_masks):
        self.work_tiles = work_tiles
        self.block_ranges = block_ranges
        self.partial_masks = partial_masks


@aggregate
class QueryGrid:
    """The items of a kernel over row tiles of queries: work tiles times head packs."""

    num_tiles: Scalar  # work tiles of a head group
    num_items: Scalar
    packs_per_section: Scalar
    packs_per_kv_head: Scalar
    packs_per_group: Scalar

    @gluon.constexpr_function
    def __init__(self, num_tiles, num_items, packs_per_section, packs_per_kv_head, packs_per_group):
        self.num_tiles = scalar(num_tiles)
        self.num_items = scalar(num_items)
        self.packs_per_section = scalar(packs_per_section)
        self.packs_per_kv_head = scalar(packs_per_kv_head)
        self.packs_per_group = scalar(packs_per_group)


@aggregate
class KeyGrid:
    """The items of a kernel over row tiles of keys: work tiles times KV heads times head rounds."""

    num_tiles: Scalar  # work tiles of a head group
    num_items: Scalar
    kv_heads_per_section: Scalar
    rounds_per_section: Scalar  # divides head_rounds
    head_rounds: Scalar  # items of a work tile and KV head: each has as many of its query heads
    kv_heads_per_group: Scalar

    @gluon.constexpr_function
    def __init__(
        self, num_tiles, num_items, kv_heads_per_section, rounds_per_section, head_rounds, kv_heads_per_group
    ):
        self.num_tiles = scalar(num_tiles)
        self.num_items = scalar(num_items)
        self.kv_heads_per_section = scalar(kv_heads_per_section)
        self.rounds_per_section = scalar(rounds_per_section)
        self.head_rounds = scalar(head_rounds)
        self.kv_heads_per_group = scalar(kv_heads_per_group)


@aggregate
class WorkTile:
    """A work tile in the form for a consumer warp group; a pack of −1 ends the loop. `slot` is −1 if the
    group writes the final result, and has no meaning in the fused kernel. Only the forward kernel uses
    `narrow`, the column NARROW.
    """

    row_start: gl.tensor
    row_end: gl.tensor
    partial_start: gl.tensor
    partial_end: gl.tensor
    num_full: gl.tensor
    slot: gl.tensor
    pack: gl.tensor
    narrow: gl.tensor

    @gluon.constexpr_function
    def __init__(self, row_start, row_end, partial_start, partial_end, num_full, slot, pack, narrow):
        self.row_start = row_start
        self.row_end = row_end
        self.partial_start = partial_start
        self.partial_end = partial_end
        self.num_full = num_full
        self.slot = slot
        self.pack = pack
        self.narrow = narrow


@aggregate
class WorkTileBlocks:
    """A work tile in the form for a single warp that iterates over its blocks: rows, entries of
    `block_ranges`, pack, and tile index."""

    row_start: gl.tensor
    full_start: gl.tensor
    partial_start: gl.tensor
    partial_end: gl.tensor
    pack: gl.tensor
    index: gl.tensor

    @gluon.constexpr_function
    def __init__(self, row_start, full_start, partial_start, partial_end, pack, index):
        self.row_start = row_start
        self.full_start = full_start
        self.partial_start = partial_start
        self.partial_end = partial_end
        self.pack = pack
        self.index = index


@aggregate
class WorkTileQueue:
    """Two messages in shared memory, in which the producer warp broadcasts work tiles to all other warps of
    its program."""

    messages: gl.shared_memory_descriptor  # int32 (2, MESSAGE)
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, messages, full, empty):
        self.messages = messages
        self.full = full
        self.empty = empty

    @gluon.jit
    def send(self, entry_ptr, pack, count, last=0):
        """Broadcasts the `count`-th work tile of this program; `last` follows the pack. A pack of −1 marks
        the end."""
        place, phase = count % 2, (count // 2) & 1
        field = gl.arange(0, MESSAGE, layout=gl.BlockedLayout([1], [32], [1], [0]))
        values = gl.load(entry_ptr + field, mask=field < PACK_FIELD, other=last)
        mbarrier.wait(self.empty.index(place), phase ^ 1)
        self.messages.index(place).store(gl.where(field == PACK_FIELD, pack, values))
        mbarrier.arrive(self.full.index(place), count=1)

    @gluon.jit
    def receive(self, count):
        """The `count`-th `WorkTile` of this program, for a consumer warp group."""
        place = count % 2
        mbarrier.wait(self.full.index(place), (count // 2) & 1)
        row_start, row_end = self._field(place, ROW_START, 4), self._field(place, ROW_END, 4)
        partial_start, partial_end = self._field(place, PARTIAL_START, 4), self._field(place, PARTIAL_END, 4)
        num_full, slot, pack = (
            self._field(place, NUM_FULL, 4),
            self._field(place, SLOT, 4),
            self._field(place, PACK_FIELD, 4),
        )
        narrow = self._field(place, NARROW_FIELD, 4)
        mbarrier.arrive(self.empty.index(place), count=1)
        return WorkTile(row_start, row_end, partial_start, partial_end, num_full, slot, pack, narrow)

    @gluon.jit
    def receive_blocks(self, count):
        """The `count`-th work tile of this program as `WorkTileBlocks`, for a single warp."""
        place = count % 2
        mbarrier.wait(self.full.index(place), (count // 2) & 1)
        row_start, full_start = self._field(place, ROW_START, 1), self._field(place, FULL_START, 1)
        partial_start, partial_end = self._field(place, PARTIAL_START, 1), self._field(place, PARTIAL_END, 1)
        pack, index = self._field(place, PACK_FIELD, 1), self._field(place, INDEX_FIELD, 1)
        mbarrier.arrive(self.empty.index(place), count=1)
        return WorkTileBlocks(row_start, full_start, partial_start, partial_end, pack, index)

    @gluon.jit
    def _field(self, place, FIELD: gl.constexpr, WARPS: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
        return gl.max(self.messages.index(place).slice(FIELD, 1).load(layout), 0)


@gluon.jit
def query_tile_of(item, work_tiles_ptr, grid):
    """(pointer to the work tile, pack). Packs come in sections whose keys fit into L2; in a section the
    longest work tiles come first."""
    within = item % (grid.num_tiles * grid.packs_per_section)
    pack = (
        item // (grid.num_tiles * grid.packs_per_section) * grid.packs_per_section
        + within % grid.packs_per_section
    )
    return work_tiles_ptr + (
        pack // grid.packs_per_group * grid.num_tiles + within // grid.packs_per_section
    ) * NUM_COLUMNS, pack


@gluon.jit
def key_tile_of(item, work_tiles_ptr, grid):
    """(pointer to the work tile, its index in the head group, KV head, head round).

    KV heads come in sections, and so do head rounds, all of a KV head before those of the next ones; in a
    section the work tiles of all its heads come together.
    """
    items_of_tile = grid.kv_heads_per_section * grid.rounds_per_section
    section, within = item // (grid.num_tiles * items_of_tile), item % (grid.num_tiles * items_of_tile)
    sections_of_rounds, index, within = (
        grid.head_rounds // grid.rounds_per_section,
        within // items_of_tile,
        within % items_of_tile,
    )
    kv_head = section // sections_of_rounds * grid.kv_heads_per_section + within % grid.kv_heads_per_section
    head_round = section % sections_of_rounds * grid.rounds_per_section + within // grid.kv_heads_per_section
    return (
        work_tiles_ptr + (kv_head // grid.kv_heads_per_group * grid.num_tiles + index) * NUM_COLUMNS,
        index,
        kv_head,
        head_round,
    )


@gluon.jit
def take_ticket(counter_ptr, lane):
    """Starts an atomic increment of a counter in global memory; `first_lane` reads its result."""
    return gl.atomic_add(counter_ptr + lane * 0, lane * 0 + 1, mask=lane == 0, sem="relaxed")


@gluon.jit
def first_lane(ticket, lane):
    return gl.max(gl.where(lane == 0, ticket, 0), 0)


@gluon.jit
def range_of(number, full_start, partial_start, partial_end, ranges_ptr):
    """(column, blocks, mask) of a work tile's n-th entry of `block_ranges`, partial blocks first; the mask of
    full blocks is −1."""
    num_partial = partial_end - partial_start
    is_partial, some = number < num_partial, number < partial_end - full_start
    entry_ptr = (
        ranges_ptr + gl.where(is_partial, partial_start + number, full_start + number - num_partial) * RANGE
    )
    value = gl.load(entry_ptr + 1, mask=some, other=0)
    return (
        gl.load(entry_ptr, mask=some, other=0),
        gl.where(is_partial, 1, value),
        gl.where(is_partial, value, -1),
    )


@gluon.jit
def first_entries(full_start, partial_start, partial_end, IN_ORDER: gl.constexpr):
    """The first (full entry, partial entry) of `block_ranges` for `next_range`."""
    if IN_ORDER == FROM_LAST:
        return partial_start - 1, partial_end - 1
    return full_start, partial_start


@gluon.jit
def next_range(full, partial, full_start, partial_start, partial_end, ranges_ptr, BLOCK: gl.constexpr,
               IN_ORDER: gl.constexpr):
    """The next entry of `block_ranges`, full and partial ones together, from the last column or from the
    first.

    Returns (column of its first block in this direction, blocks, mask, next full entry, next partial entry).
    """
    has_full, has_partial = (
        (full >= full_start) & (full < partial_start),
        (partial >= partial_start) & (partial < partial_end),
    )
    none: gl.constexpr = -1 if IN_ORDER == FROM_LAST else 1 << 30
    column, other = (
        gl.load(ranges_ptr + full * RANGE, mask=has_full, other=none),
        gl.load(ranges_ptr + partial * RANGE, mask=has_partial, other=none),
    )
    num_blocks, mask = (
        gl.load(ranges_ptr + full * RANGE + 1, mask=has_full, other=1),
        gl.load(ranges_ptr + partial * RANGE + 1, mask=has_partial, other=0),
    )
    if IN_ORDER == FROM_LAST:
        column += (num_blocks - 1) * BLOCK
        is_full = column > other
        step = -1
    else:
        is_full = column < other
        step = 1
    column = gl.where(has_full | has_partial, gl.where(is_full, column, other), 0)
    num_blocks, mask = gl.where(is_full, num_blocks, 1), gl.where(is_full, -1, mask)
    return column, num_blocks, mask, gl.where(is_full, full + step,
                                              full), gl.where(is_full, partial, partial + step)
