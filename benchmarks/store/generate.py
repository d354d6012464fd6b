"""A study of any size with plausible records: those committed of H200s, moved to other lengths, seeds and
heads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from longca.lab.bench.measure.environment import cpu_name
from longca.lab.bench.run.method_version import method_versions
from longca.lab.store import CellStore
from longca.lab.store.index import cell_facts
from longca.lab.store.load import committed, load
from longca.lab.studies import Cell, Record, Study, load_study

SOURCES = ("h200-dense", "h200-sparse", "h200-cp")  # whose records are taken
JITTER = 0.02  # of a time, from one cell to the next
CELLS_OF_A_RUN = 5_000
STUDY = """title: "{count:,} cells"
measure: {{warmup: 2, repeats: 5, max_seconds: 1.5, timeout_s: 180}}
grids:
  - kernel: [torch_flash, fa2, fa3, fa4, cudnn, cudnn_graph, cudnn_flex, flex, flex_flash, flashmask, band, band_atomic]
    mask: [full, causal, full_document, causal_document, sliding_window, causal_sliding_window, shared_question,
           causal_blockwise, prefix_lm, prefix_lm_document, global_sliding_window, block_causal_document]
    corpus_from: {{1: pile, 12289: prolong64k}}
    seqlen: [1K, 2K, 4K, 8K, 16K, 24K, 32K, 40K, 48K]
    heads: "64:8"
    seed: [{dense_seeds}]
  - kernel: [band, band_atomic, vsa, fa2_sparse, flashinfer, flex, flex_flash, fa4, cudnn_bsa, cudnn_flex]
    mask:
      - block_sparse_uniform: {{block: [64, 128], density: [0.2, 0.5, 0.8]}}
    seqlen: [16K, 32K, 64K, 96K, 128K]
    heads: ["64:8", "64:64"]
    seed: [{sparse_seeds}]
  - kind: cp
    strategy: [ulysses, ring_p2p, ring_allgather, usp, loongtrain]
    kernel: band
    world: [2, 4]
    mask: [full, causal, full_document, causal_document]
    corpus: prolong64k
    seqlen_per_rank: [8K, 32K]
    heads: "64:8"
    seed: [{dense_seeds}]
"""  # noqa: E501


def write_study(path: Path, count: int) -> Study:
    """A study of at least `count` cells, with as few seeds as that takes."""
    seeds = 1
    while True:
        texts = {
            "dense_seeds": ", ".join(map(str, range(seeds))),
            "sparse_seeds": ", ".join(map(str, range(-(-seeds // 4)))),
        }
        path.write_text(STUDY.format(count=count, **texts), encoding="utf-8")
        study = load_study(str(path))
        if len(study.cells()) >= count:
            return study
        seeds = max(seeds + 1, seeds * count // len(study.cells()))


def fill(study: Study, folder: Path, seed: int = 0) -> int:
    """Write a record of each cell of the study into `folder`; the number of them.

    They are of the method that a run on this machine's CPU would have now, so that such a run has nothing to
    do.
    """
    store = CellStore(folder)
    with patch("os.fsync"):  # what is written is read at once, and may be lost in a crash: it is made again
        return sum(store.write(record).exists() for record in records(study, seed))


def is_filled(study: Study, folder: Path) -> bool:
    """True if there is a record of each cell, of the method that a run would have now: it may have changed
    since they were made."""
    facts, problems = cell_facts(CellStore(folder))
    return not problems and {
        cell_id: cell_facts.method_version for cell_id, cell_facts in facts.items()
    } == _versions(study)


def _versions(study: Study) -> dict[str, str]:
    return method_versions(study.cells(), study)(cpu_name())


def records(study: Study, seed: int = 0) -> Iterator[Record]:
    """A record of each cell: that of the committed cell that is most like it, with other times, area and
    digest."""
    generator = random.Random(seed)
    known: dict[tuple[Any, ...], list[Record]] = {}
    for record in load(*(path for name in SOURCES for path in committed(name))).records:
        for key in _keys(record.cell):
            known.setdefault(key, []).append(record)
    versions = _versions(study)
    for number, cell in enumerate(study.cells()):
        near = next(value for key in _keys(cell) if (value := known.get(key)))
        like = min(near, key=lambda record: (abs(record.cell.seqlen - cell.seqlen), record.cell_id))
        yield _moved(like, cell, study.name, generator, number // CELLS_OF_A_RUN, versions[cell.cell_id])


def _keys(cell: Cell) -> list[tuple[Any, ...]]:
    """The keys by which a cell is looked for, the nearest first."""
    exact = (cell.kind, cell.kernel, cell.strategy, cell.world, cell.direction)
    return [
        (*exact, cell.mask, cell.seqlen, cell.num_kv_heads),
        (*exact, cell.mask),
        exact,
        exact[:3],
        exact[:1],
    ]


def _moved(like: Record, cell: Cell, study: str, generator: random.Random, run: int, version: str) -> Record:
    ratio = (cell.seqlen / like.cell.seqlen) ** 2
    data = like.model_dump()
    for name in ("samples", "others"):
        if data[name]:
            data[name]["again"] = 1  # a run measures what drifted, or was disturbed, once more: it has been
    if data["samples"]:
        level = ratio * generator.gauss(1, JITTER)
        data["samples"]["time_ms"] = [
            [level * time * generator.gauss(1, JITTER / 4) for time in times]
            for times in data["samples"]["time_ms"]
        ]
    if data["mask"]:
        data["mask"] |= {
            "digest": f"{generator.getrandbits(64):016x}",
            "area": int(data["mask"]["area"] * ratio),
        }
    return Record(
        **data
        | {
            "cell": cell,
            "cell_id": cell.cell_id,
            "study": study,
            "method_version": version,
            "run_id": f"{like.run_id[:-6]}{run:06x}",
        }
    )
