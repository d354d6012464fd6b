"""Every figure, whatever the registry finds, keeps the contract."""

import functools
import itertools
import re
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from longca.core.plugin import Registry
from longca.lab.report.content.drawn import Paper, drawn_figures
from longca.lab.report.figures.cp_throughput import _by_tokens
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw, inline
from longca.lab.report.rates import draw_rates
from longca.lab.store.table import derived
from tests.helpers.records import gpu_study, quick_study, record

FIGURES = Registry("figure").names()
METHODS = (
    "flex",
    "naive",
    "sdpa",
    "ulysses+sdpa",
    "ring_p2p+sdpa",
    "ring_allgather+sdpa",
    "control",
    "fa2",
    "fa3",
    "cudnn",
    "flashmask",
)


SOME = ("full", "causal_document", "block_sparse_uniform")


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["some masks", "all masks"],
)
def quick(request):
    """The time that a figure takes grows with its panels: one for each mask."""
    return _completed(derived([entry for entry in quick_study() if request.param or entry.cell.mask in SOME]))


@pytest.fixture(scope="module")
def drawing(quick):
    return drawings_of(quick)


def drawings_of(quick):
    """A figure's name → its drawing on the page, with a title that must be escaped; each is made once."""
    rows = {cell: row for row, cell in enumerate(quick.cell_id)}
    style = Style(METHODS, on_page=True, pictures=frozenset(["full"]))

    @functools.cache
    def drawn(name):
        figure = Registry("figure").load(name)
        return inline(figure, figure.data(quick), style, "fig", 'says "so" & <more>', rows)

    return drawn


def _completed(table):
    """Facts that records of a CPU cannot have: energies, predictions, strategies beside each other, and many
    draws of documents."""
    of_cp = table[(table.kind == "cp") & (table.status == "ok")]
    others = [
        of_cp.assign(
            strategy=name,
            method=f"{name}+sdpa",
            cell_id=of_cp.cell_id + name,
            time_ms_median=of_cp.time_ms_median * factor,
        )
        for name, factor in (("ring_p2p", 1.3), ("ring_allgather", 0.9))
    ]
    drawn = of_cp[of_cp["mask"] == "causal_document"]
    others += [
        drawn.assign(
            seed=seed,
            cell_id=drawn.cell_id + f"s{seed}",
            tflops_per_device=drawn.tflops_per_device * (1 + seed / 10),
        )
        for seed in range(1, 5)
    ]
    whole = pd.concat([table, *others], ignore_index=True)
    time_ms = whole.time_ms_median.where(~whole.is_control.astype(bool))
    predicted = (time_ms * 1.1).where(whole.kind == "cp")
    return whole.assign(
        joules_per_token=time_ms / 1e3,
        predicted_ms=predicted,
        predicted_low_ms=predicted * 0.9,
        predicted_high_ms=predicted * 1.15,
    )


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
    table = _completed(derived([entry for entry in quick_study() if entry.cell.mask in SOME]))
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


def test_the_slowest_rank_is_shown(quick):
    figure = Registry("figure").load("cp_ranks")
    data = figure.data(quick)
    assert set(data.world) == {2} and (data.straggler_percent > 0).all() and set(data.slowest_rank) <= {0, 1}
    assert "is typically" in figure.title(data) and "ulysses+sdpa ×2" in draw(figure, data, Style(METHODS))


@pytest.mark.parametrize(
    ("lengths", "details"),
    [
        ({(2, 2048), (4, 4096)}, {""}),  # each rank as many tokens
        ({(2, 2048), (4, 4096), (2, 8192)}, {"1K a rank", "4K a rank"}),
        ({(2, 2048), (4, 2048), (2, 16384), (4, 16384)}, {"2K in all", "16K in all"}),
    ],
)
def test_ranks_are_compared_with_as_many_tokens(lengths, details):
    own = quick_study()[0].cell.model_copy(
        update={"kind": "cp", "strategy": "ulysses", "kernel": "sdpa", "mask": "causal"}
    )
    cells = [own.model_copy(update={"world": world, "seqlen": seqlen}) for world, seqlen in sorted(lengths)]
    figure = Registry("figure").load("cp_throughput")
    data = figure.data(derived([record(cell) for cell in cells]))
    assert set(_by_tokens(data).detail) == details and len(_by_tokens(data)) == len(lengths)
    text = draw(figure, data, Style(("ulysses+sdpa",)))
    assert all(detail in text for detail in details)


def test_a_density_axis(quick):
    data = Registry("figure").load("sparse_throughput").data(quick)
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {2048}


