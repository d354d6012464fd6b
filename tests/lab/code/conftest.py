"""A package of a test's own files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longca.lab.code import code_digest, source
from longca.lab.code.source import modules_of_package, reached
from tests.helpers.core.code_package import Package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes files as the package, each time anew, and gives the digest of what its `main.py` runs."""
    written = 0

    def forget() -> None:
        modules_of_package.cache_clear()
        source._names_of_files.cache_clear()

    def write(files: dict[str, str]) -> str:
        nonlocal written
        written += 1
        root = tmp_path / str(written) / "longca"
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(source, "PACKAGE_ROOT", root)
        forget()
        (main,) = (path for path in modules_of_package().values() if path.name.startswith("main"))
        return code_digest(reached([main]))

    yield write
    forget()
