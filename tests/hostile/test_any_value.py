"""Any value in any field of a record: the file is named and skipped, or every command works with it."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from longca.core.reading import JsonError, read_json
from longca.lab.archive.project import project_files
from longca.lab.bench.run.scores import Score
from longca.lab.store.cells import CellStore
from longca.lab.store.decode import Decoder, Unusable, decode_content, encode
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.store.table import derived, in_order
from longca.lab.studies.record import Record
from tests.helpers.hostile.odd import KINDS, ODD, PLACES, Place, as_json, changed, put, values, whole_record
from tests.helpers.support import examples

STUDY = (
    "title: odd\ngrids: [{kernel: naive, mask: causal, seqlen: 64, heads: '2:1', head_dim: 16, dtype: "
    "fp32}]\n"
)
# records of a study
FEW = 15
MANY = 300

decode = Decoder().decode  # one for all texts: what it remembers of one must change nothing for the next


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("any")


@settings(examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), values)
def test_it_is_refused_in_one_line_or_can_be_used(folder: Path, place: tuple[str, Place], value: Any):
    text = as_json(changed(*place, value, 0)).encode()
    try:
        record = decode(text)
    except Unusable as error:
        assert str(error).isprintable() and len(str(error)) < 600
        return
    assert encode(decode(encode(record))) == encode(record)
    assert in_order([record]) == [record] and str(Score.of(record).rate) is not None
    export([record], folder)
    assert len(load(folder / "records.parquet").records) == len(load(folder / "records.json").records) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 25))]
)
def test_every_command_works_with_what_is_left(
    longca, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
):
    """Damaged records are in one study, so that they are skipped; the others are in another one, which can be
    archived."""
    monkeypatch.setattr(
        "longca.lab.archive.bundle.project_files",
        lambda root: {
            name: file
            for name, file in project_files(root).items()
            if not name.startswith(("reports/", "docs/", "tests/"))
        },
    )
    study = tmp_path / "odd.yaml"
    study.write_text(STUDY)
    mixed = CellStore(tmp_path / "mixed/odd")
    sound = CellStore(tmp_path / "sound/odd")
    generator = random.Random(number)
    num_damaged = 0
    put(sound, whole_record("ok", 1000))
    put(mixed, whole_record("ok", 1000))
    for position in range(MANY if number else FEW):
        content = changed(*generator.choice(PLACES), generator.choice(ODD), position)
        path = put(mixed, content)
        if path.stem == content["cell_id"] and not isinstance(mixed.read(path.stem), Record):
            num_damaged += 1
        elif isinstance(mixed.read(path.stem), Record):
            put(sound, content)
    assert num_damaged > FEW // 3
    commands = [
        ["status", study, "--results", tmp_path / "mixed"],
        ["export", study, "--results", tmp_path / "mixed"],
        ["claims", mixed.folder],
        ["compare", mixed.folder, sound.folder],
        *(
            [["report", mixed.folder / "records.parquet"]] if number else []
        ),  # to archive makes such a page, too
        ["archive", study, "--results", tmp_path / "sound"],
        ["verify", tmp_path / "sound/odd.tar.gz"],
    ]
    for command in commands:
        done = longca(*command)
        assert done.returncode == 0, (command[0], done.stdout[-2000:], done.stderr[-2000:])
        if command[0] in ("status", "export"):
            assert done.stdout.count("skipped ") >= num_damaged


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_without_a_change_can_be_used(kind: str):
    assert len(derived([decode(as_json(whole_record(kind, 0)).encode())])) == 1


def slowly(text: bytes) -> Record | str:
    """The record by the way that takes no short cut; "unusable" where it refuses the text."""
    try:
        return decode_content(read_json(text))
    except (JsonError, Unusable):
        return "unusable"


NULL = b'"environment":null'
EMPTY = b'"environment":{}'
TWISTS = {  # the place of the environment's text, by which equal ones are known, in other places
    "as it was": lambda whole, own: whole,
    "twice": lambda whole, own: whole.replace(own, own + b"," + own),
    "null before": lambda whole, own: whole.replace(own, NULL + b"," + own),
    "null behind": lambda whole, own: whole.replace(own, own + b"," + NULL),
    "null for it": lambda whole, own: whole.replace(own, NULL),
    "none": lambda whole, own: whole.replace(own + b",", b""),
    "empty": lambda whole, own: whole.replace(own, EMPTY),
    "open": lambda whole, own: whole.replace(own, own[:-1]),
    "closed twice": lambda whole, own: whole.replace(own, own + b"}"),
    "more in it": lambda whole, own: whole.replace(own, own[:-1] + b',"more":1}'),
    "first": lambda whole, own: b"{" + own + b"," + whole.replace(own + b",", b"")[1:],
    "last": lambda whole, own: whole.replace(own + b",", b"")[:-1] + b"," + own + b"}",
    "in costs": lambda whole, own: whole.replace(own + b",", b"").replace(
        b'"costs":{', b'"costs":{"a_ms":1.0,' + own + b","
    ),
    "in costs, too": lambda whole, own: whole.replace(b'"costs":{', b'"costs":{"a_ms":1.0,' + own + b","),
    "null in costs": lambda whole, own: whole.replace(own + b",", b"").replace(
        b'"costs":{', b'"costs":{"a_ms":1.0,' + NULL + b","
    ),
    "in itself": lambda whole, own: whole.replace(own, own[:-1] + b"," + own + b"}"),
    "in a text": lambda whole, own: whole.replace(
        b'"notes":[', b'"notes":["' + own.replace(b'"', b'\\"') + b'",'
    ),
    "in a text, raw": lambda whole, own: whole.replace(b'"notes":[', b'"notes":["x' + own + b'",'),
    "its end in a text": lambda whole, own: whole.replace(
        b'"slurm_job":null', b'"slurm_job":"},\\"started_at\\":\\""'
    ),
    "its end in it": lambda whole, own: whole.replace(
        b'"slurm_job":null', b'"slurm_job":{"a":1},"started_at":"x"'
    ),
    "a key twice in it": lambda whole, own: whole.replace(
        b'"slurm_job":null', b'"slurm_job":"1","slurm_job":null'
    ),
    "another name": lambda whole, own: whole.replace(b'"environment"', b'"environmen\\u0074"'),
    "two names": lambda whole, own: whole.replace(own, b'"environmen\\u0074":null,' + own),
    "a comma more": lambda whole, own: whole.replace(own, b"," + own),
    "no comma": lambda whole, own: whole.replace(b"," + own, own),
    "text behind": lambda whole, own: whole.replace(own, own + b" x"),
}


@pytest.mark.parametrize("twist", TWISTS)
@pytest.mark.parametrize("kind", ["ok", "control"])
def test_an_environment_in_an_odd_place_is_read_as_if_each_were_parsed(kind: str, twist: str):
    record = decode(as_json(whole_record(kind, 0)).encode())
    whole = record.model_dump_json().encode()
    own = whole[whole.index(b'"environment":') : whole.index(b',"started_at":')]
    assert decode(whole) == record and own != NULL
    text = TWISTS[twist](whole, own)
    assert twist == "as it was" or text != whole
    expected = slowly(text)
    decoder = Decoder()
    decoder.decode(whole)  # now it knows the environment
    try:
        actual: Record | str = decoder.decode(text)
    except Unusable:
        actual = "unusable"
    assert actual == expected


def test_equal_environments_are_one_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("longca.lab.store.decode.MOST_SHARED", 2)
    decoder = Decoder()
    whole = decode(as_json(whole_record("ok", 0)).encode())
    first, second = (decoder.decode(encode(whole)) for _ in range(2))
    assert first.environment is second.environment is not None
    for number in range(5):
        other = whole.model_copy(
            update={"environment": whole.environment.model_copy(update={"slurm_job": str(number)})}
        )
        assert decoder.decode(encode(other)) == other and len(decoder._environments) <= 2


BROKE: list[tuple[str, str, Any]] = [
    ("ok", "mask.num_groups", 0),
    ("ok", "mask.area", 2**63),
    ("ok", "mask.area", 10**400),
    ("control", "work.flops", 10**400),
    ("ok", "cell.mask_params.density", float("nan")),
    ("ok", "cell.mask_params.density", "abc"),
    ("ok", "cell.mask_params.scores", "9" * 5000),
    ("ok", "notes.0", "\ud800"),
    ("ok", "environment.nodes.0.gpu.mig", [[]]),
    ("ok", "environment.nodes.0.gpu.memory_bytes", "much"),
    ("ok", "environment.nodes.0.gpu.power_limit_w", "much"),
    ("ok", "samples.time_ms", []),
    ("ok", "samples.time_ms.0", []),
    ("ok", "samples.time_ms.0.0", 0),
    ("ok", "samples.time_ms.0.0", -1.0),
    ("ok", "samples.time_ms.0.0", float("nan")),
    ("ok", "samples.time_ms.0.0", 1e308),
    ("ok", "memory.peak_bytes.0", 2**63),
    ("ok", "costs.plan_ms", float("inf")),
    ("ok", "started_at", "yesterday"),
    ("ok", "started_at", "9999-12-31T23:59:59+00:00"),
    ("ok", "started_at", "2026-01-01T00:00:00+02:00"),
    ("ok", "seconds", -1),
    ("ok", "cell.world", 10**20),
    ("ok", "cell.head_dim", 10**9),
    ("ok", "cell.seed", 2**63),
]


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    BROKE,
    ids=[f"{number}-{position}" for number, (_, position, _) in enumerate(BROKE)],
)
def test_what_broke_all_that_came_after_is_damaged_now(kind: str, place: str, value: Any):
    keys = tuple(int(key) if key.isdecimal() else key for key in place.split("."))
    with pytest.raises(Unusable, match="is damaged"):
        decode(as_json(changed(kind, keys, value, 0)).encode())


def test_a_cell_with_a_damaged_record_is_not_measured(longca, tmp_path: Path):
    """One of the two cells of a study has a time of 0."""
    from longca.lab.studies.study import load_study
    from tests.helpers.records import record

    study = tmp_path / "odd.yaml"
    study.write_text(STUDY)
    store = CellStore(tmp_path / "results/odd")
    first, second = load_study(str(study)).cells()
    store.write(record(second))
    path = store.write(record(first))
    text = path.read_text()
    times = text[text.index('"time_ms":') + 10 : text.index(',"warmup"')]
    path.write_text(text.replace(times, "[[0.0]]"))
    done = longca("status", study)
    assert (
        "1 of 2 cells measured" in done.stdout
        and f"skipped {path}: is damaged ('samples.time_ms.0.0' = 0.0" in done.stdout
    )


def test_every_field_has_bounds():
    """A field that is added to the record needs some, too. Texts have them from `Frozen`, floats must be
    finite there."""
    lacking = list(_without_bounds(TypeAdapter(Record).json_schema(), "Record"))
    assert lacking == []


def _without_bounds(schema: Any, where: str) -> Iterator[str]:
    if isinstance(schema, list):
        for number, part in enumerate(schema):
            yield from _without_bounds(part, f"{where}.{number}")
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    needed = {"integer": {"minimum", "maximum"}, "array": {"maxItems"}}.get(
        kind if isinstance(kind, str) else "", set()
    )
    if kind == "object" and "properties" not in schema:
        needed = {"maxProperties"}
    if needed - schema.keys() and "const" not in schema and "enum" not in schema:
        yield where
    for key, part in schema.items():
        yield from _without_bounds(part, f"{where}.{key}")
