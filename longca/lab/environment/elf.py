"""Identities of shared objects: the build id that the linker has put into a file, or a hash of its content.
Standard library only."""

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAGIC = b"\x7fELF"
PT_NOTE = 4
NT_GNU_BUILD_ID = 3
GNU = b"GNU\0"
MOST_SEGMENTS = 256  # segments of a file
MOST_NOTES = 1 << 16  # bytes of one segment of notes
MOST_ID = 64  # bytes of a build id; ld writes 20
WHOLE_BYTES = (
    64 << 20
)  # a larger file is hashed in parts: CUDA's libraries have gigabytes, and a worker hashes them at each start
PARTS = 16
PART_BYTES = 1 << 20


def build_id(path: Path) -> str | None:
    """The file's GNU build id in hexadecimal digits; None where it has none or is no ELF file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        for kind, owner, content in _notes(file):
            if kind == NT_GNU_BUILD_ID and owner == GNU and 0 < len(content) <= MOST_ID:
                return content.hex()
    return None


def is_elf(path: Path) -> bool:
    """True for a regular file that begins as ELF files do."""
    try:
        with path.open("rb", buffering=0) as file:
            return path.is_file() and file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sample_of(path: Path) -> str:
    """The SHA-256 of a file's size and of 16 parts of 1 MiB at equal distances, the first and the last among
    them. Raises OSError."""
    num_bytes = path.stat().st_size
    digest = hashlib.sha256(str(num_bytes).encode())
    with path.open("rb", buffering=0) as file:
        for part in range(PARTS):
            digest.update(
                os.pread(file.fileno(), PART_BYTES, max(num_bytes - PART_BYTES, 0) * part // (PARTS - 1))
            )
    return digest.hexdigest()


def _notes(file: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """(type, owner, content) of each note. A damaged file has those before the damage."""
    head = os.pread(file.fileno(), 64, 0)
    if len(head) < 52 or head[:4] != MAGIC or head[4] not in (1, 2) or head[5] not in (1, 2):
        return
    is_64 = head[4] == 2
    order = "<" if head[5] == 1 else ">"
    try:
        start, size, count = (
            struct.unpack_from(f"{order}Q", head, 32) + struct.unpack_from(f"{order}HH", head, 54)
            if is_64
            else struct.unpack_from(f"{order}I", head, 28) + struct.unpack_from(f"{order}HH", head, 42)
        )
        for number in range(min(count, MOST_SEGMENTS)):
            segment = os.pread(file.fileno(), size, start + number * size)
            kind, *_ = struct.unpack_from(f"{order}I", segment)
            if kind != PT_NOTE:
                continue
            offset, num_bytes = (
                (
                    struct.unpack_from(f"{order}Q", segment, 8)[0],
                    struct.unpack_from(f"{order}Q", segment, 32)[0],
                )
                if is_64
                else (
                    struct.unpack_from(f"{order}I", segment, 4)[0],
                    struct.unpack_from(f"{order}I", segment, 16)[0],
                )
            )
            yield from _notes_in(os.pread(file.fileno(), min(num_bytes, MOST_NOTES), offset), order)
    except (struct.error, OverflowError, OSError):
        return


def _notes_in(segment: bytes, order: str) -> Iterator[tuple[int, bytes, bytes]]:
    start = 0
    while start + 12 <= len(segment):
        name_bytes, num_bytes, kind = struct.unpack_from(f"{order}III", segment, start)
        name_end = start + 12 + name_bytes
        content = name_end + -name_bytes % 4
        if content + num_bytes > len(segment):
            return
        yield kind, segment[start + 12 : name_end], segment[content : content + num_bytes]
        start = content + num_bytes + -num_bytes % 4
