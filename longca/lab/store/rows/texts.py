"""Texts of records, compressed in blocks: 100,000 records have 300 MB of text, and 30 MB compressed."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS_OF_BLOCK = 256
MOST_OPEN = 4  # blocks that are in memory uncompressed
MOST_SWITCHES = 8  # of blocks, for each block: an order with more of them is written anew


class Block(NamedTuple):
    """Texts of one line each, compressed together."""

    num_texts: int
    num_bytes: int
    """uncompressed"""
    content: bytes | memoryview


class Texts:
    """Lines of text by number."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks = list(blocks)
        self._starts = list[int]()
        count = 0
        for block in self.blocks:
            self._starts.append(count)
            count += block.num_texts
        self._count = count
        self._open: OrderedDict[int, list[bytes]] = OrderedDict()

    @classmethod
    def of(cls, lines: Iterable[bytes]) -> Texts:
        """These lines, none of which has a line end in it."""
        return cls(list(blocks_of(lines)))

    def __len__(self) -> int:
        return self._count

    def each(self, numbers: Iterable[int]) -> Iterator[bytes]:
        """The texts with these numbers, in their order; neighbours are read together."""
        for number in numbers:
            index = bisect_right(self._starts, number) - 1
            yield self._lines(index)[number - self._starts[index]]

    def is_scattered(self, numbers: Sequence[int]) -> bool:
        """True if `each` would have to read most blocks many times for these numbers."""
        recent: OrderedDict[int, None] = OrderedDict()
        switches = 0
        for number in numbers:
            index = bisect_right(self._starts, number) - 1
            if index not in recent:
                switches += 1
                if len(recent) >= MOST_OPEN:
                    recent.popitem(last=False)
            recent[index] = None
            recent.move_to_end(index)
        return switches > MOST_SWITCHES * max(len(self.blocks), 1)

    def gathered(self, numbers: Sequence[int]) -> Texts:
        """The texts with these numbers as new blocks. Meanwhile all texts are in a temporary file, or in
        memory without room for one."""
        try:
            with TemporaryFile() as file:
                return Texts.of(self._from_file(file, numbers))
        except OSError:
            lines = [line for index in range(len(self.blocks)) for line in self._read(index)]
            return Texts.of(lines[number] for number in numbers)

    def _from_file(self, file: IO[bytes], numbers: Sequence[int]) -> Iterator[bytes]:
        """The texts with these numbers, which go through this empty file."""
        sizes = []
        for index in range(len(self.blocks)):
            lines = self._read(index)
            sizes += map(len, lines)
            file.writelines(lines)
        file.flush()
        ends = list(accumulate(sizes))
        for number in numbers:
            yield os.pread(file.fileno(), sizes[number], ends[number] - sizes[number])

    def _lines(self, index: int) -> list[bytes]:
        lines = self._open.get(index)
        if lines is None:
            if len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)
            lines = self._open[index] = self._read(index)
        self._open.move_to_end(index)
        return lines

    def _read(self, index: int) -> list[bytes]:
        block = self.blocks[index]
        whole: bytes = _codec().decompress(block.content, block.num_bytes, asbytes=True)
        return whole.split(b"\n")


def blocks_of(lines: Iterable[bytes]) -> Iterator[Block]:
    """The lines, compressed in blocks."""
    part: list[bytes] = []
    for line in lines:
        part.append(line)
        if len(part) == TEXTS_OF_BLOCK:
            yield _block(part)
            part = []
    if part:
        yield _block(part)


def _block(lines: list[bytes]) -> Block:
    whole = b"\n".join(lines)
    return Block(len(lines), len(whole), _codec().compress(whole, asbytes=True))


def _codec() -> pa.Codec:
    import pyarrow as pa

    return pa.Codec("zstd")
