"""Meetings of the ranks of one group to share symmetric memory, whatever others of their groups share."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from longca.cp.comm.process_group import WorldGroup

COUNTS_BY_GROUP = (2, 15)
"""From this torch on, the exchanges of each group have numbers of their own."""
EXCHANGE = re.compile(r"((?:.*/)?CUDASymmetricMemory)/(\d+)(/.*)?")
"""a key of torch: the kind of memory, behind what a store puts before it, the number, and a rank or a word"""


class Meeting:
    """A process group without messages, for `torch.distributed._symmetric_memory.rendezvous` alone.

    All ranks make it together. torch numbers the exchanges of symmetric memory as the process makes them, in
    all of its groups, and the number is part of each key (https://github.com/pytorch/pytorch/issues/196082).
    Two ranks that have shared memory with others before, one more often than the other, would wait for each
    other under two keys, for ever. In this group's store its own exchanges count from 0.
    """

    name: Any
    """of the group, as torch knows it; that of the ranks' own group where torch counts by group"""

    def __init__(self, group: WorldGroup) -> None:
        import torch
        import torch._C._distributed_c10d as c10d
        from torch.distributed import distributed_c10d

        self.name = group.torch_group.group_name
        version: Any = torch.__version__
        if version >= COUNTS_BY_GROUP:
            return
        self.name = f"longca/memory/{group.gather(uuid4().hex)[0]}"
        store = c10d.PrefixStore(self.name, distributed_c10d._get_default_store())
        # both are kept: torch refers to the group weakly, and calls the store's methods
        self._store = _store_class()(store, timedelta(seconds=group.timeout_s))
        self._group = c10d.ProcessGroup(self._store, group.rank, group.world)
        c10d._register_process_group(self.name, self._group)
        weakref.finalize(self, c10d._unregister_process_group, self.name)


@cache
def _store_class() -> Any:
    from torch._C._distributed_c10d import Store

    class ExchangeStore(Store):
        """A store in which exchanges are numbered from 0, in the order in which this rank makes them."""

        def __init__(self, store: Any, timeout: timedelta) -> None:
            """
            Args:
                store: what the ranks have in common.
                timeout: how long a rank waits for a key. The timeout of `store` belongs to whoever made it.
            """
            super().__init__()
            self._store = store
            self._timeout = timeout
            self._numbers: dict[tuple[str, str], int] = {}

        def set(self, key: str, value: Any) -> None:
            self._store.set(self._common(key), value)

        def get(self, key: str) -> bytes:
            """Raises RuntimeError if nobody has set it in time."""
            self.wait([key])
            return self._store.get(self._common(key))

        def add(self, key: str, value: int) -> int:
            return self._store.add(self._common(key), value)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            """Raises RuntimeError if one is not set in time.

            Args:
                timeout: as torch passes it; that of this store counts.
            """
            self._store.wait([self._common(key) for key in keys], self._timeout)

        def _common(self, key: str) -> str:
            """The key that all ranks have for it."""
            exchange = EXCHANGE.fullmatch(key)
            if exchange is None:
                return key
            kind, number, rest = exchange.groups(default="")
            return f"{kind}/{self._numbers.setdefault((kind, number), len(self._numbers))}{rest}"

    return ExchangeStore
