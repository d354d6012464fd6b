"""Messages from rank to rank, over gloo: in the order of their streams."""

import torch

from longca.cp.comm.backend import Comm
from tests.helpers.cp.ranks import on_ranks

WORLD = 3


def correspond(comm: Comm) -> dict:
    """Each rank sends its number to the next one, twice on one comm stream and once on another."""
    after = (comm.rank + 1) % WORLD
    before = (comm.rank - 1) % WORLD
    streams = {name: comm.stream(name) for name in ("slow", "quick")}
    got = {name: torch.zeros(2) for name in ("slow", "slow again", "quick")}
    pending = [
        streams[name.partition(" ")[0]].post(
            [(after, torch.tensor([comm.rank, number]).float(), None)], [(before, x)]
        )
        for number, (name, x) in enumerate(got.items())
    ]
    for messages in reversed(pending):
        messages.wait()
        messages.wait()
    streams["slow"].post([], []).wait()
    return {
        "got": {name: x.tolist() for name, x in got.items()},
        "moved": comm.moved_bytes,
        "kept": streams["slow"] is comm.stream("slow"),
    }


def test_comm_streams_bring_messages_in_their_order():
    for rank, heard in enumerate(on_ranks(correspond, WORLD)):
        before = (rank - 1) % WORLD
        assert heard["got"] == {"slow": [before, 0.0], "slow again": [before, 1.0], "quick": [before, 2.0]}
        assert heard["moved"] == 3 * 2 * 4
        assert heard["kept"]
