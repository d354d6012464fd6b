"""A small input never takes much: it is refused within 512 MiB of memory and 10 s, in one line that names the
limit."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longca.core.errors import UserError
from longca.core.reading import CELLS, LIMITS, check_variables
from longca.core.schema import read_yaml

MEMORY = 512 << 20
SECONDS = 10
REFUSE = """
import json, os, resource, sys, time
import longca.lab.cli.plan, longca.lab.studies.study
from longca.lab.cli.main import build_app, main
build_app()
for command in json.load(sys.stdin):
    start = time.monotonic()
    child = os.fork()  # each input meets a process that has seen no other
    if not child:
        os.dup2(1, 2), os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
        sys.argv = ["longca", *command]
        main()
        os._exit(0)
    status, used = os.wait4(child, 0)[1:]
    print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]), flush=True)
"""
GRID = "grids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1', %s}]"


def laughs(word: str, repeat: Callable[[int], str]) -> str:
    return (
        f"a0: &a0 {word}\n"
        + "".join(f"a{level}: &a{level} {repeat(level - 1)}\n" for level in range(1, 30))
        + "grids: *a29\n"
    )


def numbers(count: int) -> str:
    return ", ".join(map(str, range(1, count + 1)))


STUDIES = {
    "aliases": (
        laughs("[x, x]", lambda level: "[" + ", ".join([f"*a{level}"] * 9) + "]"),
        "LONGCA_LIMIT_YAML_VALUES",
    ),
    "merges": (
        laughs("{x: 1}", lambda level: "{<<: [" + ", ".join([f"*a{level}"] * 9) + "]}"),
        "LONGCA_LIMIT_YAML_VALUES",
    ),
    "itself": ("grids: &a [*a, *a]", "a value holds itself"),
    "values": ("grids: [" + "[]," * 60_000 + "]", "LONGCA_LIMIT_YAML_VALUES"),
    "size": ("#" * (3 << 20), "LONGCA_LIMIT_YAML_MIB"),
    "cells": (GRID % f"seed: [{numbers(4000)}], head_dim: [{numbers(4000)}]", "32,000,000 cells"),
    "variants": (
        GRID.replace("causal", "{block_sparse_uniform: {block: [%s], density: [%s]}}")
        % (numbers(4000), numbers(4000), "seed: 0"),
        "32,000,000 cells",
    ),
    "world": (
        GRID % "kind: cp, strategy: ulysses, world: 100000000000000000000",
        "'grids.0.world.0' = 100000000000000000000",
    ),
    "documents": (
        GRID.replace("causal, seqlen: 64", "causal_document, seqlen: 1024M") % "corpus: ones",
        "LONGCA_LIMIT_DOCUMENTS",
    ),
}


@pytest.fixture(scope="module")
def answers(request, tmp_path_factory) -> dict[str, tuple[str, int, float]]:
    """Name → (message, exit code, seconds) of each hostile input that a chosen test asks for."""
    folder = tmp_path_factory.mktemp("hostile")
    commands = {}
    for name, (text, _) in STUDIES.items():
        (folder / f"{name}.yaml").write_text(text)
        commands[name] = ["plan", str(folder / f"{name}.yaml")]
    archives = {
        "zeros": b"\0" * (40 << 20),
        "blank lines": b"\n" * (6 << 20),
        "one line": b'{"text": "' + b"x" * (40 << 20),
    }
    for name, content in archives.items():
        path = folder / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress(content, 6))
        commands[name] = ["data", "build", "bomb", str(path), "--folder", str(folder)]
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * (4 << 20)])
    pq.write_table(pa.table({"record": words}), folder / "words.parquet")
    pq.write_table(pa.table({"record": pa.nulls(1_100_000, pa.string())}), folder / "rows.parquet")
    (folder / "large.json").write_bytes(b"")
    with (folder / "large.json").open("wb") as file:
        file.truncate(5 << 30)  # it takes no room on the disk
    (folder / "corpora").mkdir()
    bins = {"label": "x", "source": "x", "bins": [[1, 1, 1]]}
    (folder / "corpora/ones.json").write_text(json.dumps(bins))
    (folder / "corpora/deep.json").write_text("[" * 1_000_000)
    (folder / "corpora/lists.json").write_text("[" + "[]," * 2_000_000 + "[]]")
    commands |= {
        name: ["report", str(folder / name)] for name in ("words.parquet", "rows.parquet", "large.json")
    }
    asked = {
        item.callspec.params.get("name")
        for item in request.session.items
        if "answers" in getattr(item, "fixturenames", ())
    }
    commands |= {
        "deep": ["data", "show", "deep"],
        "lists": ["data", "show", "lists"],
        "draw": ["data", "show", "ones", "-s", "1024M"],
        "length": ["data", "show", "pile", "-s", "9" * 5000],
    }
    commands = {name: command for name, command in commands.items() if name in asked}
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, str(MEMORY)],
        input=json.dumps(list(commands.values())),
        capture_output=True,
        text=True,
        check=False,
        env={"LONGCA_PLUGINS": str(folder), "OMP_NUM_THREADS": "1", "LONGCA_DEVICE": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    answered = []
    message = ""
    for line in done.stdout.splitlines(keepends=True):
        if line.startswith("["):
            answered.append((message, *json.loads(line)))
            message = ""
        else:
            message += line
    return dict(zip(commands, answered, strict=True))


EXPECTED = {name: expected for name, (_, expected) in STUDIES.items()} | {
    "zeros": "larger than 32 MiB",
    "blank lines": "LONGCA_LIMIT_UNPACKED_RATIO",
    "one line": "LONGCA_LIMIT_DOCUMENT_MIB",
    "words.parquet": "LONGCA_LIMIT_RECORDS_MIB",
    "rows.parquet": "LONGCA_LIMIT_ROWS",
    "large.json": "LONGCA_LIMIT_RECORDS_MIB",
    "deep": "is nested too deeply",
    "lists": "LONGCA_LIMIT_CORPUS_MIB",
    "draw": "LONGCA_LIMIT_DOCUMENTS",
    "length": "is not a length",
}


@pytest.mark.long
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", EXPECTED)
def test_it_is_refused_at_little_cost(answers: dict[str, tuple[str, int, float]], name: str):
    message, code, seconds = answers[name]
    assert code == 2 and message.startswith("longca: ") and message.count("\n") == 1, message
    assert EXPECTED[name] in message and len(message) < 1500
    assert seconds < SECONDS


def test_a_limit_is_set_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.yaml"
    path.write_text("a: [1, 2, 3]")
    monkeypatch.setenv("LONGCA_LIMIT_YAML_VALUES", "4")
    with pytest.raises(UserError, match="more than 4 values; LONGCA_LIMIT_YAML_VALUES sets the limit"):
        read_yaml(path)
    monkeypatch.setenv("LONGCA_LIMIT_YAML_VALUES", "6")
    assert read_yaml(path) == {"a": [1, 2, 3]}


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "many", "9" * 40, "²"])
def test_a_limit_that_is_none(longca, monkeypatch: pytest.MonkeyPatch, text: str):
    done = longca("plan", "quick", **{CELLS.variable: text})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"longca: {CELLS.variable} = '{text}' is no limit")


def test_a_limit_of_an_unknown_name(longca):
    done = longca("plan", "quick", LONGCA_LIMIT_CELL="5")
    assert done.returncode == 2 and "'LONGCA_LIMIT_CELL'" in done.stderr and CELLS.variable in done.stderr


def test_limits_have_names_of_their_own():
    assert len({limit.variable for limit in LIMITS}) == len(LIMITS)
    check_variables()
