"""Kernels fitted to the records of a question, and the fit to a large study kept beside its cells."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from longca.core import UserError, plugin_folders
from longca.lab.code import source_digest
from longca.lab.store import UnusableFile, kept_answer, load_rows
from longca.lab.store.index import FEWEST
from longca.lab.studies.fitting import fit_records
from longca.predict.fitted import FittedKernels, fitted_from

NAME = ".fit.json"


def fit_sources(sources: Sequence[Path]) -> tuple[FittedKernels, list[UnusableFile]]:
    """The models of the cells' own records in these sources, and files and rows that cannot be used.

    The fit to a folder of many results is kept in it, and made again where a record, the code or numpy has
    changed.

    Raises:
        UserError: there are no records to fit, or they are of several devices.
    """
    loaded = load_rows(*sources)
    rows = loaded.own_rows()
    if loaded.problems and not rows:
        raise UserError(
            f"There are no records in '{', '.join(map(str, sources))}'", why=str(loaded.problems[0])
        )
    table = loaded.table.take(rows)
    names = tuple(map(str, sources))
    folder = sources[0] / "cells"
    if len(sources) > 1 or len(table) < FEWEST or not folder.is_dir() or plugin_folders():
        return fit_records(table.records(), names), loaded.problems
    causes = (
        source_digest("longca.lab.studies.fitting"),
        f"{platform.python_version()} {np.__version__}",
        table.digest(),
    )

    def fit() -> dict[str, Any]:
        return asdict(fit_records(table.records(), by_cell=True))

    content = kept_answer(folder / NAME, causes, fit)
    return replace(fitted_from(content), records=names), loaded.problems
