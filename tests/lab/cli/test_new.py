"""`longca new` writes plug-ins that keep their contracts as they are, and the commands that it names work on
them."""

import json

import pytest
import torch

from longca.core.plugin import Registry
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.bench.run.own_file import _as_plugin
from longca.lab.store.table import derived
from longca.lab.studies.grid import Measure
from tests.helpers.bench.own_files import cell
from tests.helpers.cp.case import Case
from tests.helpers.cp.virtual import on_virtual_ranks
from tests.helpers.kernels.cases import hand_made_cases, telling_cases
from tests.helpers.kernels.plain_attention import plain_attention
from tests.helpers.records import quick_study
from tests.helpers.report.figures import drawings_of
from tests.kernels import test_contract_kernels as of_kernels
from tests.lab.report import test_figures as of_figures
from tests.masks import test_contract_masks as of_masks

MEASURE = Measure.fixed(warmup=0, repeats=3, timeout_s=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plugins")


@pytest.fixture
def made(folder, longca, monkeypatch):
    """made(kind) → the name of a new plug-in, which the registry finds."""
    monkeypatch.setenv("LONGCA_PLUGINS", str(folder))

    def make(kind, name):
        if name not in Registry(kind).names():
            done = longca("new", kind, name, "--to", folder)
            assert done.returncode == 0, done.stderr
            assert (
                done.stdout.startswith(f"Wrote {folder}")
                and f"export LONGCA_PLUGINS={folder}" in done.stdout
                and name in done.stdout
            )
        plugin = Registry(kind).load(name)
        assert type(plugin).__name__ == f"OwnGather{kind.capitalize()}" and plugin.label == "Own gather"
        return name

    return make


def test_a_kernel_keeps_its_contract(made):
    name = made("kernel", "own_gather")
    cases = [
        (case, plain_attention(*case.inputs(), case.mask.dense()))
        for case in telling_cases()[:3] + hand_made_cases()
    ]
    of_kernels.test_says_what_it_is(name)
    of_kernels.test_backward_repeats_and_leaves_no_trace(name)
    of_kernels.test_agrees_in_bfloat16(name)
    for direction in ("fwd", "bwd"):
        of_kernels.test_agrees_with_the_definition(name, direction, 100, cases)
        assert measure_kernel(cell(name, direction), MEASURE, torch.device("cpu")).outcome.status == "ok"


def test_a_mask_keeps_its_contract(made, longca):
    name = made("mask", "own_gather")
    of_masks.test_says_what_it_is(name)
    of_masks.test_bands_are_disjoint_and_inside(name)
    of_masks.test_the_seed_decides_and_nothing_else(name)
    pairs = json.loads(longca("list", "matrix", "--json").stdout)["pairs"]
    assert {pair["runs"] for pair in pairs if pair["mask"] == name and pair["kernel"] == "naive"} == {True}


@pytest.mark.parametrize("mask", ["causal_document", "sliding_window"])
def test_a_strategy_is_right(made, mask):
    case = Case(mask, 61, 4, 2, strategy=made("strategy", "own_gather"))
    parts = on_virtual_ranks(case.run, 3)
    errors = case.errors(parts)
    assert max(errors.values()) < case.tolerance, errors
    assert all(part["repeatable"] for part in parts)


def test_a_figure_keeps_its_contract(made):
    name = made("figure", "own_gather")
    quick = derived([entry for entry in quick_study() if entry.cell.mask == "causal"])
    figure = Registry("figure").load(name)
    assert "ms (causal" in figure.title(figure.data(quick)), "a claim has a number"
    of_figures.test_each_mark_on_the_page_leads_to_its_records(name, quick, drawings_of(quick))
    of_figures.test_it_takes_a_study_without_its_data_and_one_of_a_single_cell(name)


@pytest.mark.parametrize(
    ("direction", "fields"),
    [
        ("fwd", {}),
        ("bwd", {"mask": "shared_question", "corpus": "pile"}),
        (
            "bwd",
            {
                "mask": "block_sparse_uniform",
                "mask_params": {"block": 16, "density": 0.5, "scores": "random"},
            },
        ),
    ],
)
def test_a_function_is_right_under_all_kinds_of_masks(longca, tmp_path, direction, fields):
    done = longca("new", "kernel", "fn", "--function", "--to", tmp_path, "--json")
    content = json.loads(done.stdout)
    assert (
        content["file"] == str(tmp_path / "fn.py")
        and content["plugins"] is None
        and content["next"][0] == f"longca bench {tmp_path}/fn.py"
    )
    with _as_plugin(tmp_path / "fn.py") as name:
        assert (
            measure_kernel(cell(name, direction, **fields), MEASURE, torch.device("cpu")).outcome.status
            == "ok"
        )


def test_what_cannot_be_written(longca, tmp_path):
    assert longca("new", "mask", "fine", "--to", tmp_path).returncode == 0
    (tmp_path / "file").write_text("in the way")
    for arguments, said in (
        (["kernle", "x"], "'kernel'"),
        (["mask", "fine", "--to", tmp_path], "is there already"),
        (["kernel", "sdpa"], "'sdpa' already"),
        (["mask", "No-Name"], "small letters"),
        (["mask", "x", "--function"], "--function"),
        (["mask", "x", "--to", tmp_path / "file"], "Cannot write"),
    ):
        done = longca("new", *arguments)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
