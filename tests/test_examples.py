"""Example notebooks run from their first cell to their last, on a CPU, from any folder, and are stored
without results.

The cells are run here as Jupyter runs them, and what they would show is rendered; a kernel of Jupyter is no
dependency for that.
"""

import ast
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


def run(notebook: Path) -> Iterator[Any]:
    """The value that each cell ends with; None for a statement."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{notebook.name}, cell {number}", "exec"), names)
        yield (
            eval(compile(ast.Expression(last.value), f"{notebook.name}, cell {number}", "eval"), names)
            if last
            else None
        )  # type: ignore


def shown(value: Any) -> str:
    """The HTML or text that a notebook shows for a value."""
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        results = [shown(value) for value in run(notebook) if value is not None]
    assert results and all(results)
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    assert figures and all(axes.has_data() for figure in figures for axes in figure.axes)
    pyplot.close("all")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_clean_and_valid(notebook: Path):
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(notebook, as_version=4))
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells(notebook))


def test_there_is_a_notebook():
    assert [path.name for path in NOTEBOOKS] == ["masks.ipynb"]
