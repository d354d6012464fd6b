"""The study's page of a few records, beside the page of their run."""

from pathlib import Path

import pytest

from longca.lab.paper.build import build_paper
from longca.lab.report.content.packing import compressed
from longca.lab.report.rows import rows_json
from longca.lab.report.series import labelled
from longca.lab.store.table import derived, in_order
from tests.helpers.report.few import DAMAGED, few


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page that has the records of the quick study, and tells who came to it."""
    folder = tmp_path_factory.mktemp("site")
    records = in_order(few())
    (folder / "runs").mkdir()
    (folder / "runs/quick.html").write_text(
        f'<title></title><script type="application/zlib" '
        f'id="data">{compressed(rows_json(records, labelled(derived(records))))}</script>'
        "<script>document.title = JSON.stringify([window.name, location.hash])</script>",
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="session")
def page(site: Path) -> Path:
    return build_paper(few(), [DAMAGED], site / "paper")


@pytest.fixture(scope="session")
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")
