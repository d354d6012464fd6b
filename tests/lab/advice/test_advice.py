"""`longca advise`: the ranking and its intervals, what it says where it goes beyond records, and bad
input."""

import json
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import yaml

import longca
from longca.core.errors import UserError
from longca.core.schema import parse
from longca.lab.advice import draws, question, ranking
from longca.lab.advice.machine import USUAL_NETWORK
from longca.lab.advice.ranking import Advice, advise
from longca.lab.cli.advise import command
from longca.lab.studies.study import Study
from longca.masks import build_mask
from longca.masks.mask import Mask
from longca.predict.fitted import fitted_on
from tests.helpers.support import ROOT

HEADS: dict[str, Any] = {"num_q_heads": 64, "num_kv_heads": 8}


@pytest.fixture(scope="module")
def several() -> Advice:
    mask = build_mask("causal_document", seqlen="128K", corpus="prolong64k")
    return advise(mask, gpus=16, kernels=["band"], **HEADS)


def test_the_quickest_comes_first_inside_its_interval(several: Advice):
    seconds = [option.prediction.seconds for option in several.options]
    assert seconds == sorted(seconds) and len(seconds) >= 5
    for option in several.options:
        assert (
            option.low_s <= option.prediction.seconds <= option.high_s
            and option.tflops_low <= option.tflops <= option.tflops_high
        )
        assert option.prediction.seconds == pytest.approx(sum(option.prediction.by_direction.values()))
        assert option.low_s <= option.mean_low_s and option.mean_high_s <= option.high_s
        # the single calls' interval holds all draws, and that of means every network: too wide for a tie
        assert option.mean_low_s <= seconds[0] or not option.tied
    strategies = {option.candidate.strategy for option in several.options}
    assert {"ulysses", "ring_p2p", "ring_allgather", "usp"} <= strategies
    plans = [option.candidate.how for option in several.options]
    assert len(set(plans)) == len(plans), "no plan stands twice"
    assert several.best.candidate.title in several.finding


def test_beyond_records_it_says_so_and_is_less_sure(several: Advice):
    assert any("more than 4 ranks" in text for text in several.assumptions) and any(
        "between nodes" in text for text in several.assumptions
    )
    mask = several.question.mask
    here = advise(mask, gpus=4, kernels=["band"], strategies=["ring_allgather"], **HEADS)
    assert not here.assumptions

    def width(advice: Advice) -> float:
        option = next(option for option in advice.options if option.candidate.strategy == "ring_allgather")
        return (option.high_s - option.low_s) / option.prediction.seconds

    other = advise(
        mask, gpus=4, kernels=["band"], strategies=["ring_allgather"], gpu="A100 SXM 80 GB", **HEADS
    )
    assert width(here) < width(several) and width(here) < width(other)
    assert other.best.prediction.seconds > 2 * here.best.prediction.seconds
    assert any("share of their peaks" in text for text in other.assumptions)


def test_assumptions_name_the_numbers_that_intervals_are_made_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranking, "NETWORK_RANGE", (0.5, 1.5))
    monkeypatch.setattr(ranking, "OTHER_GPU_WIDER", 3.0)
    mask = build_mask("causal", seqlen="64K")
    advice = advise(
        mask, gpus=16, kernels=["band"], strategies=["ring_allgather"], gpu="A100 SXM 80 GB", **HEADS
    )
    assert any("intervals hold 0.5 to 1.5 times as much" in text for text in advice.assumptions)
    assert any("with intervals 3 times as wide" in text for text in advice.assumptions)


def test_help_names_the_profile_that_is_taken():
    assert USUAL_NETWORK in str(signature(command).parameters["profile"].annotation)


def test_a_faster_network_changes_the_order_where_it_says(several: Advice):
    assert all(text.startswith("with ") and "would be first" in text for text in several.changes)
    titles = {option.candidate.title for option in several.options}
    assert all(any(title in text for title in titles) for text in several.changes)


def test_plain_values_and_the_study_that_checks_it(several: Advice):
    plain = json.loads(json.dumps(several.to_dict()))
    assert plain["options"][0]["method"] == several.best.candidate.title and plain["gpus"] == 16
    assert {
        "imbalance",
        "exposed_messages",
        "inter_node_bytes",
        "limit",
        "tile_waste",
        "kernel_calls",
    } <= plain["options"][0].keys()
    study = parse(Study, {"name": "check", **several.study()}, "the study")
    assert {cell.world for cell in study.cells()} == {16} and {cell.seqlen for cell in study.cells()} == {
        131072
    }
    assert {cell.strategy for cell in study.cells()} == {
        option.candidate.strategy for option in several.options[:3]
    }
    assert {cell.seed for cell in study.cells()} == set(range(8)) and {
        cell.corpus for cell in study.cells()
    } == {"prolong64k"}


