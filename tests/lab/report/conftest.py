"""One page of the whole quick study and its figures, made once. A page costs seconds, so most tests make one
of a few records."""

from collections import defaultdict
from pathlib import Path

import pytest

from longca.lab.report import build as building
from longca.lab.report.build import build
from longca.lab.report.look.svg import with_shared_styles
from longca.lab.store.table import derived
from tests.helpers.records import quick_study
from tests.helpers.report.few import DAMAGED, few
from tests.helpers.report.figures import SOME, completed, drawings_of
from tests.helpers.report.outline import Outline


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return build(quick_study(), [DAMAGED], folder / "report.html", study_title="Quick & <plain>")


@pytest.fixture(scope="session")
def few_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    return build(few(), [DAMAGED], folder / "report.html", study_title="Few & <plain>")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take most of a page's time, for tests of its other parts."""
    monkeypatch.setattr(
        building,
        "drawn_figures",
        lambda table, paper, beside: (defaultdict(list), with_shared_styles([]), [work() for work in beside]),
    )


@pytest.fixture(scope="session")
def text(page):
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def outline(text):
    return Outline(text)


@pytest.fixture(
    scope="session",
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["some masks", "all masks"],
)
def quick(request):
    """The time that a figure takes grows with its panels: one for each mask."""
    return completed(derived([entry for entry in quick_study() if request.param or entry.cell.mask in SOME]))


@pytest.fixture(scope="session")
def drawing(quick):
    return drawings_of(quick)
