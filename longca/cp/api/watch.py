"""A thread that looks at the headers of other ranks while this rank's host does something else.

A host that waits for its GPU cannot look itself, and the GPU may wait for a message that no rank sends.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

WATCH_S = 0.25
"""time between two looks: each takes the interpreter for some microseconds"""
LATE_S = 1.0
"""a late rank is given up so long before the timeout: at the timeout NCCL ends the process"""


class Watched(Protocol):
    def look(self) -> None: ...


def watch(watched: Watched, is_closed: threading.Event) -> None:
    """Calls `look` again and again, until the event is set or nobody else refers to the object any more."""
    arguments = weakref.ref(watched), is_closed
    threading.Thread(target=_watch, args=arguments, name="longca-headers", daemon=True).start()


def _watch(reference: weakref.ref[Watched], is_closed: threading.Event) -> None:
    while not is_closed.wait(WATCH_S):
        watched = reference()
        if watched is None:
            return
        watched.look()
        del watched  # else it would live on during the wait
