"""Folders of external plug-ins, which `LONGCA_PLUGINS` names."""

import functools
import os
from pathlib import Path

from longca.core.errors import UserError


def named_folders() -> list[Path]:
    """The folders in `LONGCA_PLUGINS`, whether they exist or not."""
    parts = os.environ.get("LONGCA_PLUGINS", "").split(os.pathsep)
    return list(dict.fromkeys(Path(part).expanduser().resolve() for part in parts if part))


@functools.cache
def check_folder(folder: Path, plurals: tuple[str, ...]) -> None:
    """Raises UserError for a missing folder, or one without a sub-folder of these names."""
    if not folder.is_dir():
        raise UserError(
            f"LONGCA_PLUGINS names '{folder}'",
            why="there is no such folder",
            todo="Give a folder of plug-ins, or unset it",
        )
    if not any((folder / plural).is_dir() for plural in plurals) and any(folder.iterdir()):
        todo = (
            f"Give '{folder.parent}'"
            if folder.name in plurals
            else f"Plug-ins lie in sub-folders: {', '.join(plurals)}"
        )
        raise UserError(f"LONGCA_PLUGINS names '{folder}'", why="it holds no plug-ins", todo=todo)
