"""Building of masks from a pattern's name, a length and a seed."""

import hashlib
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from longca.core import MOST_TOKENS, Frozen, Registry, Scalar, UserError, parse_length
from longca.masks import band
from longca.masks.contract import Draw, Pattern
from longca.masks.mask import Mask, breaks_graph
from longca.masks.origin import MaskOrigin


@breaks_graph
def build_mask(
    name: str,
    *,
    seqlen: int | str,
    corpus: str | None = None,
    seed: int = 0,
    num_kv_heads: int = 1,
    documents: np.ndarray | Sequence[int] | None = None,
    new_tokens: int | str | None = None,
    **params: Scalar,
) -> Mask:
    """The mask of that pattern.

    Args:
        name: file name of the pattern in `longca/masks/patterns`.
        seqlen: number of tokens, queries and keys alike, as a number or "8K".
        corpus: source of document lengths, for patterns with documents; "pile" by default.
        seed: seed of all random values.
        num_kv_heads: head groups, for patterns that differ by KV head.
        documents: lengths to use instead of a corpus; they must sum to `seqlen`. **params: parameters of the
            pattern; the others have their defaults.
        new_tokens: number of queries, which are the last tokens of the sequence: the keys of the others are
            in a cache. The mask is `new_tokens` × `seqlen`, the last rows of the square one. All tokens are
            queries if it is None.

    Raises:
        UserError: unknown name or parameter, or inconsistent values.
    """
    return MaskBuilder().build(
        name,
        seqlen=seqlen,
        corpus=corpus,
        seed=seed,
        num_kv_heads=num_kv_heads,
        documents=documents,
        new_tokens=new_tokens,
        **params,
    )


def draw_again(origin: MaskOrigin, seed: int) -> Mask:
    """The mask of the same origin with another seed."""
    return build_mask(
        origin.name, seqlen=origin.seqlen, corpus=origin.corpus, seed=seed, num_kv_heads=origin.num_kv_heads,
        new_tokens=origin.new_tokens, **dict[str, Any](origin.params),
    )  # fmt: skip


class MaskBuilder:
    """Builds many masks: loads each pattern once, and samples documents that several masks share once."""

    def __init__(self) -> None:
        self._patterns: dict[str, Pattern] = {}
        self._documents: dict[tuple[str, int, int, bool], np.ndarray] = {}

    def build(
        self,
        name: str,
        *,
        seqlen: int | str,
        corpus: str | None = None,
        seed: int = 0,
        num_kv_heads: int = 1,
        documents: np.ndarray | Sequence[int] | None = None,
        new_tokens: int | str | None = None,
        **params: Scalar,
    ) -> Mask:
        """As of `build_mask`."""
        pattern = self._pattern(name)
        seqlen = _length(name, seqlen)
        num_new = None if new_tokens is None else _length(name, new_tokens)
        values = pattern.Params(**pattern.resolve(params))
        for what, number, least in (
            ("tokens", seqlen, 1),
            ("KV heads", num_kv_heads, 1),
            ("as its seed", seed, 0),
        ):
            if not _is_whole(number):
                raise UserError(
                    f"Mask '{name}' cannot have {number!r} {what}",
                    todo=f"Give a whole number of at least {least}",
                )
            if number < least:
                raise UserError(f"Mask '{name}' cannot have {number} {what}", todo=f"Give at least {least}")
        if seqlen > MOST_TOKENS:
            raise UserError(f"Mask '{name}' cannot have {seqlen} tokens", todo=f"Give at most {MOST_TOKENS}")
        if num_new is not None and not 1 <= num_new <= seqlen:
            raise UserError(
                f"Mask '{name}' of {seqlen} tokens cannot have {num_new} new ones",
                why="new tokens are the last ones of the sequence",
                todo=f"Give 1 to {seqlen}",
            )
        if documents is not None and not pattern.uses_documents:
            raise UserError(f"Mask '{name}' has no documents to give it", todo="Leave `documents` out")
        try:
            pattern.check(seqlen, values)
        except ValueError as error:
            raise UserError(f"Mask '{name}' at length {seqlen}", why=str(error)) from None
        rng = np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()[:8]])
        origin = None
        if documents is None and pattern.draws(values):
            source = (corpus or "pile") if pattern.uses_documents else None
            given = tuple(values.model_dump().items())
            origin = MaskOrigin(
                name, seqlen, source, operator.index(seed), operator.index(num_kv_heads), given, num_new
            )
        facts = values.model_dump() | ({} if num_new is None else {"new_tokens": num_new})
        if not pattern.uses_documents:
            mask = pattern.build(Draw(seqlen, None, num_kv_heads, rng, num_new), values)
            return _last_rows(_checked_bands(mask, name, values), num_new).named(name, facts, origin)
        if documents is None:
            documents = self._drawn(
                corpus or "pile", seqlen, seed, compat=bool(getattr(values, "paper_compat", False))
            )
        else:
            documents = _checked_documents(documents, seqlen)
        mask = pattern.build(Draw(seqlen, documents, num_kv_heads, rng, num_new), values)
        facts["documents"] = documents
        return _last_rows(_checked_bands(mask, name, values), num_new).named(name, facts, origin)

    def _pattern(self, name: str) -> Pattern:
        if not isinstance(name, str) or name not in self._patterns:
            self._patterns[name] = Registry("mask").load(name)  # raises for what is no name
        return self._patterns[name]

    def _drawn(self, corpus: str, seqlen: int, seed: int, *, compat: bool) -> np.ndarray:
        from longca.data import sample_documents

        key = corpus, seqlen, seed, compat
        if key not in self._documents:
            self._documents[key] = sample_documents(corpus, seqlen, seed=seed, paper_compat=compat)
        return self._documents[key].copy()


