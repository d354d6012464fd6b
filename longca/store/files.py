"""Writing a file at once or not at all."""

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, whenever the writer dies. Raises OSError."""
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
