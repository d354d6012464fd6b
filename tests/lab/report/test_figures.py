"""Every figure, whatever the registry finds, keeps the contract."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest

from longca.core.call import AS_RELEASED
from longca.core.plugin import Registry
from longca.lab.report.figures.cp_throughput import _by_tokens
from longca.lab.report.look.colours import (
    FAINT,
    HEAT,
    KERNELS,
    MARKERS,
    MUTED,
    SPARE,
    STRATEGIES,
    looks,
    text_colour,
    theme,
)
from longca.lab.report.look.style import Style, spread
from longca.lab.report.look.svg import draw, inline
from longca.lab.report.look.tree import compact, parsed
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


SOME = ("full", "causal_document", "prefix_lm", "block_sparse_uniform")


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["some masks", "all masks"],
)
def quick(request):
    """The time that a figure takes grows with its panels: one for each mask."""
    return _completed(derived([entry for entry in quick_study() if request.param or entry.cell.mask in SOME]))


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
def test_it_says_and_draws_what_the_data_hold(name, quick):
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
    style = Style(METHODS, on_page=True, pictures=frozenset(["full"]))
    own = inline(
        figure,
        data,
        style,
        "fig",
        'says "so" & <more>',
        {cell: row for row, cell in enumerate(quick.cell_id)},
    )
    ElementTree.fromstring(own.svg)
    assert not re.search(r"#(?!fig)[0-9a-f]{6}", own.svg), "every colour follows the theme"
    assert set(re.findall(r'id="([^"]*)"', own.svg)) == {
        f"fig{number}" for number in range(own.svg.count(' id="'))
    }


@pytest.mark.parametrize("name", FIGURES)
def test_each_mark_on_the_page_leads_to_its_records(name, quick):
    """As many marks as cells in each group, and every cell of the data is somewhere."""
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    own = inline(
        figure,
        data,
        Style(METHODS, on_page=True),
        "fig",
        "",
        {cell: row for row, cell in enumerate(quick.cell_id)},
    ).svg
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


@pytest.mark.sample(3)
@pytest.mark.parametrize("odd", ODD)
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


def test_of_many_methods_the_best_have_colours():
    chosen = [
        entry
        for entry in gpu_study()
        if entry.cell.mask in ("full", "causal") and entry.cell.num_kv_heads == 8
    ]
    figure = Registry("figure").load("throughput_forward")
    data = figure.data(derived(chosen))
    methods = tuple(sorted(set(data.method)))
    drawing = inline(figure, data, Style(methods, on_page=True), "fig", "")
    kinds = {key.label: key.kind for key in drawing.keys if key.kind != "sign"}
    assert set(kinds) == set(methods) == {"naive", "sdpa", "flex", "fa2", "fa3", "cudnn", "flashmask"}
    assert {label for label, kind in kinds.items() if not kind} == {"fa3", "cudnn", "flex", "flashmask"}, (
        "the four that are fastest"
    )
    for group in ElementTree.fromstring(drawing.svg).iter("g"):
        if "points" in group.get("class", ""):
            look = (
                "var(--faint)" if kinds[group.get("data-method")] else f"var(--k-{group.get('data-method')})"
            )
            assert look in ElementTree.tostring(group, "unicode")
    assert FAINT[0] in draw(figure, data, Style(methods))


def test_numbers_of_a_drawing_are_short_and_shares_exact():
    root = parsed(
        '<svg xmlns="http://www.w3.org/2000/svg"><!-- no --><g id="a"><g id="b"/></g>'
        '<path d="M 10.123 -0.04 \nL -3.96 4 z" style="opacity: 0.55; stroke-width: 0.84"/>'
        '<text transform="rotate(-0 1.23 4)"> a 1.234 </text></svg>'
    )
    compact(root)
    group, path, text = root
    assert path.get("d") == "M10.1 0L-4 4z" and path.get("style") == "opacity: 0.55; stroke-width: 0.8"
    assert text.text == " a 1.234 " and not text.attrib and group.attrib == {"id": "a"}


def test_two_values_of_x_are_not_joined():
    own = quick_study()[0].cell
    figure = Registry("figure").load("throughput_forward")

    def lines(*lengths):
        data = figure.data(derived([record(own.model_copy(update={"seqlen": length})) for length in lengths]))
        drawing = inline(figure, data, Style(METHODS, on_page=True), "fig", "").svg
        groups = [
            group for group in ElementTree.fromstring(drawing).iter("g") if group.get("class") == "points"
        ]
        return [
            path
            for group in groups
            for path in group
            if path.tag == "path" and set("LlH") & set(path.attrib["d"])
        ]

    assert not lines(1024, 2048) and len(lines(1024, 2048, 4096)) == 1


def test_a_sign_keeps_its_colour_and_its_words():
    class Drawing:
        def draw(self, data, style):
            canvas = style.canvas(1)
            style.legend(
                canvas, [("counted, 1/2", {"color": HEAT[0]}), ("failed", {"color": MUTED[0], "marker": "x"})]
            )
            return canvas

    drawing = inline(Drawing(), derived([]), Style((), on_page=True), "fig", "")
    assert [(key.label, key.marker, key.kind, key.colour) for key in drawing.keys] == [
        ("counted, 1/2", "", "sign", "var(--heat)"),
        ("failed", "x", "sign", ""),
    ]


def test_a_panel_shows_its_mask():
    figure = Registry("figure").load("throughput_forward")
    own = quick_study()[0].cell
    data = figure.data(derived([record(own), record(own.model_copy(update={"seqlen": 1024}))]))
    with_it, without = (
        inline(figure, data, Style(METHODS, on_page=True, pictures=frozenset(pictures)), "fig", "").svg
        for pictures in (["full"], [])
    )
    assert '<use href="#m-full" ' in with_it and "#m-" not in without


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


def test_names_have_room(quick):
    assert (
        Style(METHODS).names_in(["a" * 30]) > Style(METHODS).names_in(["a"]) > Style(METHODS).names_in([]) > 0
    )
    assert Style(METHODS).names_in(["a" * 99]) == pytest.approx(0.56 * 11)


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


def test_panels_are_wide_enough_for_their_subtitles():
    figure = Registry("figure").load("sparse_throughput")
    data = figure.data(derived(quick_study()))
    few = draw(figure, data, Style(METHODS))
    long = data.assign(detail=data.detail + " and so much more that no other panel fits beside it" * 2)
    many = draw(figure, long, Style(METHODS))
    height = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)', text)[1]) for text in (few, many)]
    assert height[1] > 1.5 * height[0]


def test_each_name_has_one_look_whatever_else_is_there():
    alone = looks(["fa3"])
    together = looks([*KERNELS, *(f"{name}+fa3" for name in STRATEGIES), "unknown"])
    assert alone["fa3"] == together["fa3"] and looks(["unknown"])["unknown"] == together["unknown"]
    assert len({look.colour for look in together.values()}) == len(together), "never one colour for two"
    assert {look.marker for method, look in together.items() if method.endswith("+fa3")} == {
        alone["fa3"].marker
    }
    assert {look.variable for look in together.values()} <= {name for name, _, _ in theme().values()}
    assert {marker for _, _, marker in KERNELS.values()} <= MARKERS.keys()


def test_unknown_names_take_spare_colours_of_their_own():
    names = [f"mine_{index}" for index in range(len(SPARE))]
    styles = looks(names)
    assert len({look.colour for look in styles.values()}) == len(SPARE) and styles == looks(names[::-1])
    assert len(looks([*names, "one_more"])) == len(SPARE) + 1


def test_every_kernel_and_strategy_of_the_package_has_a_colour():
    ranked = {name for name in Registry("kernel", []).names() if not name.startswith(AS_RELEASED)}
    assert ranked == KERNELS.keys() and set(Registry("strategy", []).names()) == STRATEGIES.keys()


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(first: float, other: float) -> float:
    return (max(first, other) + 0.05) / (min(first, other) + 0.05)


def mixed(colour: str, other: str, share: float) -> str:
    """`share` of the one colour and the rest of the other, in sRGB."""
    pairs = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * first + (1 - share) * second):02x}" for first, second in pairs)


def oklab(colour: str) -> np.ndarray:
    """Lightness and two axes of hue, in which equal distances look alike."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(
        np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]])
        @ linear
    )
    return (
        np.array([[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]])
        @ cones
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "together",
    [
        ("band", "vsa", "fa2_sparse", "flashinfer", "flex", "flex_flash", "fa4", "cudnn_bsa", "cudnn_flex"),
        ("band", "naive", "sdpa", "fa2", "fa3", "fa4", "cudnn", "cudnn_graph", "flex", "flashmask"),
    ],
)
def test_kernels_of_one_study_look_different(together, dark):
    for first, other in itertools.combinations(together, 2):
        assert np.linalg.norm(oklab(KERNELS[first][dark]) - oklab(KERNELS[other][dark])) > 0.07, (
            first,
            other,
        )


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_their_ground(dark):
    grounds = {name: (light, night) for name, light, night in theme().values()}
    ground = luminance(grounds["ground"][dark])
    for name, pair in grounds.items():
        is_line = name.startswith(("k-", "s-", "spare-")) or name == "faint"
        if is_line or name in ("ink", "muted", "bad"):
            assert contrast(luminance(pair[dark]), ground) >= (3.0 if is_line else 4.5), name
        if is_line and name != "faint":  # as text it is mixed with ink: figures.css
            assert contrast(luminance(mixed(pair[dark], grounds["ink"][dark], 0.7)), ground) >= 4.5, name


