"""Ranks tell each other before a call sends anything: who they are, the header of a call, its calls of
`shard`, and the sentences that say in what ranks differ.

The calls of `shard` on one rank. They send nothing, so the next header describes them to the other
ranks.

Every rank gives `shard` the whole of the same tensor. A rank that has left out a step, or draws its data
with another seed, gives another one. A few elements show that for tensors in the host's memory; to read
those of a GPU would make the host wait.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from longca.core import UserError, shortened
from longca.cp.comm.backend import Comm
from longca.cp.comm.process_group import TORCHRUN
from longca.lowering import usable_device

if TYPE_CHECKING:
    import torch

MAX_KEPT = 4  # of the last calls between two headers
MAX_TEXT = 200
NUM_ELEMENTS = 8
LARGEST_DIFFERENCE = 0.1
"""of two samples of floats, relative to the larger one: rounding is less, another batch is more"""

Difference = tuple[str, str, str]
"""what, why and what to do, as of a UserError"""


class ShardCalls:
    """The calls of `shard` since the last header, and the sinks of a call."""

    def __init__(self, reads_devices: bool) -> None:
        """
        Args:
            reads_devices: elements of tensors on a GPU are compared as well, for which the host waits.
        """
        self._reads_devices = reads_devices
        self._count = 0
        self._failure = ""
        self._last: list[tuple[str, list[Any] | None]] = []
        self._sinks: list[Any] | None = None

    def add(self, x: torch.Tensor, dim: int) -> None:
        """Notes a call that this rank has done."""
        shape = " × ".join(map(str, x.shape))
        title = f"{x.dtype} {shape} along dimension {dim % x.dim()}"[:MAX_TEXT]
        self._count += 1
        self._last = [*self._last[1 - MAX_KEPT :], (title, self._elements(x))]

    def add_sinks(self, sinks: torch.Tensor) -> None:
        """Notes the sinks of the call that is about to begin."""
        self._sinks = self._elements(sinks)

    def add_failure(self, error: Exception) -> None:
        """Notes a call that this rank could not do."""
        self._count += 1
        self._failure = " ".join(str(error).split())[:MAX_TEXT]

    def taken(self) -> str:
        """The calls as text for a header: empty without any. They are forgotten."""
        if not self._count and self._sinks is None:
            return ""
        text = json.dumps([self._count, self._last, self._failure, self._sinks], ensure_ascii=False)
        self._count = 0
        self._last = []
        self._failure = ""
        self._sinks = None
        return text

    def _elements(self, x: torch.Tensor) -> list[Any] | None:
        is_read = x.device.type == "cpu" or (self._reads_devices and x.device.type != "meta")
        return _elements(x) if is_read else None


def difference_of_shards(shards: Sequence[str]) -> Difference | None:
    """The first difference between ranks in what they have given `shard`, or as sinks; None where there is
    none.

    Args:
        shards: by rank, those of a header.
    """
    if all(text == shards[0] for text in shards):
        return None
    calls = [json.loads(text) if text else [0, [], "", None] for text in shards]
    for rank, (_, _, failure, _) in enumerate(calls):
        if failure and any(other[2] != failure for other in calls):
            return (
                f"Rank {rank} could not do its last call of shard",
                failure.rstrip("."),
                "Give every rank the same whole tensor",
            )
    for rank, (*_, sinks) in enumerate(calls):
        if not _alike(calls[0][3], sinks):
            return (
                f"Argument 'sinks' of attention has other content on rank {rank} than on rank 0",
                "sinks are the logits of all query heads, and every rank uses its own",
                "Give every rank the same sinks",
            )
    counts = [count for count, *_ in calls]
    if 0 in counts:  # one rank alone may look at its tokens, and a compiled call is not noted
        return None
    for rank, (count, last, *_) in enumerate(calls):
        if count != counts[0]:
            return (
                "Ranks call shard unequally often between two calls that send messages",
                f"rank 0 has called it {_times(counts[0])}, rank {rank} {_times(count)}",
                "Call it on every rank alike; x[cp.positions] takes this rank's tokens at any time",
            )
        for (title, elements), (other, others) in zip(calls[0][1], last, strict=False):
            if title != other:
                return (
                    "Argument 'x' of shard differs between ranks",
                    f"rank 0 has {title}, rank {rank} has {other}",
                    "Give every rank the same whole tensor",
                )
            if not _alike(elements, others):
                return (
                    f"Argument 'x' of shard, {title}, has other content on rank {rank} than on rank 0",
                    "a rank has left out a step, or its data are drawn by another seed",
                    "Give every rank the same whole tensor",
                )
    return None


def _elements(x: torch.Tensor) -> list[Any] | None:
    """Some elements of the tensor, evenly apart; None where they are no plain numbers."""
    import torch

    if not x.numel() or x.is_complex() or x.is_quantized or x.layout is not torch.strided:
        return None
    step = max(1, x.numel() // NUM_ELEMENTS)
    places = torch.unravel_index(torch.arange(step - 1, x.numel(), step, device=x.device), x.shape)
    return x.detach()[places].to(torch.float64 if x.is_floating_point() else torch.int64).tolist()


def _alike(mine: list[Any] | None, other: list[Any] | None) -> bool:
    if mine is None or other is None or mine == other or len(mine) != len(other):
        return True  # of other lengths: sinks that do not fit, for which a rank has an error of its own
    if not any(isinstance(x, float) for x in (*mine, *other)):
        return False
    pairs = [(a, b) for a, b in zip(mine, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    distance = math.sqrt(sum((a - b) ** 2 for a, b in pairs))
    norm = max(math.sqrt(sum(a * a for a, _ in pairs)), math.sqrt(sum(b * b for _, b in pairs)))
    return distance <= LARGEST_DIFFERENCE * norm


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


PART_LENGTHS = (800, 250, 60)
"""characters of the parts of a header that is too long for its place: the first that make it fit"""
SEPARATOR = "\x1f"  # of parts. No part but the last has it: JSON escapes it

CALL_ALIKE = "Make the same calls, with the same arguments and in the same order, on every rank"
NEW_CONTEXT = "this context has ended, so make a new one with context_parallel"
CLOSES = "close"
"""the kind of the last call"""

Failure = list[str]
"""the three parts of a UserError, or a text alone for another exception"""


class Header(NamedTuple):
    """The part of a call that ranks compare."""

    kind: str
    number: int
    """of the call among those of its kind, from 1"""
    arguments: str
    """a line each, in words, the most telling one first"""
    shards: str
    """the calls of `shard` since the header before: see `ShardCalls`"""
    waits: bool
    """no message of this call leaves before all headers are compared"""
    failure: Failure | None
    """the error that this rank raises instead of sending anything"""

    def packed(self, max_bytes: int) -> bytes:
        header = self._encoded()
        for length in PART_LENGTHS:
            if len(header) <= max_bytes:
                break
            parts = None if self.failure is None else [shortened(part, length) for part in self.failure]
            header = self._replace(arguments=shortened(self.arguments, length), failure=parts)._encoded()
        return header

    def _encoded(self) -> bytes:
        """By hand: JSON of all would take as long as everything else that a header costs."""
        kind, number, arguments, shards, waits, failure = self
        failed = "" if failure is None else json.dumps(failure, ensure_ascii=False)
        text = f"{kind}\x1f{number}\x1f{'1' if waits else ''}\x1f{shards}\x1f{failed}\x1f{arguments}"
        return text.encode("utf-8", "backslashreplace")

    @classmethod
    def unpacked(cls, header: bytes) -> Header:
        kind, number, waits, shards, failure, arguments = header.decode().split(SEPARATOR, 5)
        return cls(
            kind, int(number), arguments, shards, bool(waits), json.loads(failure) if failure else None
        )

    @property
    def call(self) -> str:
        if self.kind == CLOSES:
            return f"closes the context after {self.number} {'call' if self.number == 1 else 'calls'}"
        first = self.arguments.partition("\n")[0]
        return f"calls {self.kind} number {self.number}" + (f" with {first}" if first else "")


def failure_of(error: Exception) -> Failure:
    """The error as other ranks are to see it."""
    return list(error.args) if isinstance(error, UserError) else [f"{type(error).__name__}: {error}"]


def error_of_ranks(
    failures: Sequence[Failure | None], own: Exception | None, ending: str = ""
) -> Exception | None:
    """The error that this rank raises where one rank's own work has failed.

    Args:
        failures: by rank.
        own: the exception of this rank.
        ending: of the error, if it is not empty.

    Returns:
        The UserError of the first rank that has one, in the same words on every rank; otherwise this rank's
        own exception, or a RuntimeError that names the rank that failed. None if no rank failed.
    """
    alike = all(failure == failures[0] for failure in failures)
    for rank, failure in enumerate(failures):
        if failure is not None and len(failure) > 1:
            what, why, todo = failure
            return UserError(what if alike else f"Rank {rank}: {what}", why=why, todo=_joined(todo, ending))
        if failure is not None:
            reason = failure[0].partition("\n")[0]
            return own or RuntimeError(_joined(f"rank {rank} failed: {reason}", ending))
    return None


def disagreement(headers: Sequence[Header]) -> UserError | None:
    """The error where ranks call different things. None if they do not, or if one has an error of its own."""
    ending = ending_of(headers)
    if len({(header.kind, header.number) for header in headers}) > 1:
        return UserError(
            "Ranks call different things",
            why=_by_rank([header.call for header in headers]),
            todo=_joined(CALL_ALIKE, ending),
        )
    difference = difference_of_shards([header.shards for header in headers])
    if difference is not None:
        what, why, todo = difference
        return UserError(what, why=why, todo=_joined(todo, ending))
    first = headers[0]
    if any(header.failure is not None for header in headers) or all(
        header.arguments == first.arguments for header in headers
    ):
        return None
    own = [header.arguments.splitlines() for header in headers]
    common = set.intersection(*map(set, own))
    told = [f"has {', '.join(line for line in lines if line not in common)}" for lines in own]
    return UserError(
        f"Ranks call {first.kind} number {first.number} with different arguments",
        why=_by_rank(told),
        todo=_joined(CALL_ALIKE, ending),
    )


def ending_of(headers: Sequence[Header]) -> str:
    """The end of an error: what to do with results that were handed out, and with the context."""
    calls = {
        f"{header.kind} number {header.number}"
        for header in headers
        if header.kind != CLOSES and header.failure is None
    }
    if all(header.waits for header in headers) or not calls:
        return NEW_CONTEXT
    call = calls.pop() if len(calls) == 1 else "these calls"
    return f"do not use results of {call} and of later calls; {NEW_CONTEXT}"


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _by_rank(texts: Sequence[str]) -> str:
    """ "rank 0 has a, ranks 1 and 3 have …": ranks that say the same are named together."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return ", ".join(f"{ranks_in_words(of_text)} {text}" for text, of_text in ranks.items())


