"""`torch.compile` around `longca.attention` and masks: one clean graph break with eager's numbers, and no
compilation for each mask."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import longca
from longca.core.errors import UserError
from longca.masks import Mask, build_mask
from tests.dispatch.test_call import EMPTY_ROWS, inputs
from tests.helpers.kernels.masks_for_tests import PATTERNS, pattern_mask

pytestmark = pytest.mark.long

DOCUMENTS = Mask.from_documents([40, 24])
OWN = [
    Mask.from_windows(12, (2, 0), (-1, 1)),
    Mask.from_dense(np.tril(np.ones((9, 9), dtype=bool))),
    EMPTY_ROWS,
]


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, **{"backend": "aot_eager", **options})


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> Tensor:
    """Attention between two operators that can be compiled."""
    result = longca.attention(q * 2, k, v, mask, **options)
    out = result[0] + result[1].exp().unsqueeze(-1) if isinstance(result, tuple) else result
    return torch.tanh(out) * 3


def check(
    mask: Mask,
    function: Callable[..., Tensor] = attended,
    *,
    setting: dict[str, Any] | None = None,
    tolerance: float = 1e-6,
    **options: Any,
) -> None:
    q, k, v, dout = inputs(mask, head_dim=16)
    results = []
    for each in (function, compiled(function, **(setting or {}))):
        out = each(q, k, v, mask, **options)
        results.append([out.detach(), *torch.autograd.grad(out, (q, k, v), dout)])
    for actual, wanted in zip(*results, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)


def many_masks(compiles: int = 1) -> Iterator[int]:
    """Lengths of the first of two documents. After so many nothing may be compiled any more."""
    for number, first in enumerate(range(20, 40)):
        with torch.compiler.set_stance("default" if number < compiles else "fail_on_recompile"):
            yield first


@pytest.mark.sample(6)
@pytest.mark.parametrize("mask", [*map(pattern_mask, PATTERNS), *OWN], ids=str)
def test_each_mask(mask: Mask):
    check(mask, setting={"backend": "eager"}, return_lse=mask is not EMPTY_ROWS)
    assert counters["stats"]["unique_graphs"] == 2, "one graph before the call and one after it"


@pytest.mark.sample(3)
@pytest.mark.parametrize("kernel", ["naive", "sdpa", "reference"])
def test_each_kernel(kernel: str):
    check(DOCUMENTS, kernel=kernel, deterministic=False)


def test_settings_of_the_compiler():
    check(DOCUMENTS, setting={"dynamic": True})
    with pytest.raises(
        torch._dynamo.exc.Unsupported,
        match="longca's masks and its choice of kernels cannot be traced: call them outside",
    ):
        check(DOCUMENTS, setting={"fullgraph": True})


@pytest.mark.slow
def test_inductor():
    check(DOCUMENTS, setting={"backend": "inductor"}, tolerance=1e-4)


@pytest.mark.slow
def test_before_any_eager_call():
    """In a process of its own, where nothing was loaded."""
    code = (
        "import torch, longca; mask = longca.Mask.from_documents([5, 3]); x = torch.randn(8, 2, 4);"
        "found = torch.compile(lambda x: longca.attention(x * 2, x, x, mask) * 2, backend='eager')(x);"
        "print(torch.equal(found, longca.attention(x * 2, x, x, mask) * 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def under_autocast(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return attended(q, k, v, mask)


def in_a_checkpoint(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    return checkpoint(attended, q, k, v, mask, use_reentrant=False) * 2


def in_a_batch(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    return attended(*(torch.stack([x, -x]) for x in (q, k, v)), mask).sum(0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("function", [under_autocast, in_a_checkpoint, in_a_batch])
def test_calls_of_other_kinds(function: Callable[..., Tensor]):
    check(DOCUMENTS, function)


@pytest.mark.slow
def test_a_compiled_function_in_a_checkpoint_and_under_autocast():
    q, k, v, _ = inputs(DOCUMENTS, head_dim=16)
    wanted = attended(q, k, v, DOCUMENTS)
    with torch.autocast("cpu", torch.bfloat16):
        actual = checkpoint(compiled(attended), q, k, v, DOCUMENTS, use_reentrant=False)
        grads = torch.autograd.grad(actual.sum(), (q, k, v))
    torch.testing.assert_close(actual, wanted)
    for grad, other in zip(grads, torch.autograd.grad(wanted.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(grad, other)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 16)
        self.mask = DOCUMENTS

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(longca.attention(self.project(x), x[:, ::2], x[:, ::2], self.mask))


def test_a_module_under_twenty_masks_compiles_once():
    block = Block()
    x = torch.randn(64, 4, 16)
    fast = compiled(block)
    for first in many_masks():
        block.mask = Mask.from_documents([first, 64 - first])
        fast(x).sum().backward()
        actual = block.project.weight.grad
        block.project.weight.grad = None
        block(x).sum().backward()
        torch.testing.assert_close(actual, block.project.weight.grad)
        block.project.weight.grad = None


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "given",
    [lambda mask: {"mask": mask}, lambda mask: (mask,), lambda mask: mask],
    ids=["dict", "tuple", "bare"],
)
def test_arguments_with_twenty_masks_compile_once(given: Callable[[Mask], Any]):
    def step(x: Tensor, held: Any) -> Tensor:
        mask = (
            held if isinstance(held, Mask) else next(iter(held.values() if isinstance(held, dict) else held))
        )
        return longca.attention(x * 2, x, x, mask) * 2

    x = torch.randn(64, 4, 16)
    fast = compiled(step)
    for first in many_masks():
        mask = Mask.from_documents([first, 64 - first])
        torch.testing.assert_close(fast(x, given(mask)), step(x, given(mask)))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kernel", [None, "naive"])
def test_a_step_with_its_backward_inside(kernel: str | None):
    def step(x: Tensor, weight: Tensor, mask: Mask) -> Tensor:
        loss = longca.attention(x @ weight, x, x, mask, kernel=kernel).square().sum()
        loss.backward()
        return loss.detach()

    x = torch.randn(64, 4, 16)
    weights = [torch.eye(16, requires_grad=True) for _ in range(2)]
    fast = compiled(step)
    for first in many_masks(2):  # after the first step the weight has a gradient
        mask = Mask.from_documents([first, 64 - first])
        torch.testing.assert_close(fast(x, weights[0], mask), step(x, weights[1], mask))
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


MADE: dict[str, Callable[[Tensor], Mask]] = {
    "from_documents": lambda bounds: Mask.from_documents(bounds.diff()),
    "from_cu_seqlens": lambda bounds: Mask.from_cu_seqlens(bounds, causal=True),
    "from_windows": lambda bounds: Mask.from_windows(64, (int(bounds[1]), 0)),
    "from_bands": lambda bounds: Mask.from_bands(64, [[0, 64, 0, 64, -5, 0]]),
    "from_dense": lambda bounds: Mask.from_dense(torch.ones(64, 64, dtype=torch.bool).tril()),
    "build_mask": lambda bounds: build_mask("causal", seqlen=64),
    "to and from": lambda bounds: Mask.from_dense(DOCUMENTS.to_dense()),
    "crop": lambda bounds: (
        DOCUMENTS.crop((0, 64), (0, 64)) if DOCUMENTS.area and DOCUMENTS.digest else DOCUMENTS
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_masks_that_are_made_inside(make: Callable[[Tensor], Mask]):
    def step(x: Tensor, bounds: Tensor) -> Tensor:
        return longca.attention(x * 2, x, x, make(bounds)) * 2

    x = torch.randn(64, 4, 16)
    fast = compiled(step)
    for first in many_masks(2):  # a number that changes is compiled as one that may
        bounds = torch.tensor([0, first, 64])
        torch.testing.assert_close(fast(x, bounds), step(x, bounds))


def test_what_does_not_fit_is_said_as_without():
    q, k, v, _ = inputs(DOCUMENTS)
    with pytest.raises(
        UserError, match=r"^The mask is over 64 queries × 64 keys, and q and k have 63 and 64 tokens"
    ):
        compiled(attended)(q[1:], k, v, DOCUMENTS)
    with pytest.raises(UserError, match=r"^These documents are no mask"):
        compiled(lambda x: longca.attention(x * 2, x, x, Mask.from_documents([0, 64])))(q)


@pytest.mark.slow
def test_a_kernel_that_compiles_drops_nothing_that_the_caller_compiled():
    function = compiled(lambda x: torch.tanh(x * 2))
    function(torch.ones(3))
    q, k, v, _ = (x.detach() for x in inputs(DOCUMENTS, head_dim=16))
    wanted = longca.attention(q, k, v, DOCUMENTS)
    torch.testing.assert_close(longca.attention(q, k, v, DOCUMENTS, kernel="flex"), wanted)
    torch.testing.assert_close(
        compiled(longca.attention)(q, k, v, Mask.from_documents([40, 24]), kernel="flex"), wanted
    )
    before = counters["frames"]["total"]
    function(torch.ones(3))
    assert counters["frames"]["total"] == before