def test_text_can_be_read_on_any_ground():
    for ground in (
        "#000000",
        "#ffffff",
        *(f"#{level:02x}{level:02x}{level:02x}" for level in range(100, 140)),
    ):
        assert contrast(luminance(text_colour(ground)), luminance(ground)) >= 4.5, ground


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([], []),
        ([10.0, 40.0], [10.0, 40.0]),
        ([20.0, 21.0, 50.0], [16.5, 24.5, 50.0]),  # those too close move apart around their mean
        ([58.0, 59.0, 60.0], [44.0, 52.0, 60.0]),
        ([0.0, 1.0], [0.0, 8.0]),  # and stay between the edges
        ([20.0, 27.0, 34.0], [19.0, 27.0, 35.0]),
        ([10.0, 10.0, 22.0], [6.0, 14.0, 22.0]),
    ],
)
def test_labels_beside_ends_of_lines_keep_their_distance(wanted: list[float], places: list[float]):
    assert spread(wanted, 8.0, 60.0) == pytest.approx(places)


def test_a_spread_that_its_marker_hides_is_not_drawn():
    points = pd.DataFrame(
        {
            "x": [1.0, 2.0],
            "value": [50.0, 50.0],
            "low": [49.9, 30.0],
            "high": [50.1, 50.0],
            "cell_ids": ["a", "b"],
        }
    )
    ax = Style(("fa3",)).panels(1, per_row=2, title_lines=1, title_chars=4, legend=[])[1][0]
    ax.set_xlim(0, 3)
    ax.set_ylim(0, 100)
    Style(("fa3",)).line(ax, "fa3", points, "x")
    (bars,) = ax.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[2.0, 30.0], [2.0, 50.0]]]


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


