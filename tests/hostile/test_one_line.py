"""Bad input of any kind gives one line and exit code 2: nothing hangs, and nothing moves the cursor of a
terminal."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from longca.core.errors import MOST_OF_VALUE, MOST_PROBLEMS, UserError, raise_all, shown, storable
from longca.core.plugin import say_left_out
from longca.core.reading import CELL_FILE, read_file
from longca.lab.store.cells import CellStore
from longca.lab.store.load import load
from tests.helpers.hostile.odd import whole_record

GRID = "grids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1', head_dim: 16, dtype: fp32, %s}]"
LONG = "x" * 5000
DIGITS = "9" * 5000


def refused(done: Any) -> str:
    """The line, without the name of the program."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        done.stderr.startswith("longca: ") and done.stderr.count("\n") == 1 and done.stderr[:-1].isprintable()
    ), done.stderr
    assert len(done.stderr) < 1500 + MOST_OF_VALUE
    return done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grids: " + "[" * 100_000, "it is nested too deeply"),
        ("grids: " + "[" * 300 + "]" * 300, "[[[[...]]]]"),
        (f"seed: {DIGITS}\n" + GRID % "", "a value cannot be what it is written as"),
        ("grids: &a [*a]", "a value holds itself"),
        ('title: "\\ud800"\n' + GRID % "", "half of a character"),
        ("title: 2024-99-99\n" + GRID % "", "month must be in 1..12"),
        ("title: !!bool x", "is not valid YAML"),
        ("title: !!timestamp x", "is not valid YAML"),
        ("title: !!int ''", "is not valid YAML"),
        (GRID % f"seed: '{DIGITS}'", "exceeded maximum size"),
        (GRID % 'input_values: "a\\nb\\e[31m"', "normal"),
        (GRID.replace("naive", LONG) % "", "Unknown kernel 'xxx"),
        (GRID.replace("naive", '"\\e[31m\\u202e"') % "", "\\x1b[31m\\u202e"),
        (f"name: '{LONG}'\n" + GRID % "", "at most 200 bytes"),
        ('name: "a\\nb"\n' + GRID % "", "no control characters"),
        (GRID % "measure: {timeout_s: .inf}", "finite number"),
        (GRID % "measure: {max_seconds: 1e30}", "max_seconds"),
        (GRID % "head_dim: 100000000000", "head_dim"),
        (GRID.replace("'2:1'", f"'{DIGITS}'") % "", "is not a head count"),
        (GRID.replace("64", DIGITS) % "", "cannot be what it is written as"),
        (GRID.replace("64", f"'{DIGITS}'") % "", "is not a length"),
    ],
)
def test_a_study(longca, tmp_path: Path, text: str, expected: str):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert expected in refused(longca("plan", path))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan", LONG], "File name too long"),
        (["plan", f"{LONG}.yaml"], "File name too long"),
        (["claims", DIGITS], "File name too long"),
        (["report", f"{LONG}.json"], "File name too long"),
        (["plan", "a\nb\x1b[31m"], "'a\\nb\\x1b[31m'"),
        (["plan", "a\udcff"], "'a\\udcff'"),
        (["plan", "a\0b.yaml"], "no NUL"),
        (["plan", "quick", "-s", DIGITS], "is not a range of seqlen"),
        (["plan", "quick", "--seed", DIGITS], "is not a range of seed"),
        (["plan", "quick", "--heads", "²:1"], "is not a head count"),
        (["plan", "quick", "-k", "\udcff"], "unicode"),
        (["data", "show", "pile", "-s", "9999999999"], "too many"),
        (["data", "show", "a\nb"], "'a\\nb'"),
        (["bench", "none.py", "-s", DIGITS], "is not a length"),
        (["bench", "/dev/zero"], "a device"),
        (["explain", "f" * 5000], "No cell"),
        (["report", "/dev/null/x.json"], "There is no file"),
        (["compare", "quick", "a\nb"], "'quick'"),
    ],
)
def test_arguments(longca, arguments: list[str], expected: str):
    assert expected in refused(longca(*arguments))


@pytest.fixture
def pipe(tmp_path: Path):
    def make(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return path

    return make


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a.yaml", ["plan"]),
        ("a.json", ["report"]),
        ("a.parquet", ["report"]),
        ("a.tar.gz", ["verify"]),
        ("kernel.py", ["bench"]),
        ("a.jsonl", ["data", "build", "x"]),
        ("a.txt", ["data", "build", "x"]),
    ],
)
def test_a_pipe_is_no_file(longca, pipe, tmp_path: Path, name: str, command: list[str]):
    path = pipe(name)
    more = ["--folder", tmp_path] if command[0] == "data" else []
    assert str(path) in refused(longca(*command, path, *more))


def test_pipes_among_plugins_are_left_out(longca, pipe, tmp_path: Path):
    pipe("plugins/corpora/piped.json")
    pipe("plugins/kernels/piped_kernel.py")
    pipe("plugins/masks/piped_mask.py")
    done = longca("list", LONGCA_PLUGINS=str(tmp_path / "plugins"))
    assert done.returncode == 0 and done.stderr.count("left out") == 3
    assert "a pipe" in refused(longca("data", "show", "piped", LONGCA_PLUGINS=str(tmp_path / "plugins")))


def test_a_pipe_in_the_place_of_a_record(pipe, tmp_path: Path):
    path = pipe("cells/aa/aa00000000000000.json")
    loaded = load(tmp_path)
    assert [problem.path for problem in loaded.problems] == [path] and "It is a pipe, not a file" in str(
        loaded.problems[0]
    )