def ranks_in_words(ranks: Sequence[int]) -> str:
    *most, last = map(str, ranks)
    return f"each of ranks {', '.join(most)} and {last}" if most else f"rank {last}"


T = TypeVar("T")


def join(group: Any, device: Any, timeout_s: float) -> Comm:
    """The communication among the ranks of a group. All of them call it together.

    Args:
        group: None, a `torch.distributed.ProcessGroup`, or a `DeviceMesh` of one dimension. None takes the
            default process group; where there is none, it is made from the variables of torchrun, or for this
            process alone.
        device: of this rank's tensors; None takes this rank's GPU where the group speaks NCCL, else the CPU.

    Raises:
        UserError: it is no group, or this process is not in it.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise UserError("This torch has no torch.distributed", todo="Install a torch that is built with it")
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise UserError(f"Argument 'timeout' is {timeout_s!r}", todo="Give seconds, more than 0")
    device_type = usable_device(device).type if device is not None else None
    if hasattr(group, "get_group") and hasattr(
        group, "ndim"
    ):  # a DeviceMesh: its class cannot be imported from every build of torch
        if group.ndim != 1:
            raise UserError(
                f"Argument 'group' is a device mesh of {group.ndim} dimensions",
                why="ranks of context parallelism lie in one",
                todo="Give one dimension, as mesh['cp']",
            )
        device_type = device_type or group.device_type
        group = group.get_group()
    if group is None and not dist.is_initialized():
        return _new_job(device_type or ("cuda" if torch.cuda.is_available() else "cpu"), timeout_s)
    group = dist.group.WORLD if group is None else group
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise UserError(
            "This process is not in the group of argument 'group'",
            todo="Call context_parallel on its members alone",
        )
    if not isinstance(group, dist.ProcessGroup):
        raise UserError(
            f"Argument 'group' is of type {type(group).__name__}",
            todo=(
                "Give a process group of torch.distributed, a device mesh of one dimension, or None for all "
                "ranks"
            ),
        )
    return Comm.over(group, _device(device, device_type, dist.get_backend_config(group)), timeout_s)


def _new_job(device_type: str, timeout_s: float) -> Comm:
    if all(name in os.environ for name in TORCHRUN):
        return Comm.from_torchrun(device_type, timeout_s)
    return Comm(0, 1, 0, "", device_type, timeout_s)


def _device(device: Any, device_type: str | None, backends: str) -> torch.device:
    import torch

    if device is not None and torch.device(device).index is not None:
        return torch.device(device)
    device_type = device_type or ("cuda" if "nccl" in backends and torch.cuda.is_available() else "cpu")
    return (
        torch.device("cpu")
        if device_type == "cpu"
        else torch.device(device_type, torch.cuda.current_device())
    )


def all_or_none(comm: Comm, work: Callable[[], T]) -> T:
    """Each rank does its own work, and where one fails, all raise.

    Raises:
        UserError: that of the first rank that could not use what it was given, in the same words on every
        rank.
        Exception: whatever else this rank's work raised.
        RuntimeError: another rank's work raised something else.
    """
    results: list[T] = []
    own: Exception | None = None
    try:
        results.append(work())
    except Exception as raised:  # whatever it is, the other ranks must hear of it
        own = raised
    error = error_of_ranks(comm.gather(None if own is None else failure_of(own)), own)
    if error is not None:
        raise error from (None if error is own else own)
    return results[0]
