"""The page of a bundle with its figures and tables, made only from the records."""

from collections.abc import Sequence
from pathlib import Path

from longca.core import load_hardware
from longca.lab.report.build import build
from longca.lab.store import LoadedRows


def page_files(
    loaded: LoadedRows, title: str, hardware: Path, lists: Sequence[Path], folder: Path
) -> dict[str, Path]:
    """Path → the file in `folder`, to which the page is written. Equal records, hardware file, image lists,
    code and packages give equal bytes. Raises UserError."""
    build(
        loaded.table,
        (),
        folder / "report.html",
        study_title=title,
        hardware=load_hardware(hardware),
        environments=loaded.environments,
        lists=lists,
    )
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
