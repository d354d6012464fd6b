"""Conversions between `Mask` and the formats of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from longca.core import UserError, parse_length, truth
from longca.masks import band, forms
from longca.masks.grid import BlockGrid

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

ALL = (-1, -1)  # a window without bounds


class Conversions:
    """The part of `Mask` that reads and writes the formats of other libraries."""

    if TYPE_CHECKING:
        seqlen_q: int
        seqlen_k: int
        grid: BlockGrid | None

        @property
        def num_groups(self) -> int: ...
        @property
        def groups(self) -> Sequence[np.ndarray]: ...
        @classmethod
        def _of(cls, content: Any, seqlen_q: int, seqlen_k: int, **params: object) -> Self: ...

    @classmethod
    def from_documents(cls, lengths: Any, *, causal: bool = True, window: forms.Window = ALL) -> Self:
        """Packed documents that do not see each other.

        Args:
            lengths: tokens of each document.
            causal: no token sees a later one.
            window: (left, right): the largest number of visible tokens before and after a token; -1 for no
                bound.

        Raises:
            UserError: the arguments define no mask; this holds for all constructors.
        """
        with forms.refused("These documents"):
            documents = forms.whole_numbers(lengths, "lengths of documents")
            if documents.ndim != 1 or len(documents) == 0:
                raise ValueError("lengths of documents must be a list of whole numbers of at least 1")
            forms.check_sizes(documents, "lengths of documents", 1)
            return cls._of_documents(forms.of_cu_seqlens(np.append(0, np.cumsum(documents))), causal, window)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens: Any,
        *,
        causal: bool = False,
        window: forms.Window = ALL,
        cu_seqlens_k: Any = None,
        seqlen: int | str | None = None,
        seqlen_k: int | str | None = None,
        padding: str = "nothing",
    ) -> Any:
        """Packed sequences in the format of FlashAttention's varlen calls.

        Args:
            cu_seqlens: (sequences + 1,), from 0 to the number of tokens, for queries and keys alike. A
                sequence may be empty.
            causal: as `causal` of that call.
            window: as its `window_size`.
            cu_seqlens_k: the same for keys, if they differ. A causal mask and a window are then aligned at
                the last query and the last key of each sequence, as in that call: under a causal mask, query
                i of lq sees key j of lk where j - i <= lk - lq.
            seqlen: queries, with padding after the last sequence, and keys if `cu_seqlens_k` is None.
            seqlen_k: keys, with padding.
            padding: "nothing" or "self": a query of padding sees no key, or the key of its own token.

        Returns:
            The mask. For several rows, (rows, sequences + 1) or a list of arrays, a list of masks, one a row,
            as `longca.attention` takes them for a batch.
        """
        rows = forms.rows_of(cu_seqlens)
        rows_k = forms.rows_of(cu_seqlens_k)
        if rows is not None and rows_k is None:
            rows_k = [cu_seqlens_k] * len(rows)
        if rows is not None and rows_k is not None and len(rows) != len(rows_k):
            raise UserError(
                f"{len(rows)} rows of cu_seqlens and {len(rows_k)} of cu_seqlens_k are no masks",
                todo="Give as many of both",
            )

        def mask(both: tuple[Any, Any]) -> Self:
            documents = forms.of_cu_seqlens(*both, seqlen, seqlen_k)
            return cls._of_documents(documents, causal, window, padding)

        pairs = None if rows is None or rows_k is None else list(zip(rows, rows_k, strict=True))
        return _each_row("These cu_seqlens", mask, pairs, (cu_seqlens, cu_seqlens_k))

    @classmethod
    def from_document_ids(
        cls,
        ids: Any,
        *,
        causal: bool = True,
        window: forms.Window = ALL,
        padding_id: int | None = -1,
        padding: str = "nothing",
    ) -> Any:
        """Packed documents by an id for each token.

        Args:
            ids: (tokens,), whole numbers. Tokens of one id form a document and must be contiguous.
            causal, window: as in `from_documents`.
            padding_id: the id of padding tokens, at any position; None without padding.
            padding: "nothing" or "self": a query of padding sees no key, or the key of its own token.

        Returns:
            The mask; for (rows, tokens) a list of masks, one a row, as `longca.attention` takes them for a
            batch.
        """
        return _each_row(
            "These document ids",
            lambda row: cls._of_documents(forms.of_document_ids(row, padding_id), causal, window, padding),
            forms.rows_of(ids),
            ids,
        )

    @classmethod
    def from_position_ids(
        cls,
        positions: Any,
        *,
        causal: bool = True,
        window: forms.Window = ALL,
        seqlen: int | str | None = None,
        padding: str = "nothing",
    ) -> Any:
        """Packed documents by the position of each token in its document.

        A document begins at the first token, at each position 0, and wherever the position is not the
        previous one plus 1.

        Args:
            positions: (tokens,).
            causal, window: as in `from_documents`.
            seqlen: tokens, with padding after the last position.
            padding: "nothing" or "self": a query of padding sees no key, or the key of its own token.

        Returns:
            The mask; for (rows, tokens) a list of masks, one a row, as `longca.attention` takes them for a
            batch.
        """
        return _each_row(
            "These position ids",
            lambda row: cls._of_documents(forms.of_position_ids(row, seqlen), causal, window, padding),
            forms.rows_of(positions),
            positions,
        )

    @classmethod
    def from_windows(cls, seqlen: int | str, *windows: forms.Window) -> Self:
        """A sliding window that all heads share, or one for each head group.

        Args:
            seqlen: tokens, as a number or "8K".
            windows: (left, right) of each: j - i is in [-left, right]; -1 for no bound, so that (-1, 0) is
                causal.
        """
        with forms.refused("These windows"):
            length = parse_length(seqlen)
            return cls._of(forms.of_windows(length, windows), length, length)

    @classmethod
    def from_tree(cls, parents: Any, lengths: Any) -> Self:
        """Sequences that share prefixes: rollouts, several answers to a prompt, trees of reasoning.

        A token sees the tokens of the nodes above its own, and the earlier tokens of its own.
        `longca.masks.tree_position_ids` has the position of each token. Several trees do not see each other.

        Args:
            parents: for each node, the number of an earlier node, or -1 for a root. Nodes that come depth
                first have one band each.
            lengths: tokens of each node, in the order of the nodes.
        """
        with forms.refused("This tree"):
            tree = forms.of_tree(parents, lengths)
            return cls._of(tree.bands(), tree.seqlen, tree.seqlen, **tree.params)

    @classmethod
    def from_bands(cls, seqlen: int | str, bands: Any, *, seqlen_k: int | str | None = None) -> Self:
        """Bands (q0, q1, k0, k1, lo, hi): query i of [q0, q1) sees key j of [k0, k1) where lo <= j - i <= hi.

        Args:
            seqlen: queries, and keys if `seqlen_k` is None.
            bands: rows of six numbers, ±math.inf allowed; or a list of such arrays, one for each head group.
                They must be disjoint.
        """
        with forms.refused("These bands"):
            length_q = parse_length(seqlen)
            length_k = length_q if seqlen_k is None else parse_length(seqlen_k)
            several = isinstance(bands, (list, tuple)) and len(bands) > 0 and np.ndim(bands[0]) == 2
            groups = [band.as_bands(group) for group in (bands if several else [bands])]
            for group in groups:
                inside = band.cut(group, (0, length_q), (0, length_k))
                if band.areas(inside).sum() != band.areas(group).sum():
                    raise ValueError(f"some band leaves the {length_q} × {length_k} pairs")
                overlap = band.overlap_text(group)
                if overlap is not None:
                    raise ValueError(f"bands must be disjoint, and {overlap}")
            return cls._of(groups, length_q, length_k)

    @classmethod
    def from_flashmask(cls, startend_row_indices: Any, *, causal: bool, seqlen_q: int | None = None) -> Self:
        """The rows from which each key is hidden, in the format of `flashmask_attention`.

        Args:
            startend_row_indices: (1, heads, keys, n), also without the first axes; n is 1 or 2 if causal,
                else 2 or 4.
            seqlen_q: number of queries; as many as keys if None.
        """
        with forms.refused("These startend_row_indices"):
            return cls._of(
                *forms.of_flashmask(startend_row_indices, truth("Argument 'causal'", causal), seqlen_q)
            )

    @classmethod
    def from_block_mask(
        cls, block_mask: BlockMask, *, batch: int | None = None, head: int | None = None
    ) -> Self:
        """An exact conversion of FlexAttention's BlockMask.

        Full blocks are entirely visible. Partial blocks are evaluated pair by pair with torch's semantics,
        only for their queries and keys, in bounded memory.

        Args:
            batch: the entry of its batch; needed where it has several.
            head: one of its query heads. Without it all heads are read; different heads become head groups of
                equal size.
        """
        with forms.refused("This BlockMask"):
            return cls._of(*forms.of_block_mask(block_mask, batch, head))

    @classmethod
    def from_block_map(cls, sizes_q: Any, sizes_k: Any, visible: Any) -> Self:
        """Blocks of any sizes, each visible or hidden, in the format of FlashInfer and VSA.

        Args:
            sizes_q: tokens of each q-block, (M,), or (head groups, M) if groups differ, or one number for all
                blocks.
            sizes_k: of each k-block, (N,) or (head groups, N).
            visible: bool (M, N) or (head groups, M, N).
        """
        with forms.refused("This block map"):
            return cls._of(*forms.of_block_map(sizes_q, sizes_k, visible))

    @classmethod
    def from_slices(
        cls, q_ranges: Any, k_ranges: Any, types: Any, *, seqlen: int | str, seqlen_k: int | str | None = None
    ) -> Self:
        """Disjoint attention slices (MagiAttention).

        Args:
            q_ranges, k_ranges: (n, 2).
            types: (n,), see `forms.SliceType`.
        """
        with forms.refused("These slices"):
            bands = forms.of_slices(q_ranges, k_ranges, types)
        return cls.from_bands(seqlen, bands, seqlen_k=seqlen_k)

    @classmethod
    def from_dense(cls, raster: Any) -> Self:
        """A bool (queries, keys) or (head groups, queries, keys); True is visible. O(S²) time."""
        with forms.refused("This raster"):
            return cls._of(*forms.of_dense(raster))

    @classmethod
    def _of_documents(
        cls, documents: forms.Documents, causal: bool, window: forms.Window, padding: str = "nothing"
    ) -> Self:
        """The mask of packed documents. It keeps their lengths if queries and keys have equal lengths."""
        params: dict[str, object] = {}
        if np.array_equal(documents.q_bounds, documents.k_bounds) and len(documents.lengths):
            params = {"documents": documents.lengths}
            if documents.num_padding:
                params["padding_tokens"] = documents.num_padding
        causal = truth("Argument 'causal'", causal)
        return cls._of(
            documents.bands(causal, window, padding), documents.seqlen_q, documents.seqlen_k, **params
        )

    def to_flex(
        self,
        device: torch.device | str = "cpu",
        *,
        num_q_heads: int = 1,
        block_size: int | tuple[int, int] = 128,
    ) -> BlockMask:
        """FlexAttention's BlockMask, its `mask_mod` inside.

        Args:
            num_q_heads: query heads of the call; needed if head groups differ.
            block_size: tokens of a block, or (of queries, of keys).

        Raises:
            UserError: the format cannot express this mask; this holds for all conversions.
        """
        return _lowered("A BlockMask", "flex.block_mask", self, device, num_q_heads, block_size)

    def to_cu_seqlens(self) -> forms.Varlen:
        """Packed sequences under one window, in the format of FlashAttention's varlen calls.

        Padding tokens that see nothing become sequences of queries without keys and of keys without queries;
        then `cu_seqlens_k` differs. `Mask.from_cu_seqlens(form.cu_seqlens, cu_seqlens_k=form.cu_seqlens_k,
        window=form.window)` is the inverse: it gives the same pairs, and an equal mask where each sequence
        was one band, as after all constructors from documents, with up to 1,048,576 tokens of padding="self".
        """
        return _lowered("cu_seqlens", "varlen.packed_sequences", self)

    def to_block_map(self) -> forms.BlockMap:
        """Blocks with their sizes, in the format of FlashInfer and VSA: `sizes_q`, `sizes_k` and
        `visible`."""
        return _lowered("A block map", "blocks.block_map", self)

    def to_flashmask(self) -> forms.FlashMaskColumns:
        """The columns of `flashmask_attention`: its `startend_row_indices` and `causal`."""
        return _lowered("FlashMask", "flashmask.flashmask_columns", self)

    def to_dense(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A bool tensor (queries, keys), or (head groups, queries, keys), made on the device.

        `dense` gives a numpy array.
        """
        return _lowered("A tensor", "dense.dense_mask", self, device)

    def to_slices(self, group: int | None = None) -> forms.AttnSlices:
        """Attention slices (MagiAttention): q_ranges, k_ranges and types.

        Args:
            group: the head group; needed where head groups differ.
        """
        return _lowered("A list of slices", "attnslice.attn_slices", self, group)


