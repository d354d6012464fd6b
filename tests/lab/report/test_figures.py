"""Every figure, whatever the registry finds, keeps the contract."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from longca.core.plugin import Registry
from longca.lab.report.content.drawn import Paper, drawn_figures
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw, inline
from longca.lab.store.table import derived
from tests.helpers.records import gpu_study, quick_study, record
from tests.helpers.report.figures import METHODS, SOME, completed

FIGURES = Registry("figure").names()


@pytest.mark.parametrize("name", FIGURES)
def test_it_says_and_draws_what_the_data_hold(name, quick, drawing):
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    assert len(data) and figure.label and figure.caption and figure.section
    title = figure.title(data)
    assert title and re.search(r"\d", title), "a claim has a number"
    text = draw(figure, data, Style(METHODS))
    assert "<text" in text and "DejaVu" not in text, "text stays text"
    assert float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1]) == pytest.approx(792)
    ElementTree.fromstring(text)
    assert draw(figure, data, Style(METHODS)) == text
    own = drawing(name)
    ElementTree.fromstring(own.svg)
    assert not re.search(r"#(?!fig)[0-9a-f]{6}", own.svg), "every colour follows the theme"
    assert set(re.findall(r'id="([^"]*)"', own.svg)) == {
        f"fig{number}" for number in range(own.svg.count(' id="'))
    }


@pytest.mark.parametrize("name", FIGURES)
def test_each_mark_on_the_page_leads_to_its_records(name, quick, drawing):
    """As many marks as cells in each group, and every cell of the data is somewhere."""
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    own = drawing(name).svg
    ids = data.cell_ids if "cell_ids" in data else data.cell_id
    seen = []
    for group in ElementTree.fromstring(own).iter("g"):
        if rows := group.get("data-rows"):
            points = [[int(row) for row in point.split("+")] for point in rows.split(",")]
            assert len(points) == sum(1 for mark in group.iter("use") if mark.get("href").startswith("#fig"))
            assert {quick.method[row] for point in points for row in point} == {group.get("data-method")}
            seen += [quick.cell_id[row] for point in points for row in point]
    assert sorted(seen) == sorted(" ".join(ids).split(" "))


ODD = ("$\\frac$", "$b$ _{c}", "a:b", '"<&>', "a%41/b,c+d")


@pytest.mark.parametrize("odd", [" ".join(ODD), *(pytest.param(odd, marks=pytest.mark.slow) for odd in ODD)])
@pytest.mark.parametrize("name", FIGURES)
def test_odd_names_lose_no_figure_and_no_mark(name, odd):
    table = completed(derived([entry for entry in quick_study() if entry.cell.mask in SOME]))
    for column in ("method", "kernel", "mask", "strategy"):
        table[column] = [f"{value}{odd}" if isinstance(value, str) else value for value in table[column]]
    figure = Registry("figure").load(name)
    data = figure.data(table)
    methods = tuple(dict.fromkeys(table.method))
    assert odd in "".join(ElementTree.fromstring(draw(figure, data, Style(methods))).itertext()), (
        "it is written as it is"
    )
    own = inline(
        figure,
        data,
        Style(methods, on_page=True),
        "fig",
        "",
        {cell: row for row, cell in enumerate(table.cell_id)},
    ).svg
    groups = [group for group in ElementTree.fromstring(own).iter("g") if group.get("data-rows")]
    ids = data.cell_ids if "cell_ids" in data else data.cell_id
    assert sum(
        len(point.split("+")) for group in groups for point in group.get("data-rows").split(",")
    ) == len(" ".join(ids).split())
    assert {group.get("data-method") for group in groups} <= set(methods)


@pytest.mark.parametrize("name", FIGURES)
def test_it_takes_a_study_without_its_data_and_one_of_a_single_cell(name):
    figure = Registry("figure").load(name)
    assert len(figure.data(derived([]))) == 0
    single = figure.data(derived([record(quick_study()[0].cell)]))
    if len(single):
        assert figure.title(single) and draw(figure, single, Style(METHODS))


@pytest.mark.parametrize("name", FIGURES)
def test_it_takes_failures_only(name):
    figure = Registry("figure").load(name)
    failed = [
        entry for entry in quick_study() if entry.outcome.status in ("oom", "error", "timeout", "incorrect")
    ]
    data = figure.data(derived(failed))
    if len(data):
        assert figure.title(data) and draw(figure, data, Style(METHODS))


@pytest.mark.parametrize("name", ["throughput_forward", "throughput_backward", "memory"])
def test_settings_and_seeds_of_a_gpu_study(name):
    figure = Registry("figure").load(name)
    chosen = [
        entry
        for entry in gpu_study()
        if entry.cell.kernel in ("fa3", "naive") and entry.cell.mask in ("causal", "causal_document")
    ]
    data = figure.data(derived(chosen))
    assert set(data.setting) == {"64:8 heads", "64:64 heads"} and (data.num_cells > 1).any()
    assert "64:8 heads" in draw(figure, data, Style(METHODS))


def test_only_right_results_are_speeds(quick):
    for name in FIGURES:
        data = Registry("figure").load(name).data(quick)
        if "value" in data:
            assert data.value[data.status != "ok"].isna().all()


@pytest.mark.parametrize(
    "name", ["throughput_forward", "throughput_backward", "sparse_throughput", "memory", "energy"]
)
def test_a_title_of_one_method_compares_nothing(name, quick):
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    alone = data[data.method == data.method.mode()[0]]
    method = alone.method.iloc[0]
    title = figure.title(alone)
    assert re.search(rf": only {re.escape(method)} ran[,;] .*\d", title), title
    assert title.count(method) == 1 and "two or more" not in title and "only" not in figure.title(data)


@pytest.mark.parametrize(
    "name", ["throughput_forward", "throughput_backward", "sparse_throughput", "cp_throughput"]
)
def test_a_title_names_leaders_and_the_line_below_it_their_rivals(name, quick):
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    title, basis = figure.title(data), figure.basis(data)
    assert (
        " against " in basis and " against " not in title and "protocol" not in title and "up to" not in title
    )
    shown, _, _ = drawn_figures(quick, Paper(METHODS, {}, {}, frozenset(), None, False))
    (drawn,) = [drawn for drawn in shown[figure.section] if drawn.name == name]
    assert drawn.title == title and drawn.subtitle.endswith(f" · {basis}")
