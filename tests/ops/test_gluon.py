"""The emulator of Gluon sees the faults that it is there for: each kernel here but the first has one."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from tests.ops.gluon import language as gl
from tests.ops.gluon.machine import Descriptor, Stuck
from tests.ops.gluon.values import DTYPES

FP32 = DTYPES["float32"]
INT64 = DTYPES["int64"]
SEEDS = range(12)


def barrier(count: int):
    bar = gl.allocate_shared_memory(INT64, [1, 1], None).index(0)
    gl.mbarrier_init(bar, count)
    return bar


def launch(
    produce: Callable[..., None], consume: Callable[..., None], seed: int, num_programs: int = 1
) -> torch.Tensor:
    """Six rows through one buffer, from a producer warp to a consumer group, doubled on the way."""
    source = torch.arange(6 * 64.0).reshape(6, 64)
    result = torch.full((6, 64), math.nan)

    def kernel(desc: Descriptor, out: gl.Pointer) -> None:
        shared = SimpleNamespace(
            row=gl.allocate_shared_memory(FP32, [1, 64], None),
            full=barrier(1),
            empty=barrier(1),
            out=out,
            desc=desc,
        )
        gl.warp_specialize([(consume, (shared,)), (produce, (shared,))], [1], [24])

    gl.settings["seed"] = seed
    gl.Kernel(kernel)[num_programs,](Descriptor.from_tensor(source, [1, 64], None), result)
    return result


def produce(shared: SimpleNamespace, *, waits: bool = True, expects: bool = True) -> None:
    for number in range(6):
        if waits:
            gl.mbarrier_wait(shared.empty, (number & 1) ^ 1)
        if expects:
            gl.mbarrier_expect(shared.full, 256)
        gl.async_copy_global_to_shared(shared.desc, [number, 0], shared.full, shared.row)


def consume(shared: SimpleNamespace, *, early: bool = False, arrivals: int = 1) -> None:
    for number in range(6):
        row = shared.row.index(0).load() * 2
        gl.mbarrier_wait(shared.full, number & 1)
        if not early:
            gl.me().pause()
            row = shared.row.index(0).load() * 2
        gl.store(shared.out + (torch.arange(64) + 64 * number), row)
        for _ in range(arrivals):
            gl.mbarrier_arrive(shared.empty)


def doubled() -> torch.Tensor:
    return torch.arange(6 * 64.0).reshape(6, 64) * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_kernel_is_right(seed: int):
    assert torch.equal(launch(produce, consume, seed), doubled())


def outcomes(produce: Callable[..., None], consume: Callable[..., None]) -> list[str]:
    texts = []
    for seed in SEEDS:
        try:
            texts.append("right" if torch.equal(launch(produce, consume, seed), doubled()) else "wrong")
        except (Stuck, AssertionError) as error:
            texts.append(type(error).__name__)
    return texts


def test_reading_before_the_load_is_done_is_wrong():
    assert set(outcomes(produce, lambda shared: consume(shared, early=True))) == {"wrong"}


def test_loading_over_what_is_still_read_is_wrong():
    assert "right" not in outcomes(lambda shared: produce(shared, waits=False), consume)


def test_a_missing_arrival_is_a_deadlock():
    assert set(outcomes(produce, lambda shared: consume(shared, arrivals=0))) == {"Stuck"}
    with pytest.raises(Stuck, match="role 1 for mbarrier 1 in phase 0, with 1 arrivals"):
        launch(produce, lambda shared: consume(shared, arrivals=0), 0)


def test_an_arrival_too_many_is_seen():
    assert "right" not in outcomes(produce, lambda shared: consume(shared, arrivals=2))


def test_results_of_matmuls_cannot_be_touched_before_they_are_waited_for():
    def early(shared: SimpleNamespace) -> None:
        tile = gl.allocate_shared_memory(FP32, [16, 16], None)
        zeros = gl.Tensor(torch.zeros(16, 16))
        first = gl.warpgroup_mma(tile, tile, zeros, use_acc=False, is_async=True)
        second = gl.warpgroup_mma(tile, tile, zeros, use_acc=False, is_async=True)
        gl.warpgroup_mma_wait(1, deps=[second])
        gl.warpgroup_mma_wait(0, deps=[first])

    with pytest.raises(AssertionError, match="a result of a matmul that is under way"):
        launch(lambda shared: None, early, 0)


def test_a_matmul_may_read_its_buffers_late():
    """So a buffer that is written over while it runs makes some orders wrong."""

    def overwrite(shared: SimpleNamespace) -> None:
        tile = gl.allocate_shared_memory(FP32, [64, 64], None)
        tile.store(gl.Tensor(torch.eye(64) * 2))
        rows = gl.Tensor(torch.arange(6 * 64.0).reshape(6, 64))
        result = gl.warpgroup_mma(rows, tile, rows, use_acc=False, is_async=True)
        tile.store(gl.Tensor(torch.zeros(64, 64)))
        gl.store(shared.out + torch.arange(6 * 64).reshape(6, 64), gl.warpgroup_mma_wait(0, deps=[result]))

    assert set(outcomes(lambda shared: None, overwrite)) == {"right", "wrong"}


@pytest.mark.parametrize(
    ("threads", "said"),
    [(64, "more threads at a named barrier"), (256, "threads are left at named barriers")],
)
def test_named_barriers_count_their_threads(threads: int, said: str):
    def arrive(_: SimpleNamespace) -> None:
        gl.inline_asm_elementwise("bar.arrive $1, $2; mov.b32 $0, 0;", "=r,r,r", [3, threads], FP32, False, 1)

    with pytest.raises(AssertionError, match=said):
        launch(lambda shared: None, arrive, 0)


def test_a_load_from_an_address_that_tma_does_not_take_is_seen():
    def odd(shared: SimpleNamespace) -> None:
        gl.async_copy_global_to_shared(shared.desc, [0, 1], shared.full, shared.row)

    with pytest.raises(AssertionError, match="4 bytes from the start"):
        launch(odd, lambda shared: None, 0)