def test_kinds_of_files(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        for path, expected in (
            (tmp_path / "s", "No such device"),
            (Path("/dev/zero"), "a device"),
            (tmp_path, "directory"),
            (Path("a\0b"), "no NUL"),
        ):
            with pytest.raises(OSError, match=expected):
                read_file(path, CELL_FILE)


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "{records}", "{records}", "--markdown", "/proc/none/x.md"],
        ["report", "{records}", "--out", "/proc/none/x.html"],
        ["paper", "{records}", "--out", "/proc/none"],
        ["paper", "/proc/none"],
        ["run", "{study}", "--results", "/proc/none"],
        ["compare", "{records}", "{records}", "--html", "/proc/none/x.html"],
        ["archive", "{study}", "--out", "/proc/none/x.tar.gz"],
        ["data", "build", "x", "{study}", "--folder", "/proc/none"],
        ["data", "sample", "{study}", "--out", "/proc/none/x"],
    ],
)
@pytest.mark.sample(3)
def test_a_folder_that_cannot_be_written(longca, tmp_path: Path, command: list[str]):
    """Not even by root, whom permissions do not stop."""
    from longca.lab.store.decode import from_content
    from longca.lab.store.export import export

    study = tmp_path / "odd.yaml"
    study.write_text(GRID % "")
    record = from_content(whole_record("ok", 0))
    CellStore(tmp_path / "results/odd").write(record)
    export([record], tmp_path)
    places = {"study": study, "records": tmp_path / "records.parquet"}
    if command[:2] == ["data", "build"]:
        places["study"] = tmp_path / "odd.txt"
        places["study"].write_text("words")
    assert "/proc/none" in refused(longca(*(part.format(**places) for part in command)))


BROKEN = {
    "syntax": ("class X(\n", "SyntaxError"),
    "raises": ("1 / 0", "ZeroDivisionError"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "empty": ("", "exactly one subclass"),
    "deep": ("x = " + "(" * 5000, "Error"),
    "check": (
        "from longca.masks.contract import Pattern\nclass X(Pattern):\n    family, definition = 'regular', "
        "'x'\n    def check(self, seqlen, params): raise TypeError('a\\nb\\x1b')\n",
        "TypeError: a b",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mask_is_named_and_the_rest_of_its_study_runs(longca, tmp_path: Path, name: str):
    say_left_out.cache_clear()
    (tmp_path / "plugins/masks").mkdir(parents=True)
    path = tmp_path / f"plugins/masks/broken_{name}.py"
    path.write_text(BROKEN[name][0])
    study = tmp_path / "odd.yaml"
    study.write_text(GRID.replace("causal", f"[causal, broken_{name}]") % "direction: fwd")
    done = longca("plan", study, "--json", LONGCA_PLUGINS=str(tmp_path / "plugins"))
    assert done.returncode == 0 and '"num_cells": 1' in done.stdout
    assert (
        done.stderr.startswith("longca: left out: ")
        and done.stderr.count("\n") == 1
        and done.stderr[:-1].isprintable()
    )
    assert str(path) in done.stderr and BROKEN[name][1] in done.stderr
    study.write_text(GRID.replace("causal", f"broken_{name}") % "")
    assert BROKEN[name][1] in refused(longca("plan", study, LONGCA_PLUGINS=str(tmp_path / "plugins")))


def test_a_run_without_a_broken_mask_ends_with_a_verdict(
    longca, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its other cells are kept: nothing is measured here."""
    from longca.lab.studies.study import load_study
    from tests.helpers.records import record

    (tmp_path / "plugins/masks").mkdir(parents=True)
    (tmp_path / "plugins/masks/broken.py").write_text("class X(\n")
    study = tmp_path / "odd.yaml"
    study.write_text(GRID.replace("causal", "[causal, broken]") % "direction: fwd")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path / "plugins"))
    [cell] = load_study(str(study)).cells()
    CellStore(tmp_path / "results/odd").write(record(cell))
    done = longca("status", study)
    assert done.returncode == 0 and "1 of 1 cells measured" in done.stdout
    assert (
        load_study(str(study))
        .left_out[0]
        .startswith(f"Plug-in '{tmp_path}/plugins/masks/broken.py' cannot be imported: SyntaxError")
    )


def test_messages_are_one_line():
    error = UserError("'a\nb\x1b[2J' is\u2028wrong", why="'" + LONG + "' is long", todo="Mend \ud800")
    text = str(error)
    assert (
        text.isprintable()
        and len(text) < MOST_OF_VALUE + 200
        and "\\n" in text
        and "\\x1b[2J" in text
        and "Mend \\ud800" in text
    )
    assert shown("plain ∞ – é\xa0x") == "plain ∞ – é\xa0x"
    assert len(shown("y" * 10**6)) == 2000 and shown("y" * 100) == "y" * 100
    quoted = ", ".join(f"'{name}'" for name in ["a" * 100] * 6)
    assert shown(quoted) == quoted, "many short values are not one long one"
    assert storable("a\nb\ud800" + LONG, 100).startswith("a\nb\\ud800xx") and len(storable(LONG, 100)) == 100


def test_many_problems_are_counted():
    with pytest.raises(UserError) as caught:
        raise_all("It", [UserError(f"problem {number}") for number in range(100)])
    lines = str(caught.value).splitlines()
    assert (
        lines[0] == "It has 100 problems:"
        and len(lines) == MOST_PROBLEMS + 2
        and lines[-1] == "  … and 80 more"
    )
    with pytest.raises(UserError) as both:
        raise_all("Both", [caught.value, UserError("one\nmore")])
    assert "\n  It: problem 0\n" in str(both.value) and "one\\nmore" not in str(both.value), (
        "it is one of those that are counted"
    )