def _length(name: str, seqlen: int | str) -> int:
    try:
        if isinstance(seqlen, str):
            return parse_length(seqlen)
    except ValueError as error:
        raise UserError(f"Mask '{name}' has no such length", why=str(error)) from None
    if not _is_whole(seqlen):
        raise UserError(
            f"Mask '{name}' cannot have {seqlen!r} tokens", todo="Give a whole number, or text such as '8K'"
        )
    return operator.index(seqlen)


def _last_rows(mask: Mask, num_rows: int | None) -> Mask:
    """The mask of the last queries and all keys; the same mask for all queries."""
    if num_rows is None or num_rows == mask.seqlen_q:
        return mask
    return mask.crop((mask.seqlen_q - num_rows, mask.seqlen_q), (0, mask.seqlen_k))


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and np.ndim(value) == 0  # type: ignore[arg-type]


def _checked_bands(mask: Mask, name: str, params: Frozen) -> Mask:
    """The mask of a pattern.

    Raises UserError if its bands exceed the mask or share a pair, which every rate would count twice.
    """
    if mask.grid is not None:
        return mask  # its blocks are disjoint by construction
    for group, bands in enumerate(mask.groups):
        outside = bands[
            (bands[:, :4:2] < 0).any(axis=1) | (bands[:, 1] > mask.seqlen_q) | (bands[:, 3] > mask.seqlen_k)
        ]
        overlap = band.overlap_text(bands)
        if overlap is None and not len(outside):
            continue
        why = f"bands must be disjoint, and {overlap}"
        if len(outside):
            why = (
                f"its band {outside[0].view(band.BandTable)} leaves the {mask.seqlen_q} × {mask.seqlen_k} "
                f"pairs"
            )
        given = "".join(f", {key}={value}" for key, value in params.model_dump().items())
        of_group = f" (head group {group})" if mask.num_groups > 1 else ""
        raise UserError(
            f"Mask '{name}' with seqlen={mask.seqlen_q}{given} is no mask{of_group}",
            why=why,
            todo="Change its `build`",
        )
    return mask


def _checked_documents(given: Any, seqlen: int) -> np.ndarray:
    """Lengths of documents that fill a mask.

    Args:
        given: an array, a sequence or a tensor.
    """
    lengths: np.ndarray
    try:
        lengths = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except ValueError:  # rows of different lengths
        lengths = np.empty((0, 0))
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise UserError("Lengths of documents must be a list of whole numbers")
    total = sum(lengths.tolist())  # exact, however large they are
    if total != seqlen or lengths.min() < 1:
        raise UserError(
            f"Documents of {total} tokens do not fill a mask of {seqlen}",
            todo="Give positive lengths that sum to the mask's length",
        )
    return lengths.astype(np.int64)
