"""Collectives between ranks, over gloo; the environment of torchrun."""

import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import distributed_c10d

from longca.core.errors import UserError
from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks

WORLD = 3


def talk(comm: Comm) -> dict:
    """Rank r sends r + p elements of value 10·r + p to rank p, in bfloat16."""
    sizes = [comm.rank + peer for peer in range(WORLD)]
    send = torch.cat([torch.full((size,), 10.0 * comm.rank + peer) for peer, size in enumerate(sizes)]).to(
        torch.bfloat16
    )
    received = comm.all_to_all(send, sizes, [peer + comm.rank for peer in range(WORLD)])
    moved = comm.moved_bytes
    rows = comm.gather_rows(torch.full((comm.rank, 2), float(comm.rank)), list(range(WORLD)))
    comm.barrier()
    return {
        "received": received,
        "moved": moved,
        "rows": rows,
        "after": comm.moved_bytes,
        "any": [comm.any(comm.rank == 1), comm.any(False)],
        "gathered": comm.gather({"rank": comm.rank}),
        "arrays": [part.tolist() for part in comm.gather_arrays(np.arange(comm.rank, dtype=np.int64))],
    }


@pytest.fixture(scope="module")
def said() -> list[dict]:
    return on_ranks(talk, WORLD)


def test_uneven_pieces_arrive_in_the_order_of_ranks(said: list[dict]):
    for rank, heard in enumerate(said):
        expected = [10.0 * peer + rank for peer in range(WORLD) for _ in range(peer + rank)]
        assert heard["received"].dtype == torch.bfloat16
        assert heard["received"].tolist() == expected


def test_bytes_to_others_are_counted(said: list[dict]):
    for rank, heard in enumerate(said):
        assert heard["moved"] == 2 * sum(rank + peer for peer in range(WORLD) if peer != rank)
        assert heard["after"] == heard["moved"], "gathering is not part of a strategy"


def test_rows_are_gathered_on_rank_0(said: list[dict]):
    assert [part.tolist() for part in said[0]["rows"]] == [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]
    assert said[1]["rows"] is said[2]["rows"] is None


def test_answers_are_the_same_everywhere(said: list[dict]):
    for heard in said:
        assert heard["any"] == [True, False]
        assert heard["gathered"] == [{"rank": rank} for rank in range(WORLD)]
        assert heard["arrays"] == [list(range(rank)) for rank in range(WORLD)]


def test_what_ranks_send_each_other_is_data_that_cannot_be_code(monkeypatch: pytest.MonkeyPatch):
    def loads(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was opened")

    comm = Comm(0, 1, 0, "", "cpu")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(distributed_c10d, "_unpickler", lambda *_: loads())
            assert comm.gather({"time": [1.5, None], "text": "×"}) == [{"time": [1.5, None], "text": "×"}]
            with pytest.raises(TypeError, match="not JSON serializable"):
                comm.gather(Path)
    finally:
        comm.close()


def test_the_environment_of_torchrun_is_understood(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    comm = Comm.from_torchrun("cpu")
    try:
        assert (comm.rank, comm.world, comm.gather("here")) == (0, 1, ["here"])
    finally:
        comm.close()
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(UserError, match="LOCAL_RANK"):
        Comm.from_torchrun("cpu")


@pytest.mark.parametrize("types", [["cpu", "cuda"], ["cuda", "cuda", "cpu"]])
def test_ranks_with_and_without_a_gpu_are_refused_before_they_make_a_group(
    types: list[str], monkeypatch: pytest.MonkeyPatch
):
    comm = Comm.__new__(Comm)
    comm.device = torch.device(types[0])
    monkeypatch.setattr(comm, "gather", lambda mine: types)
    with pytest.raises(
        UserError,
        match=f"'device' differs between ranks: rank 0 has {types[0]}, rank {len(types) - 1} has {types[-1]}",
    ):
        comm._check_devices()
