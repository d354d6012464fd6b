"""Measuring context-parallel cells: whole results, and every way not to get one, on two real ranks."""

import time

import pytest
import torch

from longca.cp.comm.backend import Comm
from longca.lab.bench.measure.cp import measure_cp
from longca.lab.bench.measure.result import PEER_LOST, Result
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from tests.helpers.cp.ranks import on_ranks

pytestmark = pytest.mark.long

WORLD = 2
MEASURE = Measure.fixed(warmup=1, repeats=4, max_seconds=30, timeout_s=60)
PATIENCE_S = 3.0

KERNEL = '''
"""A kernel that misbehaves in one way."""
import torch.distributed

from longca.kernels.backends.naive import Naive, NaivePrepared


class _Prepared(NaivePrepared):
    def forward(self, q, k, v):
        {forward}
        return super().forward(q, k, v)


class Misbehaving(Naive):
    def available(self, device_type):
        {available}

    def supports(self, call, traits, device_type):
        {supports}

    def prepare(self, problem):
        {prepare}
        return _Prepared(problem)
'''
HARMLESS = {"forward": "pass", "available": "return None", "supports": "return None", "prepare": "pass"}
ON_RANK_1 = "if torch.distributed.get_rank() == 1: "
KERNELS = {
    "absent": {"available": ON_RANK_1 + "return 'not here'"},
    "picky": {"supports": "return f'{call.num_q_heads}:{call.num_kv_heads} of {traits.seqlen_q}'"},
    "unprepared": {"prepare": ON_RANK_1 + "raise ValueError('no such index')"},
    "greedy": {
        "prepare": ON_RANK_1
        + "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
    },
    "mistaken": {"forward": "q = q * 1.5"},
    "falling": {"forward": ON_RANK_1 + "raise ValueError('fell')"},
}


def cell(kernel: str = "naive", direction: str = "fwd", **changes: object) -> Cell:
    fields = {
        "kind": "cp",
        "kernel": kernel,
        "strategy": "ulysses",
        "world": WORLD,
        "mask": "causal_document",
        "corpus": "pile",
        "seqlen": 101,
        "num_q_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 16,
        "dtype": "bf16",
        "direction": direction,
    }
    return Cell(**fields | changes)


BLOCKS = {
    "mask": "block_sparse_uniform",
    "corpus": None,
    "seqlen": 128,
    "mask_params": {"block": 64, "density": 0.5},
}
CELLS = {
    "fwd": cell(),
    "bwd": cell(direction="bwd"),
    "block": cell(direction="bwd", **BLOCKS),
    "uneven": cell(num_q_heads=9, num_kv_heads=3, dtype="fp32", **BLOCKS),
    "ring": cell(direction="bwd", strategy="ring_p2p"),
    "gather": cell(strategy="ring_allgather", **BLOCKS),
    "mesh": cell(direction="bwd", strategy="usp", strategy_params={"heads": 1}),
    "unfit": cell(strategy="usp", strategy_params={"heads": 3}),
    "partless": cell("sdpa", strategy="ring_p2p"),
    **{name: cell(name) for name in ("absent", "picky", "unprepared", "greedy", "mistaken")},
    "after": cell(seed=1),
}


def measure_all(comm: Comm, cells: dict[str, Cell]) -> dict[str, Result]:
    return {name: measure_cp(cell, MEASURE, comm.device, comm) for name, cell in cells.items()}


def fall(comm: Comm, strategy: str) -> tuple[Result, float]:
    start = time.monotonic()
    return measure_cp(
        cell("falling", strategy=strategy), MEASURE, comm.device, comm
    ), time.monotonic() - start


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "kernels").mkdir()
    for name, faults in KERNELS.items():
        (folder / "kernels" / f"{name}.py").write_text(KERNEL.format(**HARMLESS | faults))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(folder))
        yield


@pytest.fixture(scope="module")
def results(plugins: None) -> dict[str, list[Result]]:
    """By cell, the results of both ranks: one group measures all, so each also shows that the one before left
    it fit."""
    of_ranks = on_ranks(measure_all, WORLD, CELLS)
    return {name: [of_rank[name] for of_rank in of_ranks] for name in CELLS}


@pytest.mark.parametrize("name", ["fwd", "bwd", "block", "uneven", "ring", "gather", "after"])
def test_a_measured_cell_has_everything_of_every_rank(results: dict[str, list[Result]], name: str):
    first, second = results[name]
    assert first.outcome.status == "ok", first.outcome
    assert first.samples is not None
    assert [len(times) for times in first.samples.time_ms] == [MEASURE.repeats] * WORLD
    assert min(map(min, first.samples.time_ms)) > 0
    assert first.samples.time_ms == second.samples.time_ms
    assert first.samples.time_ms[0] != first.samples.time_ms[1]
    checked = [
        "out",
        *(["lse"] if name in ("ring", "gather") else []),
        *(["dq", "dk", "dv"] if CELLS[name].direction == "bwd" else []),
    ]
    assert sorted(first.accuracy.relative) == sorted(checked)
    assert first.accuracy == second.accuracy
    assert len(first.memory.peak_bytes) == len(first.memory.absolute_peak_bytes) == len(first.nodes) == WORLD
    of_strategy = {"schedule_ms", "num_key_buffers"} if "lse" in checked else {"formula_replicated_bytes"}
    assert (
        first.costs.keys()
        >= {"plan_ms", "mask_ms", "oracle_ms", "moved_bytes", "formula_bytes"} | of_strategy
    )
    assert first.costs == second.costs


