"""Kernels in a fixed order: they ask their packages for it by the names of the documented signatures, and for
nothing else."""

import itertools
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from longca.core.plugin import Registry
from longca.core.schema import FIXED_ORDER
from longca.kernels.backends.cudnn_flex import CudnnFlexPrepared
from longca.kernels.contract import Problem
from longca.kernels.cudnn_sdpa import WORKSPACE_LIMIT, SdpaGraph
from longca.lab.bench.measure.kernel import measure_kernel
from longca.lab.studies import Measure
from longca.masks import Mask, build_mask
from tests.helpers.bench.cells import small_cell
from tests.helpers.kernels.cases import Case, pattern_mask
from tests.helpers.kernels.plain_attention import plain_attention

pytestmark = pytest.mark.long

NAMES = [name for name in Registry("kernel", []).names() if name.endswith(FIXED_ORDER)]
CPU = torch.device("cpu")
PACKED = ("full", "causal", "sliding_window", "causal_document", "full_document")


def load(name: str) -> Any:
    return Registry("kernel").load(name)


def reason(name: str, mask: Mask, direction: str = "bwd") -> str | None:
    call = Case(mask, 4, 2, head_dim=128).cell(name, direction, "bf16").call_spec
    return load(name).supports(call, mask.traits, "cuda")


def test_each_is_another_kernel_in_a_fixed_order() -> None:
    assert {name.removesuffix(FIXED_ORDER) for name in NAMES} == {"fa3", "fa4", "cudnn_flex", "cudnn_graph"}
    for name in NAMES:
        usual = load(name.removesuffix(FIXED_ORDER))
        assert isinstance(load(name), type(usual)) and load(name).deterministic and not usual.deterministic
        assert load(name).label == f"{usual.label}, fixed order"
        assert reason(name, build_mask("causal", seqlen=64), "fwd") == f"forward it is `{usual.name}`"


@pytest.mark.parametrize("name", NAMES)
def test_each_takes_the_masks_of_the_other_but_for_block_lists(name: str) -> None:
    for mask in (pattern_mask(pattern, 2) for pattern in (*PACKED, "prefix_lm", "global_sliding_window")):
        usual = reason(name.removesuffix(FIXED_ORDER), mask)
        if name == "fa4_deterministic" and mask.name not in PACKED:
            assert "no lists of blocks" in str(reason(name, mask)) and usual is None
        else:
            assert reason(name, mask) == usual


