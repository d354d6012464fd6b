"""A folder of packages as pip leaves it, with a build that was unpacked by hand, and shared objects with and
without a build id."""

import base64
import hashlib
import struct
from pathlib import Path
from types import ModuleType

from longca.lab.environment.loaded import LoadedFiles
from longca.lab.environment.packages import PackageFolder
from longca.lab.studies.facts.inventory import LoadedSoftware

BUILD_ID = bytes(range(20))


def elf(
    build_id: bytes | None = BUILD_ID, content: bytes = b"code", *, bits: int = 64, order: str = "<"
) -> bytes:
    """A shared object with two segments, of which the second one holds the notes."""
    note = (
        struct.pack(f"{order}III", 4, len(build_id), 3) + b"GNU\0" + build_id if build_id is not None else b""
    )
    note = struct.pack(f"{order}III", 4, 4, 1) + b"GNU\0abcd" + note  # another note before it
    head = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    if bits == 64:
        offset = 64
        size = 56
        head += struct.pack(f"{order}HHIQQQIHHHHHH", 3, 62, 1, 0, offset, 0, 0, 64, size, 2, 0, 0, 0)
        segments = b"".join(
            struct.pack(f"{order}IIQQQQQQ", kind, 4, offset + 2 * size, 0, 0, len(note), len(note), 4)
            for kind in (1, 4)
        )
    else:
        offset = 52
        size = 32
        head += struct.pack(f"{order}HHIIIIIHHHHHH", 3, 3, 1, 0, offset, 0, 0, 52, size, 2, 0, 0, 0)
        segments = b"".join(
            struct.pack(f"{order}IIIIIIII", kind, offset + 2 * size, 0, 0, len(note), len(note), 4, 4)
            for kind in (1, 4)
        )
    return head + segments + note + content


def distribution(site: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    """Install a distribution as pip does: its files, a script outside, and RECORD."""
    info = f"{name}-{version}.dist-info"
    lines = [
        f"../../bin/{name},sha256={_hash(str(site).encode())},{len(str(site))}",
        f"{info}/INSTALLER,sha256={_hash(b'pip')},3",
        f"{name}/__pycache__/a.cpython-312.pyc,,",
        f"{info}/RECORD,,",
    ]
    for path, content in (files | {f"{info}/METADATA": f"Name: {name}\n".encode()}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        lines.append(f"{path},sha256={_hash(content)},{len(content)}")
    (site / info / "RECORD").write_text("\n".join(lines) + "\n")


def folder_of_packages(site: Path) -> Path:
    """Two distributions, and FlashAttention's modules, unpacked beside and into them."""
    distribution(
        site,
        "torch",
        "2.11.0",
        {"torch/__init__.py": b"import torch._C\n", "torch/lib/libtorch.so": elf(content=b"torch")},
    )
    distribution(
        site,
        "flash_attn_4",
        "4.0",
        {"flash_attn/cute/__init__.py": b"", "flash_attn/cute/plain.so": elf(None, b"plain")},
    )
    for path, content in {
        "flash_attn/__init__.py": b"version = 2\n",
        "flash_attn_2_cuda.so": elf(b"\2" * 20),
        "flash_attn_3/__init__.py": b"",
        "flash_attn_3/_C.abi3.so": elf(None, b"three"),
        "never_imported.py": b"",
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    return site


def loaded_in(site: Path, *, more: tuple[str, ...] = ()) -> LoadedSoftware:
    """The objects that a process has loaded from there after it imported all of these packages.

    Args:
        more: further files that it has mapped.
    """
    paths = [str(path) for path in sorted(site.rglob("*.so"))] + list(more)
    maps = "".join(f"7f00-7f01 r-xp 00000000 08:01 77     {path}\n" for path in paths)
    maps += (
        f"7f02-7f03 r--p 00000000 08:01 78     {site}/never_imported.py\n7f04-7f05 r-xp 00000000 00:00 "
        f"0     [vdso]\n"
    )
    modules = {}
    for path in sorted(site.rglob("*.py")):
        if path.stem != "never_imported":
            modules[str(path)] = ModuleType(path.stem)
            modules[str(path)].__file__ = str(path)
    loaded = LoadedFiles([PackageFolder(site.resolve())]).look(maps, modules)
    assert loaded is not None
    return loaded


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
