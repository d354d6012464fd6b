"""The origin of a drawn mask: the arguments of `build_mask` that made it, so that others like it can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca.core.cell import Scalar
    from longca.masks.mask import Mask


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

    def draw(self, seed: int) -> Mask:
        """The mask of another seed."""
        from longca.masks.build import build_mask

        return build_mask(
            self.name,
            seqlen=self.seqlen,
            corpus=self.corpus,
            seed=seed,
            num_kv_heads=self.num_kv_heads,
            **dict(self.params),
        )


def masks_of_draws(mask: Mask, seeds: Sequence[int]) -> list[Mask]:
    """The mask drawn with each of these seeds; itself for its own seed. The mask must have an origin."""
    assert mask.origin is not None, "only a drawn mask can be drawn again"
    return [mask if seed == mask.origin.seed else mask.origin.draw(seed) for seed in seeds]
