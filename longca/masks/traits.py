"""What kernels and strategies ask about a mask; derived from its bands, never declared."""

from dataclasses import dataclass

from longca.masks.mask import Mask


@dataclass(frozen=True)
class Traits:
    """Scalars only, so that `supports` stays pure and quick."""

    seqlen_q: int
    seqlen_k: int
    num_groups: int  # head groups with masks of their own; 1: all heads share one
    num_bands: int  # over all groups
    full: bool  # every pair is visible
    causal: bool  # j <= i over one square
    num_segments: int  # if the mask is squares along the diagonal that cover all tokens, all with the same window: how many; else 0
    window: tuple[int, int] | None  # that window: j - i in [-left, right]; -1 for no bound (FlashAttention's convention)
    block_size: tuple[int, int] | None  # of a uniform block grid
    is_block_grid: bool  # made of blocks, uniform or variable
    empty_rows: bool  # some query sees no key
    max_row_intervals: int  # most runs of visible keys in one row, touching ones joined
    max_col_intervals: int  # most runs of queries that see one key

    @property
    def per_head(self) -> bool:
        return self.num_groups > 1


def derive(mask: Mask) -> Traits:
    raise NotImplementedError