def test_on_one_gpu_it_ranks_kernels():
    advice = longca.advise(build_mask("causal", seqlen="32K"), direction="fwd", **HEADS)
    names = [option.candidate.kernel for option in advice.options]
    assert names.index("fa3") < names.index("fa2") < names.index("naive")
    assert "cudnn_bsa" in advice.refused and advice.best.prediction.sent_bytes == 0
    assert 550 < advice.best.tflops < 800


def test_what_is_left_out_is_as_in_records_and_named():
    """The same for a name and for a mask, in Python and by the command, in text, JSON and HTML."""
    by_name = longca.advise("causal_document", seqlen="16K", gpus=2, kernels=["band"], strategies=["usp"])
    mask = build_mask("causal_document", seqlen="16K", corpus="prolong64k")
    by_mask = advise(mask, gpus=2, kernels=["band"], strategies=["usp"], draws=8)
    assert by_name.question.setting == by_mask.question.setting and "64:8 heads" in by_mask.question.setting
    assert by_name.best.by_seed == by_mask.best.by_seed
    assert by_name.defaults == {
        "heads": "64:8",
        "head_dim": "128",
        "dtype": "bf16",
        "direction": "fwd and bwd",
        "corpus": "prolong64k",
        "seed": "0",
        "draws": "8",
        "profile": USUAL_NETWORK,
        "gpu": "H200 SXM",
        "node": "8",
    }
    assert by_name.defaults.keys() - by_mask.defaults.keys() == {"corpus", "seed", "draws"}
    assert by_name.to_dict()["defaults"] == by_name.defaults
    assert f"Not given: {by_name.not_given}." in by_name._repr_html_()
    for text in (by_name.to_dict()["protocol"], by_name._repr_html_()):
        assert "with rests" in text


