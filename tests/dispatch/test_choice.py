"""The choice of a kernel: the table is that of the committed records, and only right kernels that run here
are taken."""

import json

import pytest
import torch

import longca
from longca.core.plugin import Registry
from longca.dispatch import call, choice
from longca.kernels.contract import Kernel, Problem
from longca.lab.ranking import MeasuredPoint
from longca.masks import Mask, build_mask
from longca.ops.band.checks import unusable
from tests.helpers.kernels.masks_for_tests import pattern_mask
from tests.helpers.ranking.measured import point
from tools import fastest

CUDA = torch.device("cuda")


def problem(
    mask: Mask,
    *,
    needs_backward: bool = False,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device = CUDA,
    heads: tuple[int, int] = (64, 8),
) -> Problem:
    return Problem(mask, *heads, head_dim, dtype, device, needs_backward)


@pytest.fixture
def everything_runs(monkeypatch: pytest.MonkeyPatch):
    """A Hopper GPU with every kernel installed, where two are quicker than `band` under `causal` of 32K and
    none of 8K."""
    table = {
        **choice.fastest(),
        **{
            direction: {"causal": {"grouped": {"8192": {}, "32768": {"fa3": 1.2, "fa4": 1.1}}}}
            for direction in ("fwd", choice.TRAINING)
        },
    }
    monkeypatch.setattr(choice, "fastest", lambda: table)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for kernel in Registry("kernel").load_all():
        monkeypatch.setattr(type(kernel), "available", lambda self, device_type: None)


def test_the_table_is_that_of_the_records():
    assert choice.FILE.read_text(encoding="utf-8") == fastest.text(), "run `python -m tools.fastest`"


def test_the_table_names_kernels_that_may_be_chosen():
    table = json.loads(choice.FILE.read_text(encoding="utf-8"))
    leads = [
        leads
        for direction in ("fwd", "both")
        for masks in table[direction].values()
        for heads in masks.values()
        for leads in heads.values()
    ]
    assert any(leads) and not all(leads), "`band` is the quickest somewhere, and not everywhere"
    assert all(list(ranked.values()) == sorted(ranked.values(), reverse=True) for ranked in leads)
    named = {name for ranked in leads for name in ranked}
    assert choice.OWN not in named
    assert not any(Registry("kernel").load(name).transposes for name in named)


def test_a_kernel_is_in_the_table_if_it_is_told_apart_from_band():
    """By longca.lab.ranking: in the mean over the cases of `band`, of which it ran each."""

    def of(kernel: str, *times: float) -> dict[tuple[str, ...], MeasuredPoint]:
        return {
            (str(case),): point(kernel, *(time * step for step in (0.999, 1, 1.001)))
            for case, time in enumerate(times)
        }

    actual = fastest.leads(
        {
            "band": of("band", 10, 20),
            "fa3": of("fa3", 8, 16),
            "fa4": of("fa4", 9.95, 19.9),
            "flex": of("flex", 7),
            "sdpa": of("sdpa", 20, 40),
            "cudnn_flex": of("cudnn_flex", 9, 18),
        }
    )
    assert actual == {"fa3": 1.25, "cudnn_flex": 1.11}


def test_forward_and_backward_are_one_call():
    both = fastest.together(point("fa3", 1, 1, 1), point("fa3", 2.5, 3, 3.5))
    assert both is not None and both.rate == pytest.approx(1e3 / 4)
    (first,) = both.measurements
    assert first.low == pytest.approx(1e3 / 4.5) and first.high == pytest.approx(1e3 / 3.5)
    assert (
        fastest.together(point("fa3", 1), None) is None
        and fastest.together(point("fa3", 1), point("fa3", 1, seed=1)) is None
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("full", "full"),
        ("causal", "causal"),
        ("causal_sliding_window", "window"),
        ("causal_document", "documents"),
        ("prefix_lm", "bands"),
        ("block_sparse_variable", "blocks"),
        ("block_sparse_uniform", "blocks"),
    ],
)
def test_kinds_follow_from_traits(name: str, kind: str):
    assert choice.mask_kind(pattern_mask(name).traits) == kind
    assert (
        choice.mask_kind(build_mask("block_sparse_uniform", seqlen="1K", block=128).traits) == "blocks of 128"
    )


@pytest.mark.usefixtures("everything_runs")
def test_the_first_of_the_table_is_taken():
    mask = build_mask("causal", seqlen="32K")
    assert choice.choose(problem(mask), False, True, True) == "fa3"
    assert choice.choose(problem(build_mask("causal", seqlen=31_000)), False, True, True) == "fa3", (
        "the nearest length"
    )
    assert choice.choose(problem(build_mask("causal", seqlen=9000)), False, True, True) == choice.OWN


@pytest.mark.usefixtures("everything_runs")
def test_gradients_are_deterministic_unless_others_are_allowed():
    mask = build_mask("causal", seqlen="32K")
    assert choice.choose(problem(mask, needs_backward=True), False, True, True) == choice.OWN
    assert choice.choose(problem(mask, needs_backward=True), False, False, True) == "fa3"


