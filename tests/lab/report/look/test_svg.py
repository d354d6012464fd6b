"""Drawings on the page: colours, lines, signs and masks."""

from xml.etree import ElementTree

from longca.core.plugin import Registry
from longca.lab.report.look.colours import FAINT, HEAT, MUTED
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw, inline
from longca.lab.store.table import derived
from tests.helpers.records import gpu_study, quick_study, record

METHODS = ("flex", "naive", "sdpa", "flashmask", "control")


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
