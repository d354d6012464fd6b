"""The agreement of ranks on each call: they compare headers on the host before any result is handed out.

A call that sends anything has a header: its kind and number, its arguments, the calls of `shard` before it,
and the error that the rank raises instead. `begin` posts it; `begin` or `end` reads the headers of all
ranks, before any result is handed out:

                                begin                      messages, kernels    end
    ranks of one machine, CPUs,
    check="always", and the
    first call of a series      post header, read all      →
    GPUs of several machines    post header                →                    read all

In the first form nothing has left when ranks disagree. In the second a host first does its own work of the
call, since a header takes long from one machine to another. Messages may then have left when ranks notice that
they disagree. If so, the context ends: what waits for a peer on a GPU is released, and each later call raises
the first reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from longca.core.errors import UserError, shortened
from longca.cp.api.agreement_text import Header, disagreement, error_of_ranks, failure_of
from longca.cp.api.shard_calls import ShardCalls
from longca.cp.comm.headers import MAX_BYTES, Headers, open_headers
from longca.cp.comm.process_group import PeerLost

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm

CLOSE_S = 2.0
"""the longest that `close` waits for the other ranks to close as well"""
CLOSES, GONE = "close", "gone"


def _nothing() -> None: ...


class Agreement:
    """The calls of one rank, compared with those of others. All contexts made by `with_mask` share it."""

    def __init__(self, comm: Comm, waits: bool) -> None:
        """
        Args:
            waits: ranks compare each call before it sends anything. False: only the first call of a series, unless
                headers are quick.
        """
        self._comm = comm
        self._headers: Headers | None = open_headers(comm) if comm.world > 1 else None
        self._waits = waits or (self._headers is not None and self._headers.is_quick)
        self._numbers: Counter[str] = Counter()
        self._begun: set[tuple[str, str]] = set()
        self._posted: bytes | None = None  # a header whose counterparts have not been read
        self._reason: Exception | None = None  # why nothing can be called any more
        self.shards = ShardCalls(reads_devices=waits)

    def begin(
        self, kind: str, arguments: str, check: Callable[[], object] = _nothing, series: str | None = None
    ) -> int:
        """Begins a call that sends messages, and compares it with those of other ranks if it has to.

        Args:
            kind: "forward", for example.
            arguments: those that ranks must have in common, in words. Equal texts mean equal arguments.
            check: raises if this rank's own arguments cannot be used.
            series: a text that similar calls share: ranks may wait for each other in the first of them alone.
                None: they wait in each.

        Returns:
            The number of the call among those of its kind, from 1.

        Raises:
            UserError: on all ranks, in the same words, where `check` raises it on one of them, or where ranks
                call different things.
            PeerLost: another rank has not come.
        """
        self.refuse()
        self.end()
        self._numbers[kind] += 1
        number = self._numbers[kind]
        if self._headers is None:
            check()
            return number
        error: Exception | None = None
        try:
            check()
        except Exception as raised:  # whatever it is, the other ranks must hear of it
            error = raised
        waits = self._waits or error is not None or (kind, series) not in self._begun
        self._post(
            Header(
                kind,
                number,
                arguments,
                self.shards.taken(),
                waits,
                None if error is None else failure_of(error),
            )
        )
        if waits:
            self._read(error)
        if series is not None:
            self._begun.add((kind, series))
        return number

    @contextmanager
    def messages(self) -> Iterator[None]:
        """The messages and kernels of the call that was begun. If they fail, this context ends."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                self.end()  # where ranks disagree, that is the cause
            self.fail(error)
            raise

    def end(self) -> None:
        """Ends the call that was begun: its result may be handed out. Raises as `begin`."""
        if self._posted is not None:
            self._read(None)

    def refuse(self) -> None:
        """Raises the first reason where this context cannot be used any more."""
        if isinstance(self._reason, PeerLost):
            raise PeerLost(f"this context ended before: {self._reason}")
        if self._reason is not None:
            raise UserError(
                "This context cannot be used any more",
                why=_in_a_line(self._reason),
                todo="Make a new one with context_parallel on every rank",
            )

    def fail(self, error: BaseException) -> None:
        """Ends this context after an error within a call. Other ranks learn it with their next call."""
        if self._reason is not None or self._headers is None:
            return
        self._poison(
            error
            if isinstance(error, Exception)
            else RuntimeError(f"a call was ended by {type(error).__name__}")
        )
        if self._posted is None:
            self._headers.post(_gone(error))

    def close(self, is_failing: bool) -> None:
        """Compares the number of calls with those of the other ranks, where they close within two seconds.

        Args:
            is_failing: an exception is on its way: the others are told, and nothing is compared.

        Raises:
            UserError: another rank goes on with a call that this one does not make.
        """
        headers, self._headers = self._headers, None
        if headers is None:
            return
        try:
            if self._reason is None:
                self._compare_closing(headers, is_failing)
        finally:
            self._reason = self._reason or UserError("it is closed")
            headers.close()

    def _compare_closing(self, headers: Headers, is_failing: bool) -> None:
        with suppress(PeerLost):  # a rank that is gone, or closes later
            if self._posted is not None:  # of a call that an exception has ended
                self._compare(headers.read(self._comm.timeout_s), None)
            self._posted = Header(CLOSES, sum(self._numbers.values()), "", "", True, None).packed(MAX_BYTES)
            headers.post(self._posted)
            if not is_failing:
                self._compare(headers.read(min(CLOSE_S, self._comm.timeout_s)), None)

    def _post(self, header: Header) -> None:
        assert self._headers is not None
        self._posted = header.packed(MAX_BYTES)
        self._headers.post(self._posted)

    def _read(self, own: Exception | None) -> None:
        """Reads the headers that belong to the one posted, and raises where they do not go together."""
        assert self._headers is not None
        try:
            packed = self._headers.read(self._comm.timeout_s)
        except PeerLost as error:
            self._poison(error)
            self._headers.replace(_gone(error))  # for a rank that is only late
            raise
        self._compare(packed, own)

    def _compare(self, packed: Sequence[bytes], own: Exception | None) -> None:
        """Raises the error that ranks raise alike, if there is one."""
        mine, self._posted = self._posted, None
        if own is None and packed.count(mine) == len(packed):
            return
        headers = [Header.unpacked(header) for header in packed]
        problem: Exception | None = next(
            (
                PeerLost(f"rank {rank} cannot go on: {header.arguments}")
                for rank, header in enumerate(headers)
                if header.kind == GONE
            ),
            None,
        )
        problem = problem or disagreement(headers)
        if problem is None:
            problem = error_of_ranks([header.failure for header in headers], own)
            if problem is None:
                return
            if all(header.waits for header in headers):  # nothing has left: the context is as before the call
                _raise(problem, own)
        self._poison(problem, may_hang=not all(header.waits for header in headers))
        _raise(problem, own)

    def _poison(self, reason: Exception, may_hang: bool = True) -> None:
        """
        Args:
            may_hang: messages may wait for a rank that does not send them.
        """
        self._reason = reason
        if may_hang:
            self._comm.abandon()


def _gone(error: BaseException) -> bytes:
    """The header of a rank that cannot go on."""
    return Header(GONE, 0, _in_a_line(error), "", True, None).packed(MAX_BYTES)


def _raise(error: Exception, own: Exception | None) -> NoReturn:
    if error is own:
        raise error
    raise error from own


def _in_a_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, UserError):  # without its advice
        text = f"{error.what}: {error.why}" if error.why else error.what
    elif isinstance(error, PeerLost):
        text = str(error)
    return shortened(" ".join(text.split()), 500)
