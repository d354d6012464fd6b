"""The masks of a study, and the documents of these masks, as plain rows. Measuring jobs compare their own
masks with these rows."""

import time
from collections.abc import Iterable
from typing import Any

from longca.core import Registry
from longca.data import sample_documents
from longca.lab.studies.cell import Cell
from longca.lab.studies.masks import cell_mask, mask_name


def mask_table(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row for each distinct mask of the cells: name, arguments, digest, area, and build_ms."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        key = mask_name(cell)
        if key in rows:
            continue
        start = time.perf_counter()
        mask = cell_mask(cell)
        build_ms = (time.perf_counter() - start) * 1e3
        rows[key] = {
            "key": key,
            "mask": cell.mask,
            **cell.mask_key,
            "digest": mask.digest,
            "area": mask.area,
            "density": mask.density,
            "num_groups": mask.num_groups,
            **mask.drawn,
            "build_ms": round(build_ms, 3),
        }
    return list(rows.values())


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
    return [_sample_row(*draw) | {"digest": digests[draw[0]]} for draw in draws]


def _sample_row(corpus: str, seqlen: int, seed: int, paper_compat: bool) -> dict[str, Any]:
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