@pytest.mark.parametrize("name", ["accuracy", "cp_ranks", "energy", "noise", "predicted_errors"])
def test_dots_in_rows_are_drawn_for_narrow_windows_too(name, quick):
    """With the same marks, on paper that needs no scrolling at 390 px, and the ids of both differ."""
    figure = Registry("figure").load(name)
    rows = {cell: row for row, cell in enumerate(quick.cell_id)}
    drawing = inline(figure, figure.data(quick), Style(METHODS, on_page=True), "A", "", rows)
    both = [ElementTree.fromstring(svg) for svg in (drawing.svg, drawing.narrow_svg)]
    assert [float(root.get("viewBox").split()[2]) <= 358 for root in both] == [False, True]
    assert len({tuple(group.get("data-rows", "") for group in root.iter("g")) for root in both}) == 1
    ids = [{part.get("id") for part in root.iter()} - {None} for root in both]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_panels_have_one_drawing(quick):
    figure = Registry("figure").load("throughput_forward")
    assert inline(figure, figure.data(quick), Style(METHODS, on_page=True), "A", "").narrow_svg == ""


def test_marks_of_an_axis_have_room_in_narrow_windows(quick):
    figure = Registry("figure").load("predicted_errors")
    narrow = inline(figure, figure.data(quick), Style(METHODS, on_page=True), "A", "").narrow_svg
    texts = [
        text for text in ElementTree.fromstring(narrow).iter("text") if re.match(r"[+-]?\d+( %)?$", text.text)
    ]
    places = sorted(float(text.get("x")) for text in texts)
    assert len(places) > 2 and all(b - a >= 24 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("outline", "short"),
    [
        ("M 36 138.2 L 155.6 138.2 ", "M36 138.2H155.6"),
        ("M 88.25 67.6 L 88.21 64.2 ", "M88.2 67.6V64.2"),
        ("M 42.4 90.6 L 57.7 74.6 L 72.9 65.2 ", "M42.4 90.6l15.3-16 15.2-9.4"),
        ("M 0 0 L 1 1 z L 2 3 ", "M0 0l1 1zL2 3"),
        ("M 0 1.6 C 0.4 1.6 0.8 1.5 1.1 1.1 z ", "M0 1.6C0.4 1.6 0.8 1.5 1.1 1.1z"),
    ],
)
def test_outlines_have_few_letters(outline, short):
    root = parsed(f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{outline}"/></svg>')
    compact(root)
    assert root[0].get("d") == short
