"""`longca list` and `longca explain`: a line a row, the finding first, and numbers as numbers."""

import json
import re
from itertools import pairwise

import pytest

from longca.core.plugin import KINDS, Registry
from longca.lab.store.cells import CellStore
from longca.lab.studies.outcome import Failed
from longca.lab.studies.study import load_study
from tests.helpers.records import record

WIDTH = 80


def lines(done):
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.splitlines()
    assert max(map(len, printed)) <= WIDTH, "it fits the terminal"
    return printed


def test_the_overview_is_short_and_counts_everything(longca):
    printed = lines(longca("list", COLUMNS=str(WIDTH)))
    assert len(printed) <= 60
    for kind in KINDS.values():
        assert f"{len(Registry(kind.name).names())} {kind.plural.replace('_', ' ')}" in " ".join(printed)
    text = " ".join(printed)
    assert all(
        name in text for kind in ("mask", "kernel", "strategy", "corpus") for name in Registry(kind).names()
    )


@pytest.mark.parametrize("kind", [kind.plural for kind in KINDS.values()])
def test_each_has_one_line(longca, kind):
    names = Registry(next(name for name, known in KINDS.items() if known.plural == kind)).names()
    head, *printed = lines(longca("list", kind, COLUMNS=str(WIDTH)))
    assert head.startswith(f"{len(names)} {kind.replace('_', ' ')}") and len(printed) == len(names)
    assert {name for line in printed for name in line.split()[:2]} >= set(names)


def test_a_line_says_what_a_kernel_is_and_why_it_is_not_here(longca):
    narrow = next(
        line for line in lines(longca("list", "kernels", COLUMNS=str(WIDTH))) if line.startswith("band ")
    )
    band = next(
        line
        for line in longca("list", "kernels", COLUMNS="300").stdout.splitlines()
        if line.startswith("band ")
    )
    summary = Registry("kernel").load("band").summary
    assert (
        summary in band and summary[:30] in narrow and narrow.endswith("; not here") and len(narrow) <= WIDTH
    )
    shown = {
        kernel["name"]: kernel for kernel in json.loads(longca("list", "kernels", "--json").stdout)["kernels"]
    }
    assert "not here: runs on NVIDIA GPUs only" in band
    assert shown["band"]["runs_here"] is False and shown["band"]["reason"] == "runs on NVIDIA GPUs only"
    assert shown["naive"]["runs_here"] is True and shown["naive"]["reason"] is None


def test_verbose_has_everything(longca):
    text = longca("list", "masks", "-v").stdout
    assert "window=1024" in text and "patterns/causal.py" in text
    kernels = longca("list", "kernels", "-v", COLUMNS=str(WIDTH)).stdout
    of_band = kernels.partition("\nband\n")[2].partition("\n\n")[0]
    assert Registry("kernel").load("band").summary in " ".join(of_band.split())
    assert "  runs here: no\n  reason: runs on NVIDIA GPUs only\n" in of_band
    long = [line for line in kernels.splitlines() if len(line) > WIDTH]
    assert all(len(line.split()) <= 1 for line in long), "only a path may be longer than the terminal"


def test_the_matrix_is_what_kernels_say(longca):
    printed = lines(longca("list", "matrix", "--device", "cuda", COLUMNS=str(WIDTH)))
    content = json.loads(longca("list", "matrix", "--device", "cuda", "--json").stdout)
    runs = {(pair["kernel"], pair["mask"], pair["direction"]): pair["runs"] for pair in content["pairs"]}
    masks = sorted(
        {mask for _, mask, _ in runs}, key=lambda name: (Registry("mask").load(name).number or 99, name)
    )
    kernels = {kernel for kernel, *_ in runs}
    rows = {
        line.split()[0]: after if line in kernels else line  # a long name has a line of its own
        for line, after in pairwise(printed)
        if line.split() and line.split()[0] in kernels and "·" in line + "·"
    }
    everywhere = [
        name
        for name in sorted(kernels)
        if all(runs[name, mask, way] for mask in masks for way in ("fwd", "bwd"))
    ]
    assert (
        printed[0].startswith(f"{len(everywhere)} of {len(kernels)} kernels run all {len(masks)} masks")
        and "band" in everywhere
    )
    start = WIDTH - 3 * len(masks) + 1
    assert start < max(map(len, kernels)) + 2
    for kernel in kernels:
        signs = [rows[kernel].ljust(200)[start + 3 * at : start + 3 * at + 2] for at in range(len(masks))]
        assert [("f" in sign, "b" in sign) for sign in signs] == [
            (runs[kernel, mask, "fwd"], runs[kernel, mask, "bwd"]) for mask in masks
        ]
    assert not runs["fa2", "prefix_lm", "fwd"] and runs["fa2", "causal", "bwd"]
    here = json.loads(longca("list", "matrix", "--json").stdout)
    assert (
        here["device"] == "cpu"
        and "band" in here["not_here"]
        and "naive" in {pair["kernel"] for pair in here["pairs"]}
    )
    assert "cudnn_bsa: it takes block masks only" in longca("list", "matrix", "--device", "cuda", "-v").stdout
    wrong = longca("list", "matrix", "--device", "tpu")
    assert wrong.returncode == 2 and "'tpu'" in wrong.stderr


