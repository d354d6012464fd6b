"""Listings of environments go wherever records go, and nothing damaged or endless in them is believed."""

import base64
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from longca.lab.store.cells import CellStore
from longca.lab.store.environments.images import ImageList
from longca.lab.store.environments.listings import FOLDER, Environments, packed, unpacked
from longca.lab.store.export import export
from longca.lab.store.load import load
from longca.lab.store.parquet import ENVIRONMENTS_KEY
from longca.lab.studies.facts.inventory import (
    Distribution,
    Installation,
    LoadedSoftware,
    LooseModule,
    RankEnvironment,
    SharedObject,
    listing_content,
    listing_digest,
)
from longca.lab.studies.record import Record
from tests.helpers.environment.distributions import folder_of_packages, loaded_in
from tests.helpers.records import quick_study

INSTALLED = Installation(
    python="CPython 3.12.3",
    machine="x86_64",
    kernel="Linux 6.1",
    libc="glibc 2.39",
    driver="580.1",
    firmware={"vbios": "96"},
    distributions=(Distribution(name="torch", version="2.11.0", record="c" * 64),),
)
LOADED = LoadedSoftware(
    distributions=("torch",),
    modules=(LooseModule(name="flash_attn_3", num_files=2, num_bytes=9, sha256="d" * 64),),
    objects=(
        SharedObject(
            origin="distribution",
            owner="torch",
            path="torch/lib/libtorch.so",
            build_id="ab" * 20,
            sha256="a" * 64,
            hashed="record",
        ),
        SharedObject(origin="module", owner="flash_attn_3", path="flash_attn_3/_C.so", build_id="cd" * 20),
        SharedObject(origin="system", path="/usr/lib/libc.so.6", build_id="ef" * 20),
    ),
)


def listings(*values: Installation | LoadedSoftware) -> dict[str, Any]:
    return {
        listing_digest(content): content for content in map(listing_content, values or (INSTALLED, LOADED))
    }


def environment(*loaded: LoadedSoftware) -> tuple[RankEnvironment, ...]:
    [installed] = listings(INSTALLED)
    return tuple(
        RankEnvironment(installed=installed, loaded=next(iter(listings(each))))
        for each in loaded or (LOADED,)
    )


def with_environment(record: Record, ranks: tuple[RankEnvironment, ...]) -> Record:
    assert record.environment is not None
    return record.model_copy(update={"environment": record.environment.model_copy(update={"ranks": ranks})})


@pytest.fixture(scope="module")
def records() -> list[Record]:
    old, *others = [record for record in quick_study() if record.environment][:4]
    return [old, *(with_environment(record, environment()) for record in others)]


@pytest.fixture
def results(records: list[Record], tmp_path: Path) -> Path:
    store = CellStore(tmp_path / "results")
    store.write_listings(listings())
    for record in records:
        store.write(record)
    return store.folder


def test_listings_go_with_the_records_through_every_form(
    results: Path, records: list[Record], tmp_path: Path
):
    loaded = load(results)
    paths = export(loaded.records, tmp_path / "exported", loaded.environments)
    for source in (results, paths[0], paths[2], tmp_path / "exported"):
        actual = load(source)
        assert not actual.problems and actual.environments.contents(
            record.environment for record in actual.records
        ) == dict(sorted(listings().items()))
        assert (
            actual.environments.installed(environment()[0]) == INSTALLED
            and actual.environments.loaded(environment()[0]) == LOADED
        )
    again = export(load(paths[0]).records[::-1], tmp_path / "again", load(paths[0]).environments)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    row = pq.read_table(paths[0], columns=["environment", "loaded_software"]).to_pylist()
    assert {tuple(each.values()) for each in row} == {
        ("", ""),
        (environment()[0].installed, environment()[0].loaded),
    }


def test_only_what_the_records_name_is_carried(records: list[Record], tmp_path: Path):
    environments = Environments()
    environments.add(listings(INSTALLED, LOADED, INSTALLED.model_copy(update={"kernel": "another"})))
    assert (
        len(environments) == 3 and len(environments.contents(record.environment for record in records)) == 2
    )
    plain = export(records[:1], tmp_path / "old", environments)
    assert [path.read_bytes() for path in plain] == [
        path.read_bytes() for path in export(records[:1], tmp_path / "none")
    ]


