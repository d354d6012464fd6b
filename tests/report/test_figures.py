"""Every figure, whatever the registry finds, keeps the contract."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from longca.core.plugin import Registry
from longca.report.figures.cp_throughput import _by_tokens
from longca.report.style import SERIES, Style, theme
from longca.report.svg import draw, inline
from longca.store.table import derived
from tests.records import gpu_study, quick_study, record

FIGURES = Registry("figure").names()
METHODS = ("flex", "naive", "sdpa", "ulysses+sdpa", "control", "fa2", "fa3", "cudnn", "flashmask")


SOME = ("full", "causal_document", "prefix_lm", "block_sparse_uniform")


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["some masks", "all masks"])
def quick(request):
    """The time that a figure takes grows with its panels: one for each mask."""
    return derived([entry for entry in quick_study() if request.param or entry.cell.mask in SOME])


@pytest.mark.parametrize("name", FIGURES)
def test_it_says_and_draws_what_the_data_hold(name, quick):
    figure = Registry("figure").load(name)
    data = figure.data(quick)
    assert len(data) and figure.label and figure.caption and figure.section
    title = figure.title(data)
    assert title and re.search(r"\d", title), "a claim has a number"
    for narrow in (False, True):
        text = draw(figure, data, Style(METHODS, narrow))
        assert "<text" in text and "DejaVu" not in text, "text stays text"
        assert float(re.search(r'viewBox="0 0 ([\d.]+)', text)[1]) == pytest.approx(280.8 if narrow else 792)
        ElementTree.fromstring(text)
        own = inline(text, "fig", 'says "so" & <more>')
        ElementTree.fromstring(own.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        assert not re.search(r"#(?!fig-)[0-9a-f]{6}", own), "every colour follows the theme"
    assert draw(figure, data, Style(METHODS, narrow=True)) == text


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
    failed = [entry for entry in quick_study() if entry.outcome.status in ("oom", "error", "timeout", "incorrect")]
    data = figure.data(derived(failed))
    if len(data):
        assert figure.title(data) and draw(figure, data, Style(METHODS))


@pytest.mark.parametrize("name", ["throughput_forward", "throughput_backward", "memory"])
def test_settings_and_seeds_of_a_gpu_study(name):
    figure = Registry("figure").load(name)
    chosen = [entry for entry in gpu_study() if entry.cell.kernel in ("fa3", "naive") and entry.cell.mask in ("causal",
                                                                                                              "causal_document")]
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


@pytest.mark.parametrize(("lengths", "details"), [
    ({(2, 2048), (4, 4096)}, {""}),  # each rank as many tokens
    ({(2, 2048), (4, 4096), (2, 8192)}, {"1K a rank", "4K a rank"}),
    ({(2, 2048), (4, 2048), (2, 16384), (4, 16384)}, {"2K in all", "16K in all"})])
def test_ranks_are_compared_with_as_many_tokens(lengths, details):
    own = quick_study()[0].cell.model_copy(update={"kind": "cp", "strategy": "ulysses", "kernel": "sdpa", "mask": "causal"})
    cells = [own.model_copy(update={"world": world, "seqlen": seqlen}) for world, seqlen in sorted(lengths)]
    figure = Registry("figure").load("cp_throughput")
    data = figure.data(derived([record(cell) for cell in cells]))
    assert set(_by_tokens(data).detail) == details and len(_by_tokens(data)) == len(lengths)
    text = draw(figure, data, Style(("ulysses+sdpa",)))
    assert all(detail in text for detail in details)


def test_names_have_room(quick):
    assert Style(METHODS).names_in(["a" * 30]) > Style(METHODS).names_in(["a"]) > Style(METHODS).names_in([]) > 0
    assert Style(METHODS, narrow=True).names_in(["a" * 99]) == pytest.approx(3.9 / 2)


def test_a_density_axis(quick):
    data = Registry("figure").load("sparse_throughput").data(quick)
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {2048}


def test_densities_are_drawn_where_they_were_measured():
    """The longest length may have been measured at one density alone."""
    chosen = [entry for entry in quick_study() if entry.cell.mask == "block_sparse_uniform" and entry.outcome.status == "ok"]
    chosen = [entry for entry in chosen if entry.cell.seqlen == 1024 or entry.cell.mask_params["density"] == 0.2]
    data = Registry("figure").load("sparse_throughput").data(derived(chosen))
    assert sorted(set(data.density)) == [0.2, 0.5] and set(data.seqlen) == {1024}
    assert "at 1K" in Registry("figure").load("sparse_throughput").title(data)


def test_memory_is_compared_where_the_most_methods_ran():
    ran = {"sdpa": ("full",), "flex": ("causal", "prefix_lm"), "flashmask": ("causal", "prefix_lm", "shared_question")}
    chosen = [entry for entry in gpu_study() if entry.cell.num_kv_heads == 8 and entry.cell.direction == "fwd"
              and entry.cell.mask in ran.get(entry.cell.kernel, ())]
    figure = Registry("figure").load("memory")
    title = figure.title(figure.data(derived(chosen)))
    assert "flex" in title and "flashmask" in title and "sdpa" not in title and "(prefix_lm · forward · 32K)" in title, title


def test_panels_are_wide_enough_for_their_subtitles():
    figure = Registry("figure").load("sparse_throughput")
    data = figure.data(derived(quick_study()))
    few = draw(figure, data, Style(METHODS, narrow=True))
    long = data.assign(detail=data.detail + " and so much more that no other panel fits beside it")
    many = draw(figure, long, Style(METHODS, narrow=True))
    height = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)', text)[1]) for text in (few, many)]
    assert height[1] > 1.5 * height[0]


def test_each_method_looks_the_same_everywhere():
    style = Style(METHODS)
    assert len({style.colour(method) for method in METHODS}) == len(METHODS)
    assert Style(METHODS, narrow=True).colour("sdpa") == style.colour("sdpa")
    many = Style(tuple(f"k{index}" for index in range(2 * len(SERIES))))
    looks = {(many.colour(method), many.marker(method)) for method in many.methods}
    assert len(looks) == len(many.methods)


def luminance(colour: str) -> float:
    channels = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_their_ground(dark):
    grounds = {name: (light, night) for name, light, night in theme().values()}
    ground = luminance(grounds["ground"][dark])
    for name, pair in grounds.items():
        if name.startswith("series") or name in ("ink", "muted", "bad"):
            bright, dim = sorted((luminance(pair[dark]), ground), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= (3.0 if name.startswith("series") else 4.5), name