def test_densities_are_drawn_where_they_were_measured():
    """The longest length may have been measured at one density alone."""
    chosen = [
        entry
        for entry in quick_study()
        if entry.cell.mask == "block_sparse_uniform" and entry.outcome.status == "ok"
    ]
    chosen = [
        entry for entry in chosen if entry.cell.seqlen == 1024 or entry.cell.mask_params["density"] == 0.2
    ]
    data = Registry("figure").load("sparse_throughput").data(derived(chosen))
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {1024}
    assert "at 1K" in Registry("figure").load("sparse_throughput").title(data)


def test_memory_is_compared_where_the_most_methods_ran():
    ran = {
        "sdpa": ("full",),
        "flex": ("causal", "prefix_lm"),
        "flashmask": ("causal", "prefix_lm", "shared_question"),
    }
    chosen = [
        entry
        for entry in gpu_study()
        if entry.cell.num_kv_heads == 8
        and entry.cell.direction == "fwd"
        and entry.cell.mask in ran.get(entry.cell.kernel, ())
    ]
    figure = Registry("figure").load("memory")
    title = figure.title(figure.data(derived(chosen)))
    assert (
        "flex" in title
        and "flashmask" in title
        and "sdpa" not in title
        and "(prefix_lm · forward · 32K)" in title
    ), title


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


@pytest.mark.parametrize("name", ["accuracy", "cp_ranks", "energy", "noise", "predicted_errors"])
def test_dots_in_rows_are_drawn_for_narrow_windows_too(name, drawing):
    """With the same marks, on paper that needs no scrolling at 390 px, and the ids of both differ."""
    both = [ElementTree.fromstring(svg) for svg in (drawing(name).svg, drawing(name).narrow_svg)]
    assert [float(root.get("viewBox").split()[2]) <= 358 for root in both] == [False, True]
    assert len({tuple(group.get("data-rows", "") for group in root.iter("g")) for root in both}) == 1
    ids = [{part.get("id") for part in root.iter()} - {None} for root in both]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_panels_have_one_drawing(drawing):
    assert drawing("throughput_forward").narrow_svg == ""


def test_marks_of_an_axis_have_room_in_narrow_windows(drawing):
    narrow = drawing("predicted_errors").narrow_svg
    texts = [
        text for text in ElementTree.fromstring(narrow).iter("text") if re.match(r"[+-]?\d+( %)?$", text.text)
    ]
    places = sorted(float(text.get("x")) for text in texts)
    assert len(places) > 2 and all(b - a >= 24 for a, b in itertools.pairwise(places))


def test_panels_move_in_narrow_windows(quick, drawing):
    """A drawing has its panels once; a standalone file knows nothing of windows."""
    figure = Registry("figure").load("throughput_forward")
    data = figure.data(quick)
    own = drawing("throughput_forward")
    panels = [group for group in ElementTree.fromstring(own.svg).iter("g") if group.get("data-panel")]
    moved = [group for group in panels if "--y" in group.get("style", "")]
    assert len(panels) > len(moved) > 0 and own.narrow_size.width < own.narrow_size.full_width
    assert "--y" not in draw(figure, data, Style(METHODS)) and "shift" not in draw(
        figure, data, Style(METHODS)
    )


def test_a_noisy_point_stands_off_its_line():
    """A line through it would show a dip that the next run does not have."""
    lengths = (1024, 2048, 4096, 8192)
    data = pd.DataFrame(
        [
            {"mask": "full", "detail": "", "method": "sdpa", "seqlen": seqlen, "value": 100.0, "low": 99.0,
             "high": 101.0, "noise": 0.5 if seqlen == 4096 else 0.02, "status": "ok", "cell_ids": str(seqlen)}
            for seqlen in lengths
        ]
    )  # fmt: skip
    data.loc[data.seqlen == 4096, ["value", "low", "high"]] = (20.0, 15.0, 95.0)
    canvas = draw_rates(data, Style(["sdpa"]))
    (ax,) = [ax for ax in canvas.axes if ax.lines]
    drawn = {tuple(line.get_xdata()): line.get_linestyle() for line in ax.lines}
    assert drawn == {(1024, 2048, 8192): "-", (4096,): "None"}
    few = data[data.seqlen > 1024]
    (ax,) = [ax for ax in draw_rates(few, Style(["sdpa"])).axes if ax.lines]
    assert [tuple(line.get_xdata()) for line in ax.lines] == [(2048, 4096, 8192)], (
        "two steady ones make no line"
    )