def by_protocol(comm: Comm, cell: Cell) -> Result:
    measure = Measure(warmup=1, repeats=10, max_repeats=60, max_seconds=0.3 + comm.rank, timeout_s=60)
    return measure_cp(cell, measure, comm.device, comm)


def test_ranks_warm_up_and_stop_together_by_their_slowest_times(plugins: None):
    """Though their clocks, and here even their limits of time, differ."""
    first, second = on_ranks(by_protocol, WORLD, cell())
    assert first.outcome.status == second.outcome.status == "ok", (first.outcome, second.outcome)
    assert first.samples is not None and second.samples is not None
    facts = [
        (of_rank.time_ms, of_rank.warmup, of_rank.steady, of_rank.stopped)
        for of_rank in (first.samples, second.samples)
    ]
    assert facts[0] == facts[1]
    num_samples = {len(times) for times in first.samples.time_ms}
    assert len(num_samples) == 1 and num_samples.pop() >= 10
    assert first.samples.warmup >= 8 and first.samples.steady is not None and first.samples.duty is None


def test_what_a_strategy_takes_for_itself_is_known_of_each_rank(results: dict[str, list[Result]]):
    first, second = results["bwd"]
    assert first.memory == second.memory and len(first.memory.above_shards_bytes) == WORLD
    assert first.costs["permute_ms"] == 0  # Ulysses takes contiguous shards


def test_bytes_moved_are_of_one_call(results: dict[str, list[Result]]):
    costs = results["block"][0].costs  # all divides there, so that the formula is exact
    assert costs["moved_bytes"] == costs["formula_bytes"] == 128 * (8 + 2) * 16 * 2 * 2 / 4


def test_a_cell_gets_the_mesh_that_it_asks_for(results: dict[str, list[Result]]):
    """By itself USP divides heads among two ranks."""
    first = results["mesh"][0]
    assert first.outcome.status == "ok", first.outcome
    assert first.notes[0] == "a ring of 2"


def test_backward_is_checked_against_other_gradients_than_zero(results: dict[str, list[Result]]):
    assert all(0 < error < 0.02 for error in results["bwd"][0].accuracy.relative.values())


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("absent", "unavailable", "rank 1: not here"),
        ("picky", "unsupported", "4:1 of 101"),
        ("partless", "unsupported", "no LSE"),
        ("unfit", "unsupported", "2 ranks are no whole number of head groups of 3"),
        ("unprepared", "error", "no such index"),
        ("greedy", "oom", "prepare"),
        ("mistaken", "incorrect", "out is off by"),
    ],
)
def test_all_ranks_end_alike(results: dict[str, list[Result]], name: str, status: str, words: str):
    for result in results[name]:
        assert result.outcome.status == status
        assert words in str(result.outcome)
        assert result.samples is None
        assert result.memory is None
    if name in ("unprepared", "greedy"):
        assert all("rank 1 failed at: prepare" in result.notes for result in results[name])


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p"])
def test_a_rank_that_fails_between_messages_does_not_hang_the_others(plugins: None, strategy: str):
    (peer, waited_s), (fallen, fell_after_s) = on_ranks(fall, WORLD, strategy, timeout_s=PATIENCE_S)
    assert fallen.outcome.status == "error"
    assert fallen.outcome.message == "fell"
    assert peer.outcome.status == "error"
    assert peer.outcome.type == PEER_LOST
    assert fell_after_s < PATIENCE_S  # it does not wait for anybody
    assert waited_s < 30


def test_a_lone_rank_needs_no_meeting():
    comm = Comm(0, 1, 0, "", "cpu")
    try:
        result = measure_cp(cell(world=1), MEASURE, torch.device("cpu"), comm)
    finally:
        comm.close()
    assert result.outcome.status == "ok"
    assert result.costs["moved_bytes"] == 0


def test_memory_that_torch_does_not_count_is_in_the_record(monkeypatch: pytest.MonkeyPatch):
    """Landings lie in memory of the driver's: nothing of it is there before the strategy is prepared, all of
    it while it is timed."""
    seen = iter([0])
    monkeypatch.setattr(Comm, "unseen_bytes", property(lambda comm: next(seen, 10**9)))
    comm = Comm(0, 1, 0, "", "cpu")
    try:
        result = measure_cp(
            cell(world=1), MEASURE.model_copy(update={"messages": "symmetric"}), torch.device("cpu"), comm
        )
    finally:
        comm.close()
    assert result.outcome.status == "ok" and result.memory is not None
    assert (
        0.9 * 10**9
        < result.memory.above_shards_bytes[0]
        < 2 * 10**9
        <= 2 * result.memory.absolute_peak_bytes[0]
    )
    assert "messages by NCCL or gloo: a lone rank has no peer" in result.notes
