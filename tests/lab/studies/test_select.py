"""Filters over cells."""

from collections.abc import Callable

import pytest

from longca.core.errors import UserError
from longca.lab.studies.cell import Cell
from longca.lab.studies.select import Selection


def cell(
    kernel: str = "naive",
    mask: str = "causal",
    seqlen: int = 1024,
    strategy: str | None = None,
    world: int = 1,
    direction: str = "fwd",
    seed: int = 0,
) -> Cell:
    return Cell.model_validate(
        {
            "kind": "cp" if strategy else "kernel",
            "kernel": kernel,
            "strategy": strategy,
            "world": world,
            "mask": mask,
            "seqlen": seqlen,
            "num_q_heads": 2,
            "num_kv_heads": 1,
            "head_dim": 64,
            "dtype": "bf16",
            "direction": direction,
            "seed": seed,
        }
    )


CELLS = [
    cell(seed=2),
    cell("sdpa", "causal_document", 2048),
    cell("flex", "full", 4096, direction="bwd"),
    cell("flex", "causal", 8192),
    cell(strategy="ulysses", world=2),
    cell(strategy="usp", world=4, seqlen=8192, mask="full"),
    cell(strategy="usp", world=8),
]


def among(check: Callable[[Cell], bool]) -> list[Cell]:
    return [cell for cell in CELLS if check(cell)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, CELLS),
        ({"kernel": "flex"}, among(lambda c: c.kernel == "flex")),
        ({"kernel": "sdpa, flex"}, among(lambda c: c.kernel in ("sdpa", "flex"))),
        ({"strategy": "usp+naive"}, among(lambda c: c.strategy == "usp")),
        ({"strategy": "usp+naive,ulysses"}, among(lambda c: c.strategy is not None)),
        ({"strategy": "!usp+naive"}, among(lambda c: c.strategy != "usp")),
        ({"strategy": "usp+naive", "kernel": "naive"}, among(lambda c: c.strategy == "usp")),
        ({"mask": "causal*"}, among(lambda c: c.mask.startswith("causal"))),
        ({"mask": "causal*,!causal_document"}, among(lambda c: c.mask == "causal")),
        ({"mask": "!full"}, among(lambda c: c.mask != "full")),
        ({"mask": "?ull"}, among(lambda c: c.mask == "full")),
        ({"strategy": "u*"}, CELLS[4:]),
        ({"strategy": "usp"}, CELLS[5:]),
        ({"strategy": "!usp"}, CELLS[:5]),
        ({"strategy": "!*"}, CELLS[:4]),
        ({"seqlen": "0..1K"}, among(lambda c: c.seqlen == 1024)),
        ({"direction": "bwd"}, CELLS[2:3]),
        ({"seqlen": "8K"}, among(lambda c: c.seqlen == 8192)),
        ({"heads": "2:1"}, CELLS),
        ({"seed": "0"}, CELLS[1:]),
        ({"seed": "1..2"}, CELLS[:1]),
        ({"seqlen": "2K..4K"}, among(lambda c: c.seqlen in (2048, 4096))),
        ({"seqlen": "1024,4K..1M"}, among(lambda c: c.seqlen != 2048)),
        ({"world": "2..4"}, CELLS[4:6]),
        ({"kernel": "flex", "mask": "causal", "seqlen": "8K", "direction": "fwd", "world": "1"}, CELLS[3:4]),
        ({"kernel": " , "}, CELLS),
    ],
)
def test_what_passes(filters: dict[str, str], expected: list[Cell]):
    assert Selection(**filters).apply(iter(CELLS)) == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"kernel": "flx"}, "Unknown kernel in this study 'flx': did you mean 'flex'?"),
        ({"mask": "!causl"}, "Unknown mask in this study 'causl': did you mean 'causal'"),
        ({"mask": "sliding*"}, "Unknown mask in this study 'sliding*'"),
        ({"strategy": "ring"}, "Unknown strategy in this study 'ring': known: ulysses, usp"),
        ({"seqlen": "8Q"}, "'8Q' is not a range of seqlen. Write 8K or 1K..8K"),
        ({"heads": "3:1"}, "No cell of the study is left: no cell passes heads '3:1'. Loosen the filters"),
        ({"seed": "x"}, "'x' is not a range of seed. Write 2 or 0..2"),
        ({"seqlen": "..8K"}, "'..8K' is not a range of seqlen"),
        ({"world": "-2"}, "'-2' is not a range of world"),
        ({"seqlen": "8K..1K"}, "No cell of the study is left: no cell passes seqlen '8K..1K'"),
        (
            {"kernel": "sdpa", "seqlen": "8K"},
            "No cell of the study is left: no cell passes kernel 'sdpa', seqlen '8K'. Loosen the filters",
        ),
        (
            {"kernel": "flex", "strategy": "usp+naive"},
            "no cell passes kernel 'flex', strategy 'usp+naive'. Loosen the filters",
        ),
        ({"strategy": "usp+nave"}, "Unknown strategy in this study 'usp+nave': did you mean 'usp+naive'"),
        ({"kernel": "!*"}, "No cell of the study is left"),
    ],
)
def test_what_leaves_nothing(filters: dict[str, str], message: str):
    with pytest.raises(UserError) as caught:
        Selection(**filters).apply(CELLS)
    assert message in str(caught.value)


def test_no_cells_at_all():
    with pytest.raises(UserError, match="No cell of the study is left"):
        Selection().apply([])
