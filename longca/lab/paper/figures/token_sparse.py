"""NSA and DSA, which the study measures and this project does not: what packages have of them, and why no row
is made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from longca.lab.paper.contract import Cells, PaperTable
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

LOOKED = "2026-11-23"
YES = "yes"
NO = "no"


@dataclass(frozen=True)
class Offer:
    """The contents of the newest release of one package for Hopper (SM90)."""

    method: str
    package: str
    version: str
    """with its date; of packages that the index does not have, what stands there instead"""
    forward: str
    backward: str
    study_heads: str
    """it takes 64 query and 8 KV heads of dim 128"""
    why: str
    """what keeps it from being a row"""

    @property
    def is_whole(self) -> bool:
        """Both passes run on Hopper."""
        return self.forward == self.backward == YES


OFFERS = (
    Offer(
        "NSA",
        "fla-core",
        "0.6.0 (2026-10-23)",
        YES,
        YES,
        NO,
        "parallel_nsa asks for a power of two of at least 16 query heads for each KV head; the study has 8 "
        "and 1",
    ),
    Offer(
        "NSA",
        "nvidia-cudnn-frontend",
        "1.32.0 (2026-10-27)",
        YES,
        NO,
        YES,
        "SelectionAttention runs on SM90 and is forward alone; CompressionAttention, from which blocks are "
        "chosen, asks for SM100",
    ),
    Offer(
        "NSA",
        "native-sparse-attention",
        "not in the index",
        NO,
        NO,
        NO,
        "its kernels are maintained in fla-core",
    ),
    Offer(
        "DSA",
        "nvidia-cudnn-frontend",
        "1.32.0 (2026-10-27)",
        NO,
        YES,
        NO,
        "SparseAttentionForward asks for SM100; the backward of SM90 takes one KV head of dim 512 or 576, "
        "its keys being its values",
    ),
    Offer(
        "DSA",
        "flashinfer-python",
        "0.7.2.post1 (2026-10-23)",
        NO,
        NO,
        NO,
        "dsa_sparse_attention asks for SM100, SM103 or SM107",
    ),
    Offer(
        "DSA",
        "fla-core",
        "0.6.0 (2026-10-23)",
        NO,
        NO,
        NO,
        "fla.ops.dsa holds a reference in plain torch and no kernel",
    ),
    Offer(
        "DSA",
        "sgl-flash-mla",
        "1.0.0",
        YES,
        NO,
        NO,
        "a frozen copy of what FlashMLA dropped for SM90 on 2026-09-30: forward alone, one KV head of dim "
        "576, values of dim 512",
    ),
    Offer(
        "DSA",
        "flash-mla",
        "not in the index",
        NO,
        NO,
        NO,
        "the original's sparse backward is an open request (deepseek-ai/FlashMLA, issue 107)",
    ),
    Offer(
        "DSA",
        "deep-gemm",
        "1.0.0",
        NO,
        NO,
        NO,
        "its indexer scores are no attention, and what the index has under this name is 19 KB",
    ),
    Offer(
        "DSA",
        "tilelang",
        "0.1.15 (2026-09-30)",
        NO,
        NO,
        NO,
        "a compiler: kernels for DSA are examples beside it, not in the package",
    ),
)


class TokenSparse(PaperTable):
    label = "NSA and DSA: not measured"
    section = "sparse"
    number = "Tables 10–11"
    order = 60
    needs_records = False
    caption = (
        "What the newest release of each package on PyPI has for Hopper, by its files and its own checks, "
        f"on {LOOKED}. A row of these pages is attention under a mask that is known before the call, in "
        "both passes, with the study's heads, and compared with float64. NSA and DSA choose keys for each "
        "query token, and for what is in the tokens. A part of NSA attends to means of keys, which are none "
        "of the keys given; DSA has keys and values of unequal size, from one latent head."
    )

    def data(self, table: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(
            [asdict(offer) | {"is_whole": offer.is_whole, "looked": LOOKED} for offer in OFFERS]
        )

    def title(self, data: pd.DataFrame) -> str:
        parts = []
        for method, offers in data.groupby("method", sort=False):
            whole = offers[offers.is_whole]
            fit = whole[whole.study_heads == YES]
            run = "runs" if len(whole) == 1 else "run"
            parts.append(
                f"of {plural(len(offers), 'package')} for {method}, {len(whole)} {run} both passes on Hopper"
                + (f" ({', '.join(whole.package)})" if len(whole) else "")
                + (f", {len(fit) or 'none'} of them with the study's heads" if len(whole) else "")
            )
        return f"NSA and DSA are not measured: {'; '.join(parts)}"

    def cells(self, data: pd.DataFrame) -> Cells:
        columns = ["method", "package", "version", "forward", "backward", "study_heads", "why"]
        return Cells(
            (
                "method",
                "package",
                "version",
                "forward on SM90",
                "backward on SM90",
                "64:8 heads",
                "why there is no row",
            ),
            tuple(tuple(map(str, row)) for row in data[columns].itertuples(index=False)),
            num_keys=3,
            texts=frozenset({columns.index("why")}),
        )
