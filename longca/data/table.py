"""The draws of a study as plain rows: the documents of its masks."""

from collections.abc import Iterable
from typing import Any

from longca.core.plugin import Registry
from longca.data.sampler import sample_documents
from longca.lab.studies.cell import Cell


def sample_table(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row for each distinct draw of the cells, in their order: its arguments, and the lengths in tokens.

    `digest` identifies the numbers of the corpus, so that a changed corpus with the same name is detected.
    """
    draws = {
        (cell.corpus, cell.seqlen, cell.seed, bool(cell.mask_params.get("paper_compat", False))): None
        for cell in cells
        if cell.corpus is not None
    }
    registry = Registry("corpus")
    digests = {name: registry.load(name).digest for name in sorted({draw[0] for draw in draws})}
    return [sample_row(*draw) | {"digest": digests[draw[0]]} for draw in draws]


def sample_row(corpus: str, seqlen: int, seed: int, paper_compat: bool = False) -> dict[str, Any]:
    """One draw as plain data."""
    lengths = sample_documents(corpus, seqlen, seed=seed, paper_compat=paper_compat).tolist()
    return {
        "corpus": corpus,
        "seqlen": seqlen,
        "seed": seed,
        "paper_compat": paper_compat,
        "num_documents": len(lengths),
        "longest": max(lengths),
        "lengths": lengths,
    }