def test_records_of_old_schemas_stay_as_they_were(records: list[Record]):
    text = json.loads(records[0].model_dump_json())
    assert not {"measure", "ranks", "lengths"} & {*text, *text["environment"], *(text["mask"] or {})}
    assert records[0].environment is not None and records[0].environment.digest is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_text("{"), "is damaged (it is not valid JSON"),
        (lambda path: path.write_text('{"kind": "installed", "kind": "loaded"}'), "has key 'kind' twice"),
        (
            lambda path: path.write_text(
                path.read_text().replace("CPython", "PyPy").replace("glibc", "musl")
            ),
            "its digest says otherwise",
        ),
        (lambda path: path.write_text('{"kind": "other"}'), "is no listing of this longca"),
        (lambda path: path.write_bytes(b"\xff"), "is not UTF-8"),
        (
            lambda path: path.write_text(path.read_text() + " " * (2 << 20)),
            "have more than 1 MiB; LONGCA_LIMIT_ENVIRONMENTS_MIB",
        ),
        (
            lambda path: path.with_name("\x1b[31m.json").write_text("{}"),
            "environment '\\x1b[31m' cannot be used",
        ),
    ],
)
def test_a_damaged_listing_is_named_and_the_records_stay(results: Path, records, change, says, monkeypatch):
    monkeypatch.setenv("LONGCA_LIMIT_ENVIRONMENTS_MIB", "1")
    change(results / FOLDER / f"{environment()[0].installed}.json")
    loaded = load(results)
    assert len(loaded.records) == len(records) and says in " ".join(map(str, loaded.problems))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no base 64!",
        base64.b64encode(b"no lzma"),
        base64.b64encode(lzma.compress(b"[1]")),
        base64.b64encode(lzma.compress(b"{")),
        base64.b64encode(lzma.compress(b" " * (3 << 20))),
        base64.b64encode(lzma.compress(b"{}")[:-9]),
        packed({"x" * 64: {"kind": "installed"}}),
        packed({"a" * 64: listing_content(INSTALLED)}),
        packed({"b" * 64: [[[]]]}),
    ],
)
def test_metadata_from_strangers_is_bounded_and_checked(text: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGCA_LIMIT_ENVIRONMENTS_MIB", "1")
    environments = unpacked(text)
    assert (
        not len(environments) and len(environments.problems) == 1 and environments.problems[0].isprintable()
    )


def test_a_file_of_records_with_damaged_listings_is_read(records: list[Record], tmp_path: Path):
    path = export(records, tmp_path)[0]
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, ENVIRONMENTS_KEY: b"!"}), path)
    loaded = load(path)
    assert len(loaded.records) == len(records) and "its environments are damaged" in str(loaded.problems[0])


def image(**changes: Any) -> ImageList:
    contents = {
        "machine": "x86_64",
        "system": {},
        "files": {"torch/lib/libtorch.so": "a" * 64},
        "distributions": [each.model_dump() for each in INSTALLED.distributions],
        "modules": [each.model_dump() for each in LOADED.modules],
        "objects": [each.model_dump() for each in LOADED.objects],
    }
    return ImageList.of("hopper", contents | changes)


def test_what_was_loaded_is_compared_with_an_image():
    same = image().compared(INSTALLED, LOADED)
    assert same.is_image and same.same == (
        "flash_attn_3",
        "flash_attn_3/_C.so",
        "torch 2.11.0",
        "torch/lib/libtorch.so",
    )
    assert (same.num_system, same.num_system_same) == (1, 1)
    for changes, differing in [
        ({"files": {"torch/lib/libtorch.so": "b" * 64}}, "torch/lib/libtorch.so"),
        ({"modules": []}, "flash_attn_3"),
        ({"objects": []}, "flash_attn_3/_C.so"),
        ({"distributions": [{"name": "torch", "version": "2.11.0", "record": "e" * 64}]}, "torch 2.11.0"),
    ]:
        assert image(**changes).compared(INSTALLED, LOADED).differing == (differing,)
    edited = LOADED.model_copy(update={"changed": ("torch/nn/init.py",)})
    assert image().compared(INSTALLED, edited).differing == ("torch/nn/init.py",)
    old = image(distributions=[], modules=[], objects=[]).compared(
        INSTALLED, LOADED
    )  # a list from before, with files alone
    assert old.same == ("torch/lib/libtorch.so",) and old.differing == ("flash_attn_3/_C.so",)


def test_a_process_outside_has_the_files_of_the_same_folder(tmp_path: Path):
    here = loaded_in(folder_of_packages(tmp_path / "here"))
    there = loaded_in(folder_of_packages(tmp_path / "there"))
    contents = {
        "files": {each.path: each.sha256 for each in there.objects},
        "modules": [each.model_dump() for each in there.modules],
    }
    assert ImageList.of("there", contents).compared(INSTALLED, here).is_image
    with pytest.raises(ValueError, match="is not a list"):
        ImageList.of("wrong", {"files": 7})
