"""The page of a bundle with its figures and tables, made from the records alone."""

import tempfile
from pathlib import Path

from longca.core.record import Record
from longca.report.build import build
from longca.store.hardware import load_hardware


def page_files(records: list[Record], title: str, hardware: Path) -> dict[str, bytes]:
    """Path → content. The same records, hardware file, code and packages give the same bytes. Raises UserError."""
    with tempfile.TemporaryDirectory() as name:
        build(records, (), Path(name) / "report.html", study_title=title, hardware=load_hardware(hardware))
        return {path.relative_to(name).as_posix(): path.read_bytes() for path in sorted(Path(name).rglob("*")) if path.is_file()}