def test_a_mask_with_head_groups_has_so_many_kv_heads():
    mask = build_mask("block_sparse_uniform", seqlen="8K", num_kv_heads=4, block=256)
    assert advise(mask, kernels=["band"]).defaults["heads"] == "64:4"
    windows = longca.advise("sliding_window", seqlen="8K", kernels=["band"])
    assert windows.defaults["window"] == str(windows.question.mask_params["window"])
    given = longca.advise("sliding_window", seqlen="8K", kernels=["band"], window=512)
    assert "window" not in given.defaults and "window=512" in given.question.setting


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gpus": 0}, "The number of GPUs is 0. Give a whole number of at least 1"),
        ({"gpu": "H300"}, "Unknown GPU 'H300'"),
        ({"profile": "h200"}, "Unknown profile of messages 'h200'"),
        ({"kernels": ["sdpb"]}, "Nothing is known of the time of kernel 'sdpb'"),
        ({"strategies": ["ring"], "gpus": 2}, "Unknown strategy 'ring'"),
        ({"direction": "up"}, "Unknown direction 'up'"),
        ({"gpus": "x"}, "The number of GPUs is 'x'"),
        ({"gpus": 1.5}, "The number of GPUs is 1.5"),
        ({"mask": "causl"}, "Unknown mask 'causl': did you mean 'causal'"),
        ({"mask": "causal", "corpus": "pile"}, "Mask 'causal' has no documents. Leave the corpus out"),
        ({"mask": "causal", "seqlen": "long"}, "'long' is not a length"),
        ({"mask": "causal", "windw": 3}, "Mask 'causal': unknown key 'windw'"),
        ({"seqlen": "8K"}, "Argument 'seqlen' is for a pattern's name, and this mask is built already"),
        ({"num_q_heads": "8"}, "The number of query heads is '8'"),
        (
            {"mask": 3},
            "The mask must be a longca.Mask, and it is int. Make one with longca.build_mask or longca.Mask",
        ),
        (
            {"mask": Mask.from_bands(8, [(0, 8, 0, 4, -8, 8)], seqlen_k=4), "gpus": 2},
            "8 queries and 4 keys cannot be divided among 2 GPUs",
        ),
        ({"dtype": ["bf16"]}, "Unknown dtype ['bf16']: known: bf16"),
        ({"direction": 3}, "Unknown direction 3"),
        ({"profile": 3}, "Argument 'profile' is 3"),
        ({"gpu": 3}, "Argument 'gpu' is 3"),
        ({"kernels": "band"}, "Argument 'kernels' is 'band'. Give a list of names"),
        ({"strategies": 3}, "Argument 'strategies' is 3. Give a list of names"),
        ({"strategies": [3], "gpus": 2}, "Unknown strategy 3"),
        ({"memory_bytes": "60G"}, "Argument 'memory_bytes' is '60G'. Give a number of bytes"),
        ({"memory_bytes": float("nan")}, "Argument 'memory_bytes' is nan"),
        ({"ranks_per_node": "x"}, "The number of GPUs of a node is 'x'"),
        ({"fitted": 3}, "Argument 'fitted' is of type int"),
        ({"num_kv_heads": 7}, "cannot be shared evenly"),
        ({"gpus": 3, "kernels": ["band"], "memory_bytes": 1e6}, "Nothing fits into 977 KiB a GPU"),
        (
            {"gpus": 3, "strategies": ["usp"], "kernels": ["fa1"]},
            "No strategy and kernel can run this call on 3 GPUs",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: dict[str, Any], said: str):
    with pytest.raises(UserError) as error:
        advise(**{"mask": build_mask("causal", seqlen="16K"), **HEADS, **arguments})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_the_command_prints_a_ranking_and_writes_the_study(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "longca", "advise", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )

    done = run(
        "-m",
        "causal_document",
        "-s",
        "64K",
        "-w",
        "4",
        "-k",
        "band",
        "--draws",
        "3",
        "-d",
        "fwd",
        "--study",
        str(tmp_path / "check.yaml"),
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert (
        "on 4 GPUs" in said
        and f"longca run {tmp_path}" in said
        and "documents of prolong64k, 64K tokens" in said
    )
    assert "corpus prolong64k" in said.partition("Not given: ")[2] and "seeds 0 to 2" in said
    assert "predicted in these alone" not in said, "all of them are predicted in all draws"
    few = " ".join(run("-m", "causal_document", "-s", "12K", "-d", "bwd").stdout.split())
    assert " 0/3 " in few and "one far behind in the first 3 is predicted in these alone." in few
    [row] = [
        line for line in done.stdout.splitlines() if line.startswith(" ring_allgather+band") and "/3 " in line
    ]
    assert len(row) <= 80 and len(row.split()) == 9 and " 100 % " in row, "no number is broken"
    content = yaml.safe_load((tmp_path / "check.yaml").read_text())
    assert (
        content["grids"][0]["corpus"] == "prolong64k"
        and len(parse(Study, {"name": "check", **content}, "it").cells()) == 3 * 3
    )
    refused = run("--memory", "lots")
    assert (
        refused.returncode == 2
        and refused.stderr == "longca: 'lots' is no amount of memory. Write a number of bytes such as 60G\n"
    )
    refused = run("--memory", "80")
    assert (
        refused.returncode == 2
        and refused.stderr == "longca: '80' is 80 bytes of memory. Write the unit, as in 60G\n"
    )


def test_draws_decide_together(several: Advice):
    """Times are means over the draws, the interval holds each of them, and one draw alone is one of them."""
    assert several.seeds == tuple(range(8)) and several.question.corpus == "prolong64k"
    for option in several.options:
        times = option.by_seed.values()
        assert (
            option.low_s <= min(times)
            and max(times) <= option.high_s
            and len(times) in (draws.FIRST_DRAWS, 8)
        )
        if len(times) == 8:
            assert option.prediction.seconds == pytest.approx(sum(times) / 8)
    assert sum(option.first_in for option in several.options) >= 8, "each draw has a first"
    assert f"is first in {several.best.first_in} of 8 draws" in several.finding
    later = build_mask("causal_document", seqlen="128K", corpus="prolong64k", seed=5)
    [alone] = advise(later, gpus=16, kernels=["band"], strategies=["usp"], draws=1, **HEADS).options[:1]
    usp = next(option for option in several.options if option.candidate.title == alone.candidate.title)
    assert (
        alone.by_seed == pytest.approx({5: usp.by_seed[5]})
        and "draws" not in advise(later, draws=1, **HEADS).finding
    )


def test_a_network_that_is_not_known_moves_all_ways():
    """Ways that its rate alone would bring level, had each a network of its own, are told apart."""
    advice = advise(
        "causal_document",
        seqlen="768K",
        gpus=96,
        profile="h100-ib400",
        gpu="h100",
        kernels=["band"],
        strategies=["usp", "loongtrain"],
        draws=3,
        **HEADS,
    )
    first, *others = advice.options
    apart = [option for option in others if not option.tied]
    assert "tie" not in first.share_text and first.share_text == "100 %"
    assert all(option.share_text.endswith(" % tie") == option.tied for option in others)
    assert first.tied and any(option.mean_low_s <= first.prediction.seconds for option in apart)
    assert all(option.first_in == 0 for option in apart)


def test_draws_that_are_alike_end_early_and_given_documents_are_not_drawn():
    blocks = advise(
        build_mask("block_sparse_uniform", seqlen="16K", num_kv_heads=8, block=128), kernels=["band"], **HEADS
    )
    assert len(blocks.seeds) == 1 and any("blocks" in text for text in blocks.assumptions)
    steady = advise(
        build_mask("block_sparse_uniform", seqlen="8K", block=256, density=1.0), kernels=["band"], **HEADS
    )
    assert steady.seeds == (0, 1, 2) and steady.draws_asked == 8 and "5 draws were left out" in steady.finding
    own = advise(Mask.from_documents([4096, 4096]), kernels=["band"], **HEADS)
    assert own.seeds == () and "2 documents as given" in own.question.setting


def test_what_is_extrapolated_loses_to_what_was_measured_within_the_interval():
    """No record has `fa4` in parts of windows; `band` was measured there."""
    mask = build_mask("causal_sliding_window", seqlen="256K")
    advice = advise(
        mask, gpus=8, direction="fwd", kernels=["band", "fa4"], strategies=["ring_allgather"], **HEADS
    )
    band, fa4 = (
        next(option for option in advice.options if option.candidate.kernel == name)
        for name in ("band", "fa4")
    )
    assert fa4.extrapolated == "no record has fa4 in parts of windows" and not band.extrapolated
    behind = advice.options.index(fa4) > advice.options.index(band)
    assert behind == (fa4.mean_high_s >= band.prediction.seconds)
    if behind and fa4.prediction.seconds < band.prediction.seconds:
        assert "no record has fa4 in parts of windows" in advice.finding
    alone = advise(
        mask, gpus=8, direction="fwd", kernels=["fa4"], strategies=["ring_allgather", "usp"], **HEADS
    )
    assert not any(option.extrapolated for option in alone.options), (
        "what holds for all of them puts none behind another"
    )


def test_an_answer_is_short_where_it_is_shown(several: Advice):
    assert len(repr(several)) < 800 and len(repr(several.best)) < 100 and len(repr(several.question)) < 300
    html = several._repr_html_()
    assert len(html) < 5000 and several.best.candidate.title in html and "prolong64k" in html


@pytest.fixture
def few_records(monkeypatch: pytest.MonkeyPatch):
    """An H100 with records of `band` alone, under bands alone."""
    own = fitted_on({"NVIDIA H100 80GB HBM3"})
    assert own is not None
    bands = tuple(model for model in own.models if model.kernel == "band" and "bands" in model.form)
    monkeypatch.setattr(question, "fitted_on", lambda names: replace(own, models=bands))


@pytest.mark.usefixtures("few_records")
def test_a_gpu_with_records_of_some_kernels_has_the_others_by_the_share_of_peaks():
    advice = advise(build_mask("causal", seqlen="32K"), gpu="H100 SXM", kernels=["band", "fa3"], **HEADS)
    assert any("fa3 on it" in text and "share of their peaks" in text for text in advice.assumptions)
    own, lent = (
        next(option for option in advice.options if option.candidate.kernel == name)
        for name in ("band", "fa3")
    )
    assert own.high_s / own.low_s < lent.high_s / lent.low_s
    documents = advise("causal_document", gpu="H100 SXM", kernels=["band", "fa1"], draws=1, direction="bwd")
    assert "fa1" in documents.refused and not any("fa1" in text for text in documents.assumptions)


@pytest.mark.usefixtures("few_records")
def test_masks_of_blocks_are_not_predicted_by_records_of_bands():
    mask = build_mask("block_sparse_uniform", seqlen="16K", block=128, density=0.5)
    advice = advise(mask, gpu="H100 SXM", kernels=["band"], **HEADS)
    assert any("band on it" in text for text in advice.assumptions)


def test_what_lies_in_the_interval_of_the_first_is_tied_with_it():
    """Head dim 192 is beyond records, so the interval of sdpa holds the time of flex, whose own interval is
    narrow."""
    advice = advise("causal", head_dim=192, direction="fwd", kernels=["sdpa", "flex", "naive"], **HEADS)
    first, second, last = advice.options
    assert first.prediction.seconds < second.mean_low_s < second.prediction.seconds < first.mean_high_s
    assert second.tied and not last.tied and "a tie of 2" in advice.finding
