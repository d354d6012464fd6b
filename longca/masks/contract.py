"""The contract of mask patterns. One file in `patterns/` is one pattern."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from longca.core import Frozen, Plugin, parse
from longca.masks.mask import Mask


@dataclass(frozen=True)
class Draw:
    """The inputs from which a pattern builds a mask."""

    seqlen: int
    documents: np.ndarray | None  # int64 lengths that sum to seqlen; None unless the pattern uses documents
    num_kv_heads: int
    rng: np.random.Generator  # seeded from the seed and the pattern's name
    new_tokens: int | None = None
    """queries of the mask, the last tokens of the sequence; None: all tokens. Bands are those of the whole
    sequence in any case: `build_mask` cuts them"""

    @cached_property
    def bounds(self) -> np.ndarray:
        """Document n has tokens bounds[n]..bounds[n + 1]; int64 (documents + 1,)."""
        assert self.documents is not None, "only a pattern with `uses_documents` has documents"
        return np.concatenate([[0], np.cumsum(self.documents)])

    def mask(self, *bands: np.ndarray, **drawn: object) -> Mask:
        """The mask of these disjoint bands (several (n, 6) arrays), the same for all heads; `drawn` goes to
        `Mask.params`."""
        return Mask(self.seqlen, self.seqlen, (np.concatenate(bands),), params=drawn)


class Pattern(Plugin):
    """A family of masks with parameters.

    `params` given to `check`, `draws` and `build` are an instance of the pattern's own `Params`.
    """

    family: ClassVar[Literal["regular", "heterogeneous", "dynamic"]]
    number: ClassVar[int | None] = None  # in the study's list of 14
    definition: ClassVar[str]  # visible iff …
    uses_documents: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False  # True if the pattern uses random values other than document lengths

    Params: ClassVar[type[Frozen]] = Frozen  # parameters with their defaults; a nested class of that name

    def resolve(self, params: dict[str, Any]) -> dict[str, Any]:
        """All parameters, with defaults and checked types. Raises UserError for an invalid key or value."""
        return parse(self.Params, params, f"Mask '{self.name}'").model_dump()

    def draws(self, params: Any) -> bool:
        """True if the seed changes the mask."""
        return self.stochastic or self.uses_documents

    def check(self, seqlen: int, params: Any) -> None:
        """Raises ValueError if the length and the parameters are inconsistent."""

    def build(self, draw: Draw, params: Any) -> Mask:
        """The mask. The pattern may use `draw.rng`, and passes its random values to the mask's `params`."""
        raise NotImplementedError
