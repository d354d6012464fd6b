"""The mask: disjoint bands, one set for all heads or one for each group of KV heads.

Masks are numpy arrays, and kernels are chosen and planned from them, which `torch.compile` cannot trace: it
breaks its graph at functions of masks. `torch.compiler.disable` marks such functions, but loads
`torch._dynamo`, which takes a second, and this package must not load torch. So it is applied only once dynamo
is loaded; nothing is compiled before that.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np

from longca.core import MOST_TOKENS, Scalar
from longca.masks import band
from longca.masks.conversions import Conversions
from longca.masks.grid import BlockGrid, GridBands
from longca.masks.origin import MaskOrigin
from longca.masks.traits import Traits, derive

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

DYNAMO = "torch._dynamo"
REASON = (
    "longca's masks and its choice of kernels cannot be traced: call them outside of fullgraph=True, "
    "or give a plan to longca.ops.band.api.band_attention, which needs no graph break"
)


def breaks_graph(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which runs outside of graphs, with all functions that it calls. The overhead is small,
    and larger once dynamo is loaded.

    Functions that autograd calls need this, too: in a compiled step that calls `loss.backward()`, dynamo
    would compile them.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        if DYNAMO in sys.modules:
            return sys.modules[__name__].run_untraced(function, *args, **named)
        return function(*args, **named)

    return call


def methods_break_graph(owner: C) -> C:
    """A class whose public methods, constructors and cached properties run outside of graphs."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            setattr(owner, name, classmethod(breaks_graph(member.__func__)))
        elif isinstance(member, cached_property):
            member.func = breaks_graph(member.func)
        elif callable(member):
            setattr(owner, name, breaks_graph(member))
    return owner