def test_explain_tells_all_cells_that_fit(longca):
    done = longca("explain", "quick", "-k", "flex", "-m", "causal*", "--heads", "4:2", COLUMNS=str(WIDTH))
    content = json.loads(
        longca("explain", "quick", "-k", "flex", "-m", "causal*", "--heads", "4:2", "--json").stdout
    )
    refused = [cell for cell in content if not (cell["supported"] and cell["available"])]
    assert len(content) > 3 and {cell["cell"]["direction"] for cell in refused} == {"bwd"}
    assert lines(done)[0] == f"{len(refused)} of {len(content)} cells cannot run here; none is measured yet."
    assert all(
        cell["cell_id"] in done.stdout for cell in content
    ) and "no FlexAttention backward on CPU" in " ".join(done.stdout.split())
    entry = next(
        cell
        for cell in content
        if cell["title"].startswith("flex causal S=512") and cell["cell"]["direction"] == "fwd"
    )
    assert entry["visible_pairs"] == 512 * 513 // 2 and entry["flops"] == 4 * entry["visible_pairs"] * 4 * 64
    assert (
        longca("explain", "quick", "--heads", "64:8").returncode
        == longca("explain", "quick", "--heads", "8:3").returncode
        == 2
    )


def test_explain_tells_a_control_from_attention(longca):
    (facts,) = json.loads(longca("explain", "quick", "-k", "matmul", "--json").stdout)
    assert (
        facts["work"] == {"flops": 2 * 512**3}
        and facts["visible_pairs"] is None
        and facts["supported"] is True
    )


def test_explain_tells_results_and_the_traceback_on_demand(longca, tiny, tmp_path):
    fine, broken = load_study(str(tiny)).cells()[:2]
    store = CellStore(tmp_path / "results" / "tiny")
    store.write(record(fine, study="tiny", tflops=0.5))
    store.write(
        record(
            broken,
            Failed(type="ValueError", message="no luck", log="Traceback\n  File 'k.py', line 7"),
            study="tiny",
        )
    )
    done = longca("explain", tiny, "-k", "naive", COLUMNS=str(WIDTH))
    assert "2 measured: 1 ok, 1 error" in lines(done)[0]
    assert re.search(
        r"ms, \d+ GFLOP/s of\s+a device", done.stdout
    ) and "error: ValueError: no luck" in " ".join(done.stdout.split())
    assert "`--log` shows its traceback" in done.stdout and "line 7" not in done.stdout
    assert "line 7" in longca("explain", broken.cell_id[:9], "--study", tiny, "--log").stdout
    whole = longca("explain", fine.cell_id[:9], "--study", tiny).stdout
    assert re.search(r"error / budget  \w+ \S+e\S+ / \S+e\S+\n", whole), "also of a result that is right"


def test_a_kernel_without_prepare_cannot_run_and_says_why(longca, tmp_path, monkeypatch):
    """In the list and by the doctor, as a run says it of its cells."""
    (tmp_path / "mine/kernels").mkdir(parents=True)
    text = "from longca.kernels import Kernel\nclass Lacking(Kernel):\n    label = 'Lacking'\n"
    (tmp_path / "mine/kernels/lacking.py").write_text(
        f"{text}    def supports(self, call, traits, device_type): return None\n"
    )
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path / "mine"))
    reason = "its class Lacking defines no prepare"
    (row,) = [
        row
        for row in json.loads(longca("list", "kernels", "--json").stdout)["kernels"]
        if row["name"] == "lacking"
    ]
    assert (row["runs_here"], row["reason"]) == (False, reason)
    checks = {check["check"]: check for check in json.loads(longca("doctor", "--json", here=True).stdout)}
    assert (checks["kernel lacking"]["state"], checks["kernel lacking"]["detail"]) == ("note", reason)
    study = tmp_path / "lacking.yaml"
    study.write_text("grids: [{kernel: lacking, mask: causal, seqlen: 64, heads: '2:1'}]")
    assert reason in longca("plan", study, here=True).stdout
