"""One page of the whole quick study, made once."""

from pathlib import Path

import pytest

from longca.report.build import build
from longca.store.cells import UnusableFile
from tests.records import quick_study

DAMAGED = UnusableFile(Path("results/quick/cells/ab/ab12cd34.json"), "is damaged (not JSON: cut off or overwritten)")


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return build(quick_study(), [DAMAGED], folder / "report.html", study_title="Quick & <plain>")
