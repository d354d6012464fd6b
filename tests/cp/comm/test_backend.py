"""The choice of what brings messages: without GPUs, symmetric memory is refused with a reason."""

from __future__ import annotations

from typing import Any

from longca.cp.comm.backend import Comm
from tests.helpers.cp.case import Case
from tests.helpers.cp.ranks import on_ranks


def fall_back(comm: Comm, case: Case) -> dict[str, Any]:
    facts = []
    for messages in ("nccl", "symmetric", "symmetric"):
        comm.use(messages)
        facts.append((comm.messages, comm.messages_note))
    return {"found": facts, **case.run(comm)}


def test_without_gpus_all_ranks_fall_back_alike_and_say_why() -> None:
    case = Case("causal", 41, 4, 2, strategy="usp")
    parts = on_ranks(fall_back, 2, case)
    note = "messages by NCCL or gloo: symmetric memory is that of GPUs"
    for part in parts:
        assert part["found"] == [("nccl", ""), ("nccl", note), ("nccl", note)]
        assert note in part["notes"]
    assert max(case.errors(parts).values()) < case.tolerance