def __getattr__(name: str) -> Any:
    """Makes `run_untraced` at its first use, when dynamo is loaded."""
    if name != "run_untraced":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

    def run_untraced(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    globals()[name] = sys.modules["torch"].compiler.disable(run_untraced, reason=REASON)
    return globals()[name]


methods_break_graph(Conversions)


@methods_break_graph
class Mask(Conversions):
    """The keys that each query sees. Immutable; everything else about a mask is derived from its bands.

    With G = `num_groups` > 1, group g serves the g-th G-th of the KV heads and their query heads.

    Create masks by `longca.build_mask`, or by `from_…` methods from documents, windows, bands, or other
    libraries' formats; convert them to other libraries' formats by `to_…` methods. Two masks are equal if
    their bands are: `Mask.from_dense(mask.dense())` has bands that depend on the visible pairs alone.
    """

    origin: MaskOrigin | None = None
    """the arguments of `build_mask`, if the mask was drawn; None for all others, and for parts of a mask"""

    def __init__(
        self,
        seqlen_q: int,
        seqlen_k: int,
        groups: tuple[np.ndarray, ...] = (),
        *,
        grid: BlockGrid | None = None,
        params: Mapping[str, object] | None = None,
        name: str = "",
    ) -> None:
        """
        Args:
            groups: for each head group, disjoint bands, (n, 6) int64 (`longca.masks.band`).
            grid: instead of `groups`, a block mask.
            params: given and random values: documents, prefix, window …
        """
        if (grid is None) == (not groups):
            raise ValueError("a mask is made of bands or of a block grid: give one of the two")
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_k
        self.grid = grid
        self.name = name
        self._params = dict(params or {})
        self._groups = tuple(band.normal(group) for group in groups)
        for bands in self._groups:
            bands.setflags(write=False)  # area, traits and digest are kept once derived

    @classmethod
    def _of(cls, content: Any, seqlen_q: int, seqlen_k: int, **params: object) -> Self:
        """The mask of a block grid, of one array of bands, or of one for each head group."""
        if not 1 <= min(seqlen_q, seqlen_k) <= max(seqlen_q, seqlen_k) <= MOST_TOKENS:
            raise ValueError(
                f"a mask has 1 to {MOST_TOKENS} queries and keys, and this would have {seqlen_q} and "
                f"{seqlen_k}"
            )
        if isinstance(content, BlockGrid):
            return cls(seqlen_q, seqlen_k, grid=content, params=params)
        groups = (content,) if isinstance(content, np.ndarray) else tuple(content)
        if not groups:
            raise ValueError("a mask has at least 1 head group, and this would have none")
        return cls(seqlen_q, seqlen_k, groups, params=params)

    @property
    def params(self) -> Mapping[str, object]:
        """Given and random values, by name; read-only."""
        return MappingProxyType(self._params)

    @property
    def num_groups(self) -> int:
        return self.grid.num_groups if self.grid is not None else len(self._groups)

    @property
    def groups(self) -> Sequence[np.ndarray]:
        """Bands of each head group, in normal form. Those of a block grid are computed at each access, since
        there can be many."""
        return self._groups if self.grid is None else GridBands(self.grid)

    @property
    def bands(self) -> np.ndarray:
        """The (n, 6) int64 bands (q0, q1, k0, k1, lo, hi) that all heads share; ±`band.INF` stands for
        ±infinity.

        Raises ValueError if head groups differ: use `groups`.
        """
        if self.num_groups > 1:
            raise ValueError(f"this mask differs among {self.num_groups} head groups: use `groups`")
        return self.groups[0].view(band.BandTable)

    @property
    def documents(self) -> np.ndarray | None:
        """Tokens of each document that the mask was made for, int64; None for a mask without documents."""
        documents = self._params.get("documents")
        padding = self._params.get("padding_tokens", 0)
        if (
            not isinstance(documents, np.ndarray)
            or not documents.sum() + padding == self.seqlen_q == self.seqlen_k
        ):
            return None  # a part of a mask has the parameters of the whole
        return documents

    @cached_property
    def area(self) -> int:
        """Exact number of visible pairs, summed over head groups."""
        if self.grid is not None:
            return int(self.grid.areas().sum())
        return sum(int(band.areas(group).sum()) for group in self._groups)

    def row_areas(self, edges: np.ndarray) -> np.ndarray:
        """Visible pairs of the rows edges[n]..edges[n + 1], over all head groups, (n,) int64."""
        if self.grid is not None:
            grid = self.grid
            seen = np.stack(
                [
                    rows.astype(np.float64) @ width
                    for rows, width in zip(grid.visible, np.diff(grid.k_bounds, axis=1), strict=True)
                ]
            )
            below = np.pad(np.cumsum(seen * np.diff(grid.q_bounds, axis=1), axis=1), ((0, 0), (1, 0)))
            return np.diff(
                sum(
                    np.interp(edges, bounds, total)
                    for bounds, total in zip(grid.q_bounds, below, strict=True)
                )
            ).astype(np.int64)
        bands = np.concatenate(self.groups)
        owner, part = band.spread(
            np.searchsorted(edges, bands[:, band.Q0], side="right") - 1,
            np.searchsorted(edges, bands[:, band.Q1]),
        )
        pieces = bands[owner]
        pieces[:, band.Q0], pieces[:, band.Q1] = (
            np.maximum(pieces[:, band.Q0], edges[part]),
            np.minimum(pieces[:, band.Q1], edges[part + 1]),
        )
        return np.bincount(part, band.areas(pieces), len(edges) - 1).astype(np.int64)

    @property
    def density(self) -> float:
        """Share of all pairs that is visible; 0 if there are none."""
        return self.area / max(self.num_groups * self.seqlen_q * self.seqlen_k, 1)

    def dense(self) -> np.ndarray:
        """Bool (Sq, Sk), or (G, Sq, Sk) where head groups differ. O(S²): small lengths only."""
        rasters = [band.dense(group, self.seqlen_q, self.seqlen_k) for group in self.groups]
        return rasters[0] if self.num_groups == 1 else np.stack(rasters)

    def cut(self, rows: tuple[int, int], cols: tuple[int, int]) -> Mask:
        """The part inside rows × cols, in the same absolute coordinates."""
        if self.grid is None:
            return self._map(lambda bands: band.cut(bands, rows, cols))
        return self.crop(rows, cols)._of_grid(
            lambda grid: grid.move(rows[0], cols[0], self.seqlen_q, self.seqlen_k),
            self.seqlen_q,
            self.seqlen_k,
        )

    def shift(self, dq: int, dk: int) -> Mask:
        """The mask with queries moved by dq and keys by dk; pairs outside of the Sq × Sk rectangle are
        dropped."""
        if self.grid is None:
            inside = (0, self.seqlen_q), (0, self.seqlen_k)
            return self._map(lambda bands: band.cut(band.shift(bands, dq, dk), *inside))
        return self._of_grid(lambda grid: grid.move(dq, dk, self.seqlen_q, self.seqlen_k))

    def crop(self, rows: tuple[int, int], cols: tuple[int, int]) -> Mask:
        """The part inside rows × cols as a separate mask, in local coordinates."""
        seqlens = rows[1] - rows[0], cols[1] - cols[0]
        if self.grid is not None:
            return self._of_grid(lambda grid: grid.move(-rows[0], -cols[0], *seqlens), *seqlens)
        return self._map(lambda bands: band.shift(band.cut(bands, rows, cols), -rows[0], -cols[0]), *seqlens)

    def stripe(self, q_rank: int, k_rank: int, world: int) -> Mask:
        """The mask of queries q_rank, q_rank + world, … and keys k_rank, k_rank + world, …, in local
        coordinates."""
        seqlens = len(range(q_rank, self.seqlen_q, world)), len(range(k_rank, self.seqlen_k, world))
        if self.grid is not None:
            return self._of_grid(lambda grid: grid.stripe(q_rank, k_rank, world), *seqlens)
        return self._map(lambda bands: band.stripe(bands, q_rank, k_rank, world), *seqlens)

    def select_groups(self, start: int, end: int) -> Mask:
        """The mask of head groups start..end; a mask that all heads share is returned unchanged."""
        if self.num_groups == 1:
            return self
        if self.grid is not None:
            return self._of_grid(lambda grid: grid.select(start, end))
        return Mask(self.seqlen_q, self.seqlen_k, self._groups[start:end], params=self.params, name=self.name)

    def named(self, name: str, params: Mapping[str, object], origin: MaskOrigin | None = None) -> Mask:
        """The same mask with a name, further parameters, and perhaps an origin; its own parameters take
        precedence."""
        mask = copy(self)
        mask.name = name
        mask._params = {**params, **self._params}
        mask.origin = origin
        return mask

    @cached_property
    def traits(self) -> Traits:
        """Scalars that kernels query, derived from the bands."""
        return derive(self, self.area)

    @cached_property
    def kept(self) -> dict[Hashable, Any]:
        """A cache of objects that other modules derive from this mask, by their own keys. They live as long
        as the mask and are not pickled."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "kept"}

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: equal bands or equal grids, equal digest, on every machine."""
        content = hashlib.sha256(f"{self.seqlen_q},{self.seqlen_k},{self.num_groups}".encode())
        if self.grid is not None:
            content.update(f"blocks {self.grid.visible.shape}".encode())
            for bounds in (self.grid.q_bounds, self.grid.k_bounds):
                content.update(np.ascontiguousarray(bounds, dtype="<i8").tobytes())
            content.update(np.packbits(self.grid.visible).tobytes())
        for group in self._groups:
            content.update(len(group).to_bytes(8, "little"))
            content.update(np.ascontiguousarray(group, dtype="<i8").tobytes())
        return content.hexdigest()[:16]

    @property
    def drawn(self) -> dict[str, Scalar]:
        """The scalars of `params`, and the number and longest of its documents, as a record keeps them."""
        scalars = {
            key: value for key, value in self.params.items() if isinstance(value, (bool, int, float, str))
        }
        documents = self.params.get("documents")
        if isinstance(documents, np.ndarray):
            scalars |= {"num_documents": len(documents), "longest_document": int(documents.max())}
        return scalars

    @property
    def drawn_lengths(self) -> dict[str, list[int]]:
        """The lists of lengths among `params`: documents, the prefix of each …"""
        return {
            key: values.tolist()
            for key, values in self.params.items()
            if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
        }

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def plot(self, ax: Any = None, *, group: int = 0) -> Any:
        """Draw the mask with matplotlib and return the axes: rule and density above it, tokens along it.

        Args:
            ax: the axes to draw on; new ones if None.
            group: the head group to show.
        """
        from longca.masks.picture import plot

        return plot(self, ax, group=group)

    def _repr_html_(self) -> str:
        from longca.masks.picture import html

        return html(self)

    def _map(
        self,
        change: Callable[[np.ndarray], np.ndarray],
        seqlen_q: int | None = None,
        seqlen_k: int | None = None,
    ) -> Mask:
        return Mask(
            self.seqlen_q if seqlen_q is None else seqlen_q,
            self.seqlen_k if seqlen_k is None else seqlen_k,
            tuple(change(group) for group in self._groups),
            params=self.params,
            name=self.name,
        )

    def _of_grid(
        self,
        change: Callable[[BlockGrid], BlockGrid],
        seqlen_q: int | None = None,
        seqlen_k: int | None = None,
    ) -> Mask:
        assert self.grid is not None
        return Mask(
            self.seqlen_q if seqlen_q is None else seqlen_q,
            self.seqlen_k if seqlen_k is None else seqlen_k,
            grid=change(self.grid),
            params=self.params,
            name=self.name,
        )

    def __repr__(self) -> str:
        groups = f", {self.num_groups} head groups" if self.num_groups > 1 else ""
        return (
            f"<Mask {self.name or 'of bands'} {self.seqlen_q}×{self.seqlen_k}, density "
            f"{self.density:.4f}{groups}>"
        )


class LazyMask:
    """A mask whose traits are known, and which is built when something asks for more than these."""

    def __init__(self, traits: Traits, build: Callable[[], Mask]) -> None:
        self.traits = traits
        self._build = build

    @cached_property
    def mask(self) -> Mask:
        """The whole mask. Raises what `build` raises."""
        return self._build()


def whole_mask(mask: Mask | LazyMask) -> Mask:
    """The mask itself, built now where it has not been built before."""
    return mask.mask if isinstance(mask, LazyMask) else mask