class StandIn:
    """FlashAttention's functions for one mask, right, and in bits that change from call to call unless a
    fixed order is asked for and given."""

    def __init__(self, mask: Mask, *, heeds: bool = True) -> None:
        self._visible = mask.dense()
        self._heeds = heeds
        self._calls = itertools.count()
        self.asked: list[bool] = []

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plain = plain_attention(*self._flat(q, k, v, q), self._visible)
        lse = plain.lse.T.float().contiguous()
        return plain.out.to(q.dtype).view(q.shape), lse if q.ndim == 3 else lse[None]

    def backward(self, deterministic: bool, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Gradients of inputs q, k, v, dout; those of q are off by a bit in one place that changes."""
        self.asked.append(deterministic)
        q, k, v, _ = inputs
        grads = plain_attention(*self._flat(*inputs), self._visible).grads
        dq, dk, dv = (grad.to(q.dtype).view(x.shape) for grad, x in zip(grads, (q, k, v), strict=True))
        if not (deterministic and self._heeds):
            dq.view(torch.int16).view(-1)[next(self._calls)] ^= 1
        return [dq, dk, dv]

    @staticmethod
    def _flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [x.flatten(0, -3) for x in tensors]

    # signatures of FlashAttention-3, as of the sources in xformers 0.0.34
    def _flash_attn_forward(self, q: Any, k: Any, v: Any, *others: Any) -> Any:
        return *self.forward(q, k, v), None

    def _flash_attn_backward(
        self, dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, cu_seqlens_q: Any,
        cu_seqlens_k: Any, sequed_q: Any, sequed_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
        dq: Any, dk: Any, dv: Any, softmax_scale: Any, causal: Any, window_size: Any = (-1, -1),
        softcap: float = 0.0, deterministic: bool = False, sm_margin: int = 0,
    ) -> Any:  # fmt: skip
        for own, right in zip((dq, dk, dv), self.backward(deterministic, q, k, v, dout), strict=True):
            own.copy_(right)

    # those of flash-attn-4 4.0.0b36 that matter here
    def _flash_attn_fwd(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert options.pop("return_lse") and "deterministic" not in options
        return self.forward(q, k, v)

    def _flash_attn_bwd(
        self, q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, softmax_scale: Any = None,
        causal: bool = False, softcap: float = 0.0, window_size_left: Any = None,
        window_size_right: Any = None, *, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
        max_seqlen_q: Any = None, max_seqlen_k: Any = None, deterministic: bool = False,
    ) -> Any:  # fmt: skip
        return self.backward(deterministic, q, k, v, dout)


def installed(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are there, and run on CPUs."""
    for module in ("flash_attn_interface", "flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        monkeypatch.setitem(sys.modules, module, stand_in)
    for name in ("fa3", "fa4", "fa4_deterministic"):
        monkeypatch.setattr(type(load(name)), "available", lambda self, device_type: None)


@pytest.mark.parametrize("mask", ["causal", "causal_document"])
@pytest.mark.parametrize("name", ["fa3", "fa4"])
def test_flash_attention_is_asked_for_a_fixed_order_and_the_bits_prove_it(
    name: str, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longca.lab.studies.masks import cell_mask

    for kernel, heeds in itertools.product((name, name + FIXED_ORDER), (True, False)):
        cell = small_cell(kernel, mask, "bwd", dtype="bf16", head_dim=128)
        stand_in = StandIn(cell_mask(cell), heeds=heeds)
        installed(stand_in, monkeypatch)
        result = measure_kernel(cell, Measure.fixed(warmup=1, repeats=2), CPU)
        is_ordered = kernel != name
        assert set(stand_in.asked) == {is_ordered}
        if is_ordered and not heeds:  # as builds of FlashAttention-3 of 2025 that dropped the flag
            assert result.outcome.status == "incorrect"
            assert result.outcome.reason.startswith("not deterministic: 4 backward calls"), result.outcome
        else:
            assert result.outcome.status == "ok", result.outcome
            assert result.accuracy is not None
            assert result.accuracy.deterministic is (True if is_ordered else None)


@pytest.mark.parametrize("deterministic", [True, False])
def test_cudnn_flex_is_asked_for_a_fixed_order(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the signatures of nvidia-cudnn-frontend 1.32.0."""
    asked = []

    def create_mask_plan(table: Any, q: Any, k: Any, v: Any, *, build_backward: bool) -> str:
        assert build_backward
        return "plan"

    def _plan_tensors(mask_plan: Any, *, deterministic: bool = False) -> tuple[torch.Tensor, ...]:
        asked.append(deterministic)
        return (torch.zeros(3),)

    def _flex_attention_backward(
        q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, *, mask_plan: Any, softmax_scale: Any = None,
        deterministic: bool = False, dlse_tensor: Any = None, stream: Any = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        asked.append(deterministic)
        return q, k, v

    api, execution = ModuleType("cudnn.flex_attention"), ModuleType("cudnn.flex_attention.execution")
    vars(api).update(create_mask_plan=create_mask_plan)
    vars(execution).update(_plan_tensors=_plan_tensors, _flex_attention_backward=_flex_attention_backward)
    for module in (ModuleType("cudnn"), api, execution):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    problem = Problem(
        build_mask("prefix_lm", seqlen=64), 4, 2, 128, torch.bfloat16, CPU, True, records_costs=False
    )
    name = "cudnn_flex" + FIXED_ORDER * deterministic
    prepared = load(name).prepare(problem)
    assert isinstance(prepared, CudnnFlexPrepared)
    x = torch.zeros(1)
    prepared.raw_backward(x, x, x, x, x, x)
    assert asked == [deterministic] * 2 and prepared.costs["metadata_bytes"] == 12


class Graph:
    """`cudnn.pygraph`: takes what it is told, and notes the limit of the workspace at planning."""

    selected_engine = None

    def __init__(self, **options: Any) -> None:
        self.rules: dict[str, Any] = {}
        self.limit: str | None = None

    def tensor(self, **options: Any) -> Any:
        return SimpleNamespace(**options)

    def sdpa(self, *, q: Any, k: Any, v: Any, generate_stats: bool, **rules: Any) -> Any:
        self.rules = rules
        return self._outputs(2)

    def sdpa_backward(self, *, q: Any, k: Any, v: Any, o: Any, dO: Any, stats: Any, **rules: Any) -> Any:
        self.rules = rules
        return self._outputs(3)

    @staticmethod
    def _outputs(count: int) -> list[Any]:
        class Output:
            def __getattr__(self, name: str) -> Any:
                return lambda *values: self

        return [Output() for _ in range(count)]

    def validate(self) -> None:
        self.limit = os.environ.get(WORKSPACE_LIMIT)

    def get_workspace_size(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *values: None


@pytest.mark.parametrize("of_user", [None, "77"])
@pytest.mark.parametrize(("is_packed", "limit"), [(False, str(20 << 30)), (True, "0")])
def test_cudnn_graphs_ask_for_a_fixed_order_backward_in_bounded_memory(
    is_packed: bool, limit: str, of_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = SimpleNamespace(BFLOAT16=0, HALF=1, FLOAT=2, INT32=3, INT64=4)
    cudnn = SimpleNamespace(data_type=kinds, pygraph=Graph, heur_mode=SimpleNamespace(A=0, FALLBACK=1))
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 << 30))
    if of_user is None:
        monkeypatch.delenv(WORKSPACE_LIMIT, raising=False)
    else:
        monkeypatch.setenv(WORKSPACE_LIMIT, of_user)
    problem = Problem(build_mask("causal", seqlen=64), 4, 2, 128, torch.bfloat16, CPU, True)
    bounds = torch.tensor([0, 24, 64], dtype=torch.int32).view(-1, 1, 1, 1)
    tables = {"lengths": bounds.diff(dim=0)} if is_packed else {}
    handle: Any = SimpleNamespace(on_stream=lambda device: None)
    for direction, deterministic in itertools.product(("fwd", "bwd"), (False, True)):
        graph: Graph = SdpaGraph(
            direction, problem, (-1, 0), 40, tables, handle, deterministic=deterministic
        )._graph
        is_ordered = deterministic and direction == "bwd"
        assert graph.rules.get("use_deterministic_algorithm", False) is is_ordered
        assert graph.limit == (of_user or (limit if is_ordered else None))
    assert os.environ.get(WORKSPACE_LIMIT) == of_user, "the limit is forgotten"
