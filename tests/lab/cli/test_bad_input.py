"""Every mistake gets one line that says what, why and what to do, and exit code 2."""

import pytest

from longca.lab.store.cells import CellStore
from longca.lab.studies.study import load_study
from tests.helpers.records import record

GRID = "grids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1', %s}]"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("kernel: naiv", ["Unknown kernel 'naiv'", "'naive'"]),
        ("mask: causl", ["Unknown mask 'causl'", "'causal'"]),
        ("corpus: piles", ["Unknown corpus 'piles'", "'pile'"]),
        ("kind: cp, strategy: ulises", ["Unknown strategy 'ulises'", "'ulysses'"]),
        ("kind: cp, strategy: {usp: {head: 2}}", ["Strategy 'usp'", "'heads'"]),
        (
            "kind: cp, strategy: {loongtrain: {windows: 0}}",
            ["Strategy 'loongtrain'", "windows", "greater than"],
        ),
        ("sequlen: 64", ["unknown key", "sequlen", "'seqlen'"]),
        ("seqlen: -4", ["-4", "length"]),
        ("seqlen: 0", ["0", "length"]),
        ("seqlen: 99999999999999999999", ["seqlen", "less than"]),
        ("heads: '3:2'", ["3 query heads", "2 KV heads"]),
        ("mask: {block_sparse_uniform: {density: 1.5}}", ["block_sparse_uniform", "density", "1.5"]),
        ("mask: {block_sparse_uniform: {density: 0}}", ["block_sparse_uniform", "density"]),
        ("mask: {block_sparse_uniform: {blok: 64}}", ["blok", "'block'"]),
        ("mask: {block_sparse_uniform: {block: 64}}, seqlen: 100", ["block_sparse_uniform", "100", "64"]),
        ("dtype: bf61", ["dtype", "bf16"]),
    ],
)
def test_a_study_that_cannot_be(longca, tmp_path, change, expected):
    text = GRID % change
    for key in ("kernel", "mask", "seqlen", "heads"):  # the changed key replaces the good one
        if change.startswith(f"{key}:") or f", {key}:" in change:
            good = {
                "kernel": "kernel: naive, ",
                "mask": "mask: causal, ",
                "seqlen": "seqlen: 64, ",
                "heads": "heads: '2:1', ",
            }[key]
            text = text.replace(good, "", 1)
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = longca("plan", path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for part in expected:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan", "quik"], ["Unknown study 'quik'", "'quick'"]),
        (["run", "quick", "-k", "nosuch"], ["nosuch", "naive"]),
        (["run", "quick", "-s", "3..x"], ["3..x"]),
        (["run", "quick", "-m", "causal", "-s", "16K"], ["No cell", "16K"]),
        (["run", "quick", "--retry", "eror"], ["'eror'", "'error'"]),
        (["list", "kernel_s"], ["kernel_s", "kernels"]),
        (["data", "show", "pil"], ["'pil'", "'pile'"]),
        (["report", "quick"], ["record"]),
        (["run", "quick", "--device", "tpu"], ["device", "tpu"]),
        (["plan", "quick", "--seed", "x"], ["'x'", "seed", "0..2"]),
        (["report", "quick", "paper"], ["'quick'", "one study"]),
        (["report", "quick", "records.parquet"], ["'quick'", "one study"]),
        (["report", "nosuch.json"], ["nosuch.json"]),
        (["export", "quick"], ["no records", "longca run"]),
        (["image", "get", "cpuu"], ["There is no image 'cpuu'", "cpu, "]),
        (
            ["bench", "none.py", "--head-dim", "0"],
            ["cannot have 0 as its head dim. Give a whole number from 1 to 65536"],
        ),
        (["list", "matrix", "-s", "0"], ["longca: '0' is not a length: use a whole number"]),
        (["list", "matrix", "--dtype", "fp8"], ["Unknown dtype 'fp8'"]),
        (
            ["list", "matrix", "--heads", "99999999:1"],
            ["cannot have 99999999 heads. Give a whole number from 1 to 65536"],
        ),
        (
            ["report", "h200-dense"],
            [
                "was not measured here",
                "reports/h200/h200-dense.parquet: give that file",
                "`longca run h200-dense`",
            ],
        ),
        (["compare", "h200-dense", "quick"], ["was not measured here", "reports/h200/h200-dense.parquet"]),
        (["bench", "none.py", "-s", "8KK"], ["'8KK' is not a length"]),
        (["bench", "none.py", "-m", "causl"], ["Unknown mask 'causl'", "'causal'"]),
        (["bench", "none.py", "--dtype", "int8"], ["Unknown dtype 'int8'", "bf16"]),
        (["run", "quick", "--bar"], ["--bar", "`longca run -h`"]),
        (["config", "shw"], ["'shw'", "'show'"]),
        (["compare", "quick"], ["'B...'", "`longca compare -h`"]),
    ],
)
def test_a_command_that_cannot_be(longca, arguments, expected):
    done = longca(*arguments, here=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    for part in expected:
        assert part in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "show", "pile"],
        ["advise", "-m", "causal", "-s", "1M", "-w", "64"],
        ["list", "matrix", "-v", "--device", "cuda"],
        ["list"],
        ["new", "kernel", "a_long_name"],
        ["export"],
    ],
)
def test_lines_fit_into_80_columns(longca, tiny, tmp_path, arguments):
    """But for paths, which stay whole."""
    if arguments == ["export"]:
        CellStore(tmp_path / "results" / "tiny").write(record(load_study(str(tiny)).cells()[0], study="tiny"))
        arguments = ["export", tiny]
    if arguments[0] == "new":
        arguments = [*arguments, "--to", tmp_path / "mine"]
    done = longca(*arguments, here=True, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert len(line) <= 80 or not line.strip().count(" ") or str(tmp_path) in line.split()[-1], line


def test_a_seed_below_zero(longca):
    done = longca("data", "show", "pile", "--seed", "-1")
    assert done.returncode == 2 and "Traceback" not in done.stderr and "--seed" in done.stderr


@pytest.mark.parametrize("name", ["../outside", "a/b", ".."])
def test_a_studys_name_is_one_folder(longca, tmp_path, name):
    path = tmp_path / "study.yaml"
    path.write_text(f"name: '{name}'\n" + GRID % "head_dim: 64")
    done = longca("plan", path)
    assert done.returncode == 2 and f"'{name}'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_damaged_table_of_records(longca, tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    done = longca("report", tmp_path / "bad.parquet")
    assert done.returncode == 2 and "damaged" in done.stderr and "Measure first" not in done.stderr


def test_an_unknown_setting_in_the_environment(longca):
    done = longca("plan", "quick", LONGCA_DEVISE="cpu")
    assert done.returncode == 2
    assert "LONGCA_DEVISE" in done.stderr and "LONGCA_DEVICE" in done.stderr


@pytest.mark.parametrize("table", ["sample", "masks"])
def test_a_table_that_cannot_be_written(longca, tiny, tmp_path, table):
    (tmp_path / "file").write_text("in the way")
    done = longca("data", table, tiny, "--out", tmp_path / "file" / "table.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "table.json" in done.stderr


def test_all_problems_of_a_study_are_told_in_one_go(longca, tmp_path):
    """Wrong keys, values, names and parameters together; then, where all keys are right, names and parameters
    of all grids."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        "measure: {repeats: 0}\ngrids:\n"
        "  - {kernl: naive, kernel: sdp, mask: [causl, {causal: {a: 1}}], seqlen: -4, heads: '3:2'}\n"
        "  - {kernel: {}, mask: [3, {full: 3}], seqlen: 64, heads: 2, strategy: {usp: {head: 2}}}\n  - 3\n"
    )
    lines = longca("plan", path).stderr.splitlines()
    assert lines[0] == f"longca: {path} has 12 problems:" and len(lines) == 13
    for part in (
        "'measure.repeats'",
        "'kernel'?",
        "-4",
        "3 query heads",
        "'grids.1.kernel.0'",
        "'grids.1.mask.0' = 3",
        "'full': 3",
        "'grids.2'",
        "Unknown kernel 'sdp'",
        "Unknown mask 'causl'",
        "'causal': unknown key 'a'",
        "'usp': unknown key 'head'",
    ):
        assert sum(part in line for line in lines[1:]) == 1, part
    path.write_text(
        "grids:\n  - {kernel: [naiv, naive], mask: causl, seqlen: 64, heads: 2}\n"
        "  - {kernel: naive, mask: [{block_sparse_uniform: {blok: 1}}, {sliding_window: {window: -4}}], "
        "heads: 2}\n"
    )
    done = longca("plan", path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 6
    for part in ("'naive'", "'causal'", "'block'", "'window' = -4", "the lengths are not clear"):
        assert part in done.stderr
