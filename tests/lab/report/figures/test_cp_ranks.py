"""The figure of the slowest rank."""

from longca.core.plugin import Registry
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw
from tests.helpers.report.figures import METHODS


def test_the_slowest_rank_is_shown(quick):
    figure = Registry("figure").load("cp_ranks")
    data = figure.data(quick)
    assert set(data.world) == {2} and (data.straggler_percent > 0).all() and set(data.slowest_rank) <= {0, 1}
    assert "is typically" in figure.title(data) and "ulysses+sdpa ×2" in draw(figure, data, Style(METHODS))
