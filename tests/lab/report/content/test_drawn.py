"""The figures of a page: one that raises costs only itself."""

import pytest

from longca.lab.report.build import build
from tests.helpers.report.few import few
from tests.helpers.report.outline import Outline


@pytest.mark.long
def test_a_figure_that_raises_costs_only_itself(tmp_path, monkeypatch):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "broken.py").write_text("""
from longca.lab.report.contract import Figure

class Broken(Figure):
    label, section = "Broken", "noise"

    def data(self, table):
        raise KeyError("<no such column>")
""")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    text = build(few()[-4:], [], tmp_path / "out" / "report.html", study_title="").read_text()
    Outline(text)
    assert (
        "could not be drawn: KeyError" in text
        and "&lt;no such column&gt;" in text
        and 'id="fig-noise"' in text
    )
