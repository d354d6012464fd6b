"""Writing a file completely or not at all."""

import contextlib
import os
import secrets
from pathlib import Path

from longca.core.errors import UserError


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside and rename: a reader sees the old file or the new one, whenever the writer dies. Raises OSError.

    Args:
        mode: who may do what with a new file, less what the process's umask forbids.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes) -> Path:
    """Write `content` completely or not at all; a file that holds it already is not touched."""
    try:
        if path.exists() and path.read_bytes() == content:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"Cannot write '{path}'", why=error.strerror or str(error),
                        todo="Make room, or give another folder") from error
    return path
