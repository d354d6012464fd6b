"""The origin of a drawn mask: the arguments of `build_mask` that made it, so that others like it can be
drawn."""

from dataclasses import dataclass

from longca.core import Scalar


@dataclass(frozen=True)
class MaskOrigin:
    """The arguments of `build_mask` for a mask that depends on a seed."""

    name: str
    seqlen: int
    corpus: str | None
    """None for patterns without documents"""
    seed: int
    num_kv_heads: int
    params: tuple[tuple[str, Scalar], ...]
    """all of the pattern's"""
    new_tokens: int | None = None
    """queries, the last tokens of the sequence; None: all tokens"""
