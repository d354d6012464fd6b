"""One page of the whole quick study, made once; a page costs seconds, so most tests make one of a few
records."""

from collections import defaultdict
from pathlib import Path

import pytest

from longca.lab.report import build as building
from longca.lab.report.build import build
from longca.lab.report.look.svg import with_shared_styles
from tests.helpers.records import quick_study
from tests.helpers.report import DAMAGED, few


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
