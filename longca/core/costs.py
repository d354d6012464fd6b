"""The costs of a cell beside its timed call: the names under which kernels, strategies and the harness count them in `costs`.

Of several ranks a record keeps the largest. A name that is not here is kept in the record all the same, without a column.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Cost:
    """One kind of cost, counted by whoever has it."""

    name: str
    unit: Literal["ms", "bytes"]
    meaning: str


COSTS = (
    Cost("mask_ms", "ms", "Building the mask"),
    Cost("plan_ms", "ms", "Preparing the call: layout, indices, plan"),
    Cost("schedule_ms", "ms", "Under cp, part of plan_ms: who computes what and what moves, before a kernel is prepared for any of it"),
    Cost("compile_ms", "ms", "Compiling"),
    Cost("permute_ms", "ms", "Bringing q, k and v from contiguous shards to the tokens that ranks hold; 0 where these are the same"),
    Cost("oracle_ms", "ms", "Checking the result"),
    Cost("metadata_bytes", "bytes", "The kernel's own form of the mask"),
    Cost("workspace_bytes", "bytes", "Memory that the kernel's library asks for beside its tensors"),
    Cost("moved_bytes", "bytes", "Moved between ranks, for each rank and call; empty where a library sends by itself"),
    Cost("formula_bytes", "bytes", "What the strategy's formula says is moved"),
    Cost("formula_replicated_bytes", "bytes", "The same where more ranks than KV heads need copies of these"),
)
