"""The page of a bundle with its figures and tables, made only from the records."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from longca.core import load_hardware
from longca.lab.report.build import build
from longca.lab.store import LoadedRows


def page_files(loaded: LoadedRows, title: str, hardware: Path, lists: Sequence[Path]) -> dict[str, bytes]:
    """Path → content. Equal records, hardware file, image lists, code and packages give equal bytes. Raises
    UserError."""
    with tempfile.TemporaryDirectory() as name:
        build(
            loaded.table,
            (),
            Path(name) / "report.html",
            study_title=title,
            hardware=load_hardware(hardware),
            environments=loaded.environments,
            lists=lists,
        )
        return {
            path.relative_to(name).as_posix(): path.read_bytes()
            for path in sorted(Path(name).rglob("*"))
            if path.is_file()
        }