def _each_row(what: str, mask: Callable[..., Any], rows: list[Any] | None, row: Any) -> Any:
    """The mask of a single row, or the masks of several."""
    if rows is None:
        with forms.refused(what):
            return mask(row)
    if not rows:
        raise UserError(f"{what} are no masks", why="they have no rows")
    masks = []
    for number, row in enumerate(rows):
        with forms.refused(f"{what} of row {number}"):
            masks.append(mask(row))
    return masks


def _lowered(form: str, place: str, mask: Any, *arguments: Any) -> Any:
    """A mask in the format of another library.

    Lowerings import masks, so masks must not import lowerings: they are looked up by name, like plug-ins.

    Args:
        form: name of the format, for errors.
        place: the function of `longca.lowering` that writes it, as "module.function".

    Raises:
        UserError: the format cannot express the mask.
    """
    module, _, function = place.partition(".")
    write = getattr(importlib.import_module(f"longca.lowering.{module}"), function)
    try:
        return write(mask, *arguments)
    except ValueError as error:
        raise UserError(f"{form} cannot hold {mask!r}", why=str(error)) from None
    except (MemoryError, RuntimeError) as error:  # torch has no error of its own for a host without memory
        if "memory" not in str(error):
            raise
        raise UserError(
            f"{form} of {mask!r} does not fit into memory", todo="Take a form that holds less than each pair"
        ) from None
