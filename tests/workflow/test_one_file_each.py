"""A new mask, kernel, strategy, corpus and figure: one file each, then listed, run and drawn."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.support import ROOT
from tests.masks import test_contract_masks as of_masks

MASK = '''
"""Every query sees itself and the first token."""
from longca.masks.band import INF, as_bands
from longca.masks.contract import Pattern
from longca.masks.mask import Mask
class Anchor(Pattern):
    label, family, definition = "anchor", "heterogeneous", "j = i or j = 0"
    def build(self, draw, params):
        n = draw.seqlen
        return Mask(n, n, (as_bands([(0, n, 0, 1, -INF, INF), (1, n, 1, n, 0, 0)]),))
'''
KERNEL = '''
"""The unfused kernel under another name."""
from longca.kernels.backends.naive import Naive
class Mine(Naive):
    label, summary = "Mine", "a kernel of one file"
'''
STRATEGY = '''
"""Ulysses under another name."""
from longca.cp.strategies.ulysses import Ulysses
class MyWay(Ulysses):
    label, summary = "My way", "a strategy of one file"
'''
CORPUS_TEXT = ["a few words", "some more words than before", "x" * 40]
FIGURE = '''
"""The number of cells of each method."""
from longca.lab.report.contract import Figure
class Counts(Figure):
    section, order, caption = "noise", 900, "Counts every record."
    def data(self, table):
        return table.groupby("method", observed=True).size().rename("cells").reset_index()
    def title(self, data):
        return f"{int(data.cells.sum())} cells were counted by a figure of one file"
    def draw(self, data, style):
        from matplotlib.figure import Figure as Canvas
        canvas = Canvas(figsize=(4, 2))
        canvas.subplots().barh(data.method, data.cells)
        return canvas
'''
STUDY = """
measure: {warmup: 0, warm_seconds: 0, repeats: 3, precision: 0, max_seconds: 1, timeout_s: 60}
grids:
  - {kind: cp, strategy: my_way, kernel: mine, world: 2, mask: [anchor, causal_document], corpus: my_words, seqlen: 64,
     heads: "2:1", head_dim: 16, dtype: fp32}
"""  # noqa: E501
OF_KERNELS = """
  - {kernel: mine, mask: [anchor, causal_document], corpus: my_words, seqlen: 64, heads: "2:1", head_dim: 16, dtype: fp32}
  - {kernel: plain, mask: [window_and_sink, causal_document], seqlen: 64, heads: "4:2", head_dim: 16}
"""  # noqa: E501


@pytest.fixture
def plugins(tmp_path: Path, longca) -> Path:
    """The plug-ins above, the kernel that the guide's page has written, and the mask of its page."""
    folder = tmp_path / "plugins"
    files = {
        "masks/anchor.py": MASK,
        "kernels/mine.py": KERNEL,
        "strategies/my_way.py": STRATEGY,
        "figures/counts.py": FIGURE,
    }
    for position, text in files.items():
        path = folder / position
        path.parent.mkdir(parents=True)
        path.write_text(text)
    pages = {
        kind: (ROOT / f"docs/guide/own-{kind}.md").read_text(encoding="utf-8") for kind in ("kernel", "mask")
    }
    kernel, mask = (re.search(rf"`longca new {kind} (\w+)`", text)[1] for kind, text in pages.items())
    assert longca("new", "kernel", kernel, "--to", folder).returncode == 0
    (folder / f"masks/{mask}.py").write_text(
        re.search(r"```python\n(.*?)```", pages["mask"], re.DOTALL)[1], encoding="utf-8"
    )
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in CORPUS_TEXT))
    done = longca(
        "data", "build", "my_words", documents, "--folder", folder / "corpora", LONGCA_PLUGINS=str(folder)
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_mask_of_the_page_keeps_its_contract(plugins, monkeypatch):
    monkeypatch.setenv("LONGCA_PLUGINS", str(plugins))
    of_masks.test_says_what_it_is("window_and_sink")
    of_masks.test_bands_are_disjoint_and_inside("window_and_sink")
    of_masks.test_the_seed_decides_and_nothing_else("window_and_sink")


@pytest.mark.slow
def test_the_kernel_and_the_mask_of_the_pages_keep_their_contracts(plugins):
    """By the commands of the pages."""
    tests = ("tests/kernels/test_contract_kernels.py", "tests/masks/test_contract_masks.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests, "-k", "plain or window_and_sink", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"LONGCA_PLUGINS": str(plugins)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


@pytest.mark.parametrize("with_kernels", [False, pytest.param(True, marks=pytest.mark.long)])
def test_listed_run_and_drawn(plugins, longca, tmp_path, with_kernels):
    """The strategy runs the kernel under the masks, with the corpus; in `make test-long` each kernel runs
    alone, too."""
    env = {"LONGCA_PLUGINS": str(plugins)}
    listed = json.loads(longca("list", "--json", **env).stdout)
    own = {
        "masks": ("anchor", "window_and_sink"),
        "kernels": ("mine", "plain"),
        "strategies": ("my_way",),
        "corpora": ("my_words",),
        "figures": ("counts",),
    }
    for kind, names in own.items():
        assert set(names) <= {plugin["name"] for plugin in listed[kind]}
    study = tmp_path / "own.yaml"
    study.write_text(STUDY + OF_KERNELS * with_kernels)
    ran = longca("run", study, **env)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    status = json.loads(longca("status", study, "--json", **env).stdout)
    alone = {"mine": {"ok": 4}, "plain": {"ok": 4}} if with_kernels else {}
    assert status["methods"] == {"my_way+mine": {"ok": 4}, **alone}
    page = Path(longca("report", study, **env).stdout.splitlines()[-1]).read_text()
    num_cells = 4 * len(status["methods"])
    assert f"{num_cells} cells were counted by a figure of one file" in page and "anchor" in page
