"""Ready/full handshake of symmetric memory: no buffer is overwritten before it is read, under random
interleavings."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from longca.cp.comm.symmetric import SendSignal, SignalHandshake, WaitSignal
from tests.helpers.support import examples

NUM_SLOTS = 3
Value = tuple[int, int]
"""(batch in which it set out first, rank that sent it then)"""


@dataclass(frozen=True)
class Message:
    sender: int
    receiver: int
    slot: int
    """where it lands"""
    source: int | None
    """the slot of the sender that it passes on, which an earlier batch has filled; None: something of its
    own"""


@dataclass(frozen=True)
class Program:
    world: int
    batches: tuple[tuple[Message, ...], ...]
    lag: int
    """so many batches after a message was posted it is waited for and read, or earlier, where its slot is
    used again"""


@st.composite
def programs(draw: st.DrawFn) -> Program:
    world = draw(st.integers(2, 4))
    batches: list[tuple[Message, ...]] = []
    filled: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(1, 7))):
        free = {(rank, slot) for rank in range(world) for slot in range(NUM_SLOTS)}
        messages = []
        for sender in range(world):
            for receiver in (rank for rank in range(world) if rank != sender):
                for _ in range(draw(st.integers(0, 2))):
                    slots = sorted(slot for rank, slot in free if rank == receiver)
                    if not slots:
                        continue
                    slot = draw(st.sampled_from(slots))
                    free.discard((receiver, slot))
                    landing = {(message.receiver, message.slot) for message in messages}
                    sources = sorted(
                        number for rank, number in filled if rank == sender and (rank, number) not in landing
                    )
                    source = draw(st.sampled_from([None, *sources]))
                    if source is not None:
                        free.discard((sender, source))
                    messages.append(Message(sender, receiver, slot, source))
        batches.append(tuple(messages))
        filled |= {(message.receiver, message.slot) for message in messages}
    return Program(world, tuple(batches), draw(st.integers(0, 3)))


def expected(program: Program) -> list[dict[tuple[int, int], Value]]:
    """The content of each (rank, slot) that a batch fills."""
    now: dict[tuple[int, int], Value] = {}
    contents = []
    for number, messages in enumerate(program.batches):
        landed = {
            (message.receiver, message.slot): (number, message.sender)
            if message.source is None
            else now[message.sender, message.source]
            for message in messages
        }
        now |= landed
        contents.append(landed)
    return contents


@dataclass
class Rank:
    """Its kernels' stream does `script`, its lane what has been posted."""

    number: int
    handshake: SignalHandshake
    script: deque[tuple[str, int]] = field(default_factory=deque)
    lane: deque[tuple[int, object]] = field(default_factory=deque)
    ended: set[int] = field(default_factory=set)


class Machine:
    """
    Args:
        one_queue: a rank does all in the order in which it was posted, as where a driver puts several streams
            into one queue.
    """

    def __init__(self, program: Program, one_queue: bool = False) -> None:
        self.program = program
        self.expected = expected(program)
        self._one_queue = one_queue
        self.slots: dict[tuple[int, int], Value] = {}
        self.told: dict[tuple[int, str, int], int] = {}
        self.ranks = [
            Rank(rank, SignalHandshake(rank, program.world), script(program, rank))
            for rank in range(program.world)
        ]

    def enabled(self) -> list[tuple[Rank, str]]:
        return [(rank, what) for rank in self.ranks for what in ("kernels", "lane") if self._can(rank, what)]

    def _can(self, rank: Rank, what: str) -> bool:
        if what == "kernels":
            held_up = self._one_queue and rank.lane
            return (
                bool(rank.script)
                and not held_up
                and (rank.script[0][0] == "post" or rank.script[0][1] in rank.ended)
            )
        if not rank.lane:
            return False
        step = rank.lane[0][1]
        return (
            not isinstance(step, WaitSignal)
            or self.told.get((rank.number, step.signal, step.peer), 0) >= step.number
        )

    def do(self, rank: Rank, what: str) -> None:
        if what == "lane":
            self._do_lane(rank, *rank.lane.popleft())
            return
        action, number = rank.script.popleft()
        messages = self.program.batches[number]
        if action == "post":
            to = [message.receiver for message in messages if message.sender == rank.number]
            of = [message.sender for message in messages if message.receiver == rank.number]
            rank.lane.extend((number, step) for step in [*rank.handshake.batch(to, of), "end"])
        else:
            for (receiver, slot), value in self.expected[number].items():
                assert receiver != rank.number or self.slots[receiver, slot] == value, (
                    f"batch {number}, slot {slot} of rank {receiver}"
                )

    def _do_lane(self, rank: Rank, number: int, step: object) -> None:
        if isinstance(step, SendSignal):
            key = step.peer, step.signal, rank.number
            assert step.number == self.told.get(key, 0) + 1
            self.told[key] = step.number
        elif step == "end":
            rank.ended.add(number)
        elif not isinstance(step, WaitSignal):
            for message in self.program.batches[number]:
                if (message.sender, message.receiver) == (rank.number, step.peer):  # type: ignore[attr-defined]
                    own = number, rank.number
                    self.slots[message.receiver, message.slot] = (
                        own if message.source is None else self.slots[rank.number, message.source]
                    )


def script(program: Program, rank: int) -> deque[tuple[str, int]]:
    """Posts, and reads, each of which waits for its batch first."""
    actions: deque[tuple[str, int]] = deque()
    unread: dict[int, set[int]] = {}
    for number, messages in enumerate(program.batches):
        slots = {message.slot for message in messages if message.receiver == rank}
        for earlier in [
            batch for batch, landed in unread.items() if landed & slots or batch < number - program.lag
        ]:
            actions.append(("read", earlier))
            del unread[earlier]
        if slots or any(message.sender == rank for message in messages):
            actions.append(("post", number))
            unread[number] = slots
    actions.extend(("read", number) for number in unread)
    return actions


@examples(300)
@given(programs(), st.randoms(use_true_random=False), st.booleans())
def test_all_arrive_whole_in_any_order_of_events(
    program: Program, chance: random.Random, one_queue: bool
) -> None:
    """Each reader gets the data that were sent: nothing is late or overwritten, and no rank waits for
    ever."""
    machine = Machine(program, one_queue)
    while enabled := machine.enabled():
        machine.do(*chance.choice(enabled))
    assert not any(rank.script or rank.lane for rank in machine.ranks), "ranks wait for each other"


def test_a_late_rank_is_written_to_only_when_it_is_ready() -> None:
    """Without the wait for `ready` the second message would overwrite the first: the state machine must
    notice."""
    again = (Message(0, 1, 0, None),)
    machine = Machine(Program(2, (again, again), 0))
    sender, receiver = machine.ranks
    while machine._can(sender, "kernels") or machine._can(sender, "lane"):
        machine.do(sender, "kernels" if machine._can(sender, "kernels") else "lane")
    assert sender.lane and not machine.slots, "nothing was written before the receiver had posted"
    machine.do(receiver, "kernels")
    for _ in range(2):
        machine.do(receiver, "lane") if machine._can(receiver, "lane") else None
        while machine._can(sender, "kernels") or machine._can(sender, "lane"):
            machine.do(sender, "kernels" if machine._can(sender, "kernels") else "lane")
    assert machine.slots == {(1, 0): (0, 0)}, "the second one waits until the first has been read"
