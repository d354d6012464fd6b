"""The agreement of ranks on each call: they compare headers on the host.

A call that sends anything has a header: its kind and number, its arguments, the calls of `shard` before it,
and the error that the rank raises instead. `begin` posts it. When headers of all ranks are there, each rank
compares them:

                                begin                      messages, kernels    end         later
    on CPUs, check="always",
    messages not releasable,
    the first call of a series,
    calls without a series      post, read all             →
    check="first" on GPUs       post, look at the earlier  →                    look        look

"Look" compares what is there. It waits for no rank that is less than `MAX_UNREAD` calls behind, so hosts run
ahead of each other as they do without headers. In the first form nothing has left when ranks disagree. In the
second, results of the call in which they disagree may have been handed out. The context then ends: what waits
for a peer on a GPU is released, and each rank raises the error at its next call. A thread looks as well, as a
host may wait for its GPU, and that for a message that no rank sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn
from weakref import ref

from longca.core import UserError, shortened
from longca.cp.calls.ranks import (
    CLOSES,
    Header,
    ShardCalls,
    disagreement,
    ending_of,
    error_of_ranks,
    failure_of,
)
from longca.cp.comm.headers import MAX_BYTES, MAX_UNREAD, Headers, open_headers
from longca.cp.comm.process_group import PeerLost

if TYPE_CHECKING:
    from longca.cp.comm.backend import Comm

CLOSE_S = 2.0
"""the longest that `close` waits for the other ranks to close as well, and a failed call for the reason"""
WATCH_S = 0.25
"""time between two looks of the thread: each takes the interpreter for some microseconds"""
LATE_S = 1.0
"""the thread gives a late rank up so long before the timeout: at the timeout NCCL ends the process"""


def _nothing() -> None: ...


class Agreement:
    """The calls of one rank, compared with those of others. All contexts made by `with_mask` share it."""

    def __init__(self, comm: Comm, waits: bool) -> None:
        """
        Args:
            waits: ranks compare each call before it sends anything. False: only the first call of a series,
                where messages can be given up while they wait.
        """
        self._comm = comm
        self._headers: Headers | None = open_headers(comm) if comm.world > 1 else None
        self._waits = waits or not comm.can_release
        self._numbers: Counter[str] = Counter()
        self._begun: set[tuple[str, str]] = set()
        self._reason: Exception | None = None  # why nothing can be called any more
        self._is_raised = True  # that reason, at least once
        self._lock = Lock()  # of all above: forward, backward and `look` run in threads of their own
        self._is_closed = Event()
        self._messages = _Messages(self)
        self.shards = ShardCalls(reads_devices=waits)
        if self._headers is not None and not self._waits:
            arguments = ref(self), self._is_closed
            Thread(target=_watch, args=arguments, name="longca-headers", daemon=True).start()

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
                call different things, in this call or an earlier one.
            PeerLost: another rank has not come.
        """
        with self._lock:
            self._refuse()
            self._look()
            self._numbers[kind] += 1
            number = self._numbers[kind]
            headers = self._headers
            if headers is None:
                check()
                return number
            error: Exception | None = None
            try:
                check()
            except Exception as raised:  # whatever it is, the other ranks must hear of it
                error = raised
            waits = self._waits or error is not None or (kind, series) not in self._begun
            failure = None if error is None else failure_of(error)
            while headers.num_unread >= MAX_UNREAD:
                self._read()
            header = Header(kind, number, arguments, self.shards.taken(), waits, failure)
            headers.post(header.packed(MAX_BYTES))
            if waits:
                self._settle(error)
                if series is not None:
                    self._begun.add((kind, series))
            return number

    def check_open(self) -> None:
        """Raises UserError or PeerLost if this context cannot be used any more."""
        with self._lock:
            self._refuse()

    def messages(self) -> _Messages:
        """The messages and kernels of the call that was begun. If they fail, this context ends."""
        return self._messages

    def end(self) -> None:
        """Ends the call that was begun: its result may be handed out. Raises as `begin`."""
        if self._headers is not None and self._headers.num_unread:
            with self._lock:
                self._refuse()
                self._look()

    def settle(self) -> None:
        """Waits until all calls of this rank are compared. Raises as `begin`."""
        with self._lock:
            self._refuse()
            self._look()
            self._settle()

    def look(self) -> None:
        """Compares what is there. The next call of this rank raises what is wrong.

        Does nothing while another thread compares.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._headers is None or self._reason is not None:
                return
            try:
                self._look()
                self._headers.check(self._comm.timeout_s - min(LATE_S, self._comm.timeout_s / 10))
            except Exception as error:  # no thread may end with an error that nobody sees
                if self._reason is None:
                    self._lose(error)
                self._is_raised = False
        finally:
            self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Ends this context after an error within a call. Other ranks learn it with their next call."""
        with self._lock:
            if self._reason is not None or self._headers is None:
                return
            is_usual = isinstance(error, Exception)
            self._lose(error if is_usual else RuntimeError(f"a call was ended by {type(error).__name__}"))

    def close(self, is_failing: bool) -> None:
        """Compares all calls, and their number where the other ranks close within two seconds.

        Args:
            is_failing: an exception is on its way: the others are told, and no rank is waited for.

        Raises:
            UserError: ranks have called different things, or another rank goes on with a call that this one
                does not make.
            PeerLost: a rank is gone or late, so that calls whose results were handed out cannot be compared.
        """
        self._is_closed.set()
        with self._lock:
            headers = self._headers
            if headers is None:
                self._reason = self._reason or UserError("it is closed")
                return
            try:
                if not self._is_raised:
                    self._refuse()
                if self._reason is None:
                    self._compare_closing(headers, is_failing)
            finally:
                self._headers = None
                self._reason = self._reason or UserError("it is closed")
                headers.close()

    def raise_cause(self) -> None:
        """Raises the disagreement of ranks that has made a call fail, if there is one."""
        with self._lock:
            if not self._is_raised:
                self._refuse()
            if self._headers is not None and self._reason is None:
                with suppress(PeerLost):  # the failure says more
                    while self._headers.num_unread:
                        self._compare(self._headers.read(min(CLOSE_S, self._comm.timeout_s)))

    def _refuse(self) -> None:
        """Raises the first reason where this context cannot be used any more."""
        if self._reason is None:
            return
        if not self._is_raised:
            self._is_raised = True
            raise self._reason
        if isinstance(self._reason, PeerLost):
            raise PeerLost(f"this context ended before: {self._reason}")
        raise UserError(
            "This context cannot be used any more",
            why=_in_a_line(self._reason),
            todo="Make a new one with context_parallel on every rank",
        )

    def _compare_closing(self, headers: Headers, is_failing: bool) -> None:
        closing = Header(CLOSES, sum(self._numbers.values()), "", "", True, None).packed(MAX_BYTES)
        if is_failing:
            with suppress(PeerLost):
                self._look()
            if headers.num_unread < MAX_UNREAD:
                headers.post(closing)
            return
        if not self._waits:  # results were handed out before ranks had compared them
            self._look()
            self._settle()
        with suppress(PeerLost):  # a rank that is gone, or closes later
            headers.post(closing)
            while headers.num_unread:
                self._compare(headers.read(min(CLOSE_S, self._comm.timeout_s)))

    def _look(self) -> None:
        """Compares what is there."""
        headers = self._headers
        if headers is None:
            return
        try:
            while (packed := headers.poll()) is not None:
                self._compare(packed)
        except PeerLost as error:
            self._lose(error)
            raise

    def _settle(self, own: Exception | None = None) -> None:
        """Compares all that this rank has posted, and waits for the other ranks.

        Args:
            own: the error of this rank in its last call.
        """
        while self._headers is not None and self._headers.num_unread:
            self._read(own)

    def _read(self, own: Exception | None = None) -> None:
        assert self._headers is not None
        try:
            packed = self._headers.read(self._comm.timeout_s)
        except PeerLost as error:
            self._lose(error)
            raise
        self._compare(packed, None if self._headers.num_unread else own)

    def _compare(self, packed: Sequence[bytes], own: Exception | None = None) -> None:
        """Raises the error that ranks raise alike, if there is one."""
        if own is None and packed.count(packed[0]) == len(packed):
            return
        headers = [Header.unpacked(header) for header in packed]
        problem: Exception | None = disagreement(headers)
        nothing_has_left = all(header.waits for header in headers)
        if problem is None:
            failures = [header.failure for header in headers]
            problem = error_of_ranks(failures, own, "" if nothing_has_left else ending_of(headers))
            if problem is None:
                return
            if nothing_has_left:  # the context is as before the call
                _raise(problem, own)
        self._poison(problem, may_hang=not nothing_has_left)
        _raise(problem, own)

    def _lose(self, reason: Exception) -> None:
        """Ends this context for a reason that other ranks cannot see, and tells them."""
        if self._headers is not None:
            self._headers.end(_in_a_line(reason))
        self._poison(reason)

    def _poison(self, reason: Exception, may_hang: bool = True) -> None:
        """
        Args:
            may_hang: messages may wait for a rank that does not send them.
        """
        self._reason = reason
        if may_hang:
            self._comm.abandon()


class _Messages:
    """The messages and kernels of a call, as a context."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = ref(agreement)  # no circle: what it holds is freed with the last reference

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        agreement = self._agreement()
        if error is None or agreement is None:
            return
        if isinstance(error, Exception):
            agreement.raise_cause()
        agreement.fail(error)


def _watch(reference: ref[Agreement], is_closed: Event) -> None:
    """Looks again and again, until the event is set or nobody else refers to the agreement any more."""
    while not is_closed.wait(WATCH_S):
        agreement = reference()
        if agreement is None:
            return
        agreement.look()
        del agreement  # else it would live on during the wait


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