@pytest.mark.usefixtures("everything_runs")
def test_deterministic_gradients_are_chosen_by_records_of_their_own(monkeypatch: pytest.MonkeyPatch):
    leads = {"causal": {"grouped": {"32768": {"fa4": 1.3, "fa4_deterministic": 1.1}}}}
    table = {**choice.fastest(), choice.TRAINING_SAME_BITS: leads}
    monkeypatch.setattr(choice, "fastest", lambda: table)
    training = problem(build_mask("causal", seqlen="32K"), needs_backward=True)
    assert choice.choose(training, False, True, True) == "fa4_deterministic", (
        "never one that promises nothing"
    )
    assert choice.choose(training, False, False, True) == "fa3"
    assert choice.choose(training, True, True, True) == choice.OWN, "it differentiates the LSE"
    reason = choice.cannot(Registry("kernel").load("fa3"), training, False, True)
    assert reason is not None and reason.endswith("to allow that, or kernel='fa3_deterministic'")


def test_a_kernel_in_a_fixed_order_has_the_forward_of_the_other():
    case = ("causal", "", "", 8192, 64, 8)
    forward = {(*case, "fa3"): point("fa3", 1, 1, 1), (*case, "band"): point("band", 1.5, 1.5, 1.5)}
    backward = {
        (*case, name): point(name, *times)
        for name, times in {
            "fa3_deterministic": (3, 3, 3),
            "band": (2, 2, 2),
            "fa4_deterministic": (1, 1, 1),
        }.items()
    }
    both = fastest.in_fixed_order(forward, backward)
    assert {key[-1]: (value.method, value.rate) for key, value in both.items()} == {
        "fa3_deterministic": ("fa3_deterministic", pytest.approx(1e3 / 4)),
        "band": ("band", pytest.approx(1e3 / 3.5)),
    }


@pytest.mark.usefixtures("everything_runs")
def test_what_was_not_measured_is_given_to_band(monkeypatch: pytest.MonkeyPatch):
    mask = build_mask("causal", seqlen="32K")
    assert choice.choose(problem(mask, head_dim=64), False, True, True) == choice.OWN
    assert choice.choose(problem(mask), False, True, False) == choice.OWN, "another scale"
    assert choice.choose(problem(mask, head_dim=96), False, True, True) == choice.REFERENCE, (
        "band has no such head dim"
    )
    assert choice.choose(problem(mask, dtype=torch.float32), False, True, True) == choice.REFERENCE
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choice.choose(problem(mask), False, True, True) == choice.OWN


@pytest.mark.usefixtures("everything_runs")
def test_kernels_that_are_not_here_or_cannot_are_passed_over(monkeypatch: pytest.MonkeyPatch):
    mask = build_mask("causal", seqlen="32K")
    monkeypatch.setattr(
        type(Registry("kernel").load("fa3")), "available", lambda self, device_type: "not installed"
    )
    assert choice.choose(problem(mask), False, True, True) == "fa4"
    monkeypatch.setattr(type(Registry("kernel").load("fa4")), "supports", lambda self, *call: "cannot")
    assert choice.choose(problem(mask), False, True, True) == choice.OWN


@pytest.mark.usefixtures("everything_runs")
def test_an_lse_with_its_gradients_comes_from_band():
    mask = build_mask("causal", seqlen="32K")
    assert choice.choose(problem(mask, needs_backward=True), True, False, True) == choice.OWN
    chosen = choice.choose(problem(mask), True, True, True)
    assert chosen != choice.OWN and Registry("kernel").load(chosen).returns_lse


def test_band_gets_tensors_as_it_can_use_them(monkeypatch: pytest.MonkeyPatch):
    """Heads do not lie side by side in SDPA's layout."""
    given = []
    monkeypatch.setattr(call, "choose", lambda *facts: choice.OWN)
    monkeypatch.setattr(
        "longca.ops.band.api.band_attention",
        lambda q, k, v, mask, **options: given.append((q, k, v, options)) or q,
    )
    q, k, v = (torch.randn(1, heads, 64, 16, dtype=torch.float16).transpose(1, 2) for heads in (4, 2, 2))
    mask = build_mask("causal", seqlen=64)
    assert torch.equal(longca.attention(q, k, v, mask, scale=0.3), q)
    ((q_given, k_given, v_given, options),) = given
    assert options == {"scale": 0.3, "return_lse": False, "sinks": None}
    assert q_given.data_ptr() == q.data_ptr() and torch.equal(k_given, k[0]) and torch.equal(v_given, v[0])
    assert all(unusable(x, heads_side_by_side=True) is None for x in (k_given, v_given))


def test_a_cpu_has_the_reference():
    assert (
        choice.choose(problem(build_mask("causal", seqlen=64), device=torch.device("cpu")), False, True, True)
        == choice.REFERENCE
    )


@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_kernels_that_copy_say_so(name: str):
    kernel: Kernel = Registry("kernel").load(name)
    prepared = kernel.prepare(
        problem(
            build_mask("causal", seqlen=16),
            head_dim=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
            heads=(4, 2),
        )
    )
    x = torch.zeros(16, 4, 16)
    assert kernel.transposes == (prepared.to_layout(x).data_ptr() != x.data_ptr())
