"""Changes of inputs between timed calls, which make cached results of other calls wrong.

At a few sites a query, a visible key, that key's value and the query's output gradient are replaced before
each call. The key is parallel to its query and long enough to get about half of the query's attention weight.
So the query's output depends on the new query, key and value, and the gradients of query and key on the new
output gradient, all beyond the error budget. Sites and values follow from a seed that is drawn for each run.
Backward is timed for one forward result, so there the output gradient alone changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from longca.lab.bench.check.inputs import DTYPES, SMALL
from longca.lab.bench.check.reference import DenseMaskRows
from longca.lab.studies import Cell
from longca.lab.studies.cell import InputValues
from longca.masks import Mask

NUM_SITES = 2
TRIES = 20  # rows tried for each site: under most masks few rows see no key
BLOCK = 16  # calls whose values are sampled at once
NAMES = ("q", "k", "v", "dout")
TIMED = {"fwd": ("q", "k", "v"), "bwd": ("dout",)}
"""direction → inputs that change between timed calls"""
WHOLE = {"fwd": "v", "bwd": "dout"}
"""direction → the input in which the result is linear: it changes as a whole after the samples"""


@dataclass(frozen=True)
class ChangedPair:
    """A query and a key that it sees."""

    row: int
    q_head: int
    key: int
    kv_head: int
    num_keys: int
    """that the query sees"""


@dataclass(frozen=True)
class ShardPlace:
    """The changing elements of a rank's shard."""

    sites: torch.Tensor
    """numbers of the sites that are in the shard"""
    tokens: torch.Tensor
    heads: torch.Tensor


class Changes:
    """The values at the sites, call by call. Call 0 is the checked one.

    Args:
        seed: seed of the sites and the values.
    """

    def __init__(self, cell: Cell, mask: Mask, seed: int) -> None:
        self._kind: InputValues
        self._dtype = DTYPES[cell.dtype]
        self._head_dim = cell.head_dim
        self._kind = cell.input_values
        self._seed = seed
        self.sites = _sites(cell, mask, np.random.default_rng(seed))
        self._block: tuple[int, torch.device] | None = None  # of the values at hand
        self._values: dict[str, torch.Tensor] = {}
        self._places: dict[tuple[str, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, name: str, x_THD: torch.Tensor, call: int) -> None:
        """Set an input, in place, to its content in a call. The host does not wait for a GPU."""
        self.apply_to_shard(name, x_THD, call, None)

    def apply_to_shard(self, name: str, x_LHD: torch.Tensor, call: int, target: ShardPlace | None) -> None:
        """The same for the tokens of one rank: `target` is what `shard_place` gives for them."""
        if not self.sites:
            return
        values = self._values_of(call, x_LHD.device)[name]
        if target is None:
            tokens, heads = self._place(name, x_LHD.device)
            x_LHD[tokens, heads] = values
        elif len(target.sites):
            x_LHD[target.tokens, target.heads] = values[target.sites]

    def shard_place(self, name: str, positions_L: np.ndarray, device: torch.device) -> ShardPlace:
        """The place in a rank's shard at which an input changes.

        Args:
            positions_L: number of each of its tokens in the whole sequence.
        """
        tokens, heads = (x.numpy() for x in self._place(name, torch.device("cpu")))
        order = np.argsort(positions_L)
        at = (
            np.searchsorted(positions_L, tokens, sorter=order).clip(max=len(order) - 1)
            if len(order)
            else np.zeros_like(tokens)
        )
        local = order[at] if len(order) else at
        sites = np.nonzero(positions_L[local] == tokens)[0] if len(order) else np.zeros(0, np.int64)
        return ShardPlace(*(torch.from_numpy(x).to(device) for x in (sites, local[sites], heads[sites])))

    def _place(self, name: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, heads) at which an input changes."""
        if (name, device) not in self._places:
            is_query = name in ("q", "dout")
            places = [
                (site.row, site.q_head) if is_query else (site.key, site.kv_head) for site in self.sites
            ]
            tokens, heads = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).T.contiguous().to(device)
            self._places[name, device] = tokens, heads
        return self._places[name, device]

    def _values_of(self, call: int, device: torch.device) -> dict[str, torch.Tensor]:
        """The values of each input at the sites in a call: (sites, D)."""
        block, number = divmod(call, BLOCK)
        if self._block != (block, device):
            drawn = self._draw(block)
            if device.type == "cuda":
                drawn = {name: x.pin_memory().to(device, non_blocking=True) for name, x in drawn.items()}
            self._block = (block, device)
            self._values = drawn
        return {name: x[number] for name, x in self._values.items()}

    def _draw(self, block: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + block) % (1 << 62))

        def draw() -> torch.Tensor:
            return torch.randn(BLOCK, len(self.sites), self._head_dim, generator=generator)

        q, v, dout = (_as_inputs(draw(), self._kind) for _ in range(3))
        num_keys = torch.tensor([float(site.num_keys) for site in self.sites])[:, None]
        # such queries weigh all keys alike, so what is weighed must be larger to be seen
        if self._kind == "small":
            v, dout = (x * num_keys.sqrt() for x in (v, dout))
        q, v, dout = (x.to(self._dtype) for x in (q, v, dout))
        if self._kind == "small":
            return {"q": q, "k": q.flip(0), "v": v, "dout": dout}
        scores = num_keys.log() + 0.5  # about half of the row's weight
        k = q.float() * scores / self._head_dim**0.5
        return {"q": q, "k": k.to(self._dtype), "v": v, "dout": dout}


def reverse(x_THD: torch.Tensor) -> None:
    """Reverse the order of an input's tokens, in place. Unlike that of a factor, its effect on a result does
    not follow from an earlier result."""
    x_THD.copy_(x_THD.flip(0))


def _as_inputs(normal: torch.Tensor, kind: InputValues) -> torch.Tensor:
    if kind in ("signs", "constant"):
        return torch.where(normal < 0, -1.0, 1.0)
    return normal * SMALL if kind == "small" else normal


def _sites(cell: Cell, mask: Mask, rng: np.random.Generator) -> list[ChangedPair]:
    """Sites with distinct rows and keys, of as many KV heads as possible; fewer or none under masks that hide
    nearly all pairs."""
    heads_per_group = cell.num_kv_heads // mask.num_groups
    ratio = cell.num_q_heads // cell.num_kv_heads
    sites: list[ChangedPair] = []
    heads = rng.permutation(cell.num_kv_heads)
    for number in range(NUM_SITES):
        kv_head = int(heads[number % len(heads)])
        dense = DenseMaskRows(mask, kv_head // heads_per_group, torch.device("cpu"))
        candidates = []
        for row in rng.integers(mask.seqlen_q, size=TRIES).tolist():
            keys = dense.rows([row])[0].nonzero().squeeze(1).numpy()
            keys = np.setdiff1d(keys, [site.key for site in sites])
            if len(keys) and row not in [site.row for site in sites]:
                candidates.append((row, keys))
            if len(keys) > 1 and candidates:  # with a single key a query's gradient is always 0
                break
        if candidates:
            row, keys = candidates[-1]
            q_head = kv_head * ratio + int(rng.integers(ratio))
            sites.append(ChangedPair(row, q_head, int(rng.choice(keys)), kv_head, len(keys)))
    return sites
