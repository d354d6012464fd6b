"""A page and a command say where records ran: in a pinned image, in an image's files, in neither, or that it
is not known."""

import json
from pathlib import Path
from typing import Any

import pytest

from longca.lab.report.build import build
from longca.lab.store.cells import CellStore
from longca.lab.store.environments.listings import Environments
from longca.lab.store.environments.summary import summary_of
from longca.lab.studies.facts.inventory import LoadedSoftware, RankEnvironment
from longca.lab.studies.record import Record
from tests.helpers.records import quick_study
from tests.lab.store.test_environments import (
    INSTALLED,
    LOADED,
    environment,
    image,
    listings,
    with_environment,
)

OTHER = LoadedSoftware(
    distributions=("torch",),
    objects=(LOADED.objects[0].model_copy(update={"sha256": "9" * 64, "build_id": None}),),
)


def pinned(record: Record) -> Record:
    assert record.environment is not None
    software = record.environment.software.model_copy(update={"container": f"sha256:{'7' * 64}"})
    return record.model_copy(
        update={"environment": record.environment.model_copy(update={"software": software})}
    )


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Two of an old schema, then one each: in a pinned image, in the image's files, in others, without its
    listing."""
    old, also_old, inside, files, other, lost = [record for record in quick_study() if record.environment][:6]
    return [
        old,
        also_old,
        with_environment(pinned(inside), environment()),
        with_environment(files, environment()),
        with_environment(other, environment(LOADED, OTHER)),
        with_environment(lost, (RankEnvironment(installed="0" * 64),)),
    ]


@pytest.fixture(scope="module")
def environments() -> Environments:
    known = Environments()
    known.add(listings(INSTALLED, LOADED, OTHER))
    return known


def test_each_record_is_counted_where_it_ran(records: list[Record], environments: Environments):
    summary = summary_of(records, environments, [image()])
    assert summary.ran == {"pinned": 1, "files": 1, "neither": 1, "unknown": 3}
    assert summary.sentence == (
        "6 records ran in 2 environments: 1 in a pinned image, 1 in the files of hopper alone, "
        "1 in other files, of 3 it is unknown (they are of an older version, or their listings are missing); "
        "of the loaded files, packages and modules 3 are those of hopper, 1 differs: torch/lib/libtorch.so; "
        "of 1 object of the system and of Python 1"
    )
    assert [(use.num_records, use.compared, use.packages) for use in summary.uses] == [
        (3, "3 of 4", "torch 2.11.0"),
        (1, "", ""),
    ]
    assert summary.uses[0].modules == (f"flash_attn_3 {'d' * 12}",)


def test_without_a_list_nothing_is_compared(records: list[Record], environments: Environments):
    summary = summary_of(records, environments)
    assert summary.ran == {"pinned": 1, "files": 0, "neither": 2, "unknown": 3} and summary.comparison is None
    assert "2 outside of any, and no list of an image is here to compare their files with" in summary.sentence
    assert summary_of(records[:2], environments, [image()]).sentence.startswith(
        "Where the 2 records ran is unknown"
    )


@pytest.mark.long
def test_the_page_has_them_escaped(records: list[Record], environments: Environments, tmp_path: Path):
    odd = Environments()
    evil = INSTALLED.model_copy(update={"python": "<script>alert(1)</script>"})
    odd.add(listings(evil, LOADED))
    [digest] = listings(evil)
    ran = with_environment(
        records[0], (RankEnvironment(installed=digest, loaded=next(iter(listings(LOADED)))),)
    )
    text = build(
        [ran, *records[1:]], [], tmp_path / "report.html", study_title="", environments=odd
    ).read_text()
    assert "<script>alert(1)" not in text and "&lt;script&gt;alert(1)" in text
    assert f"<code>{digest[:12]}</code>" in text and f"flash_attn_3 {'d' * 12}" in text
    assert "longca.environments" in (tmp_path / "records.parquet").read_bytes().decode("latin-1")


def test_the_command_says_it_first(records: list[Record], tmp_path: Path, longca: Any):
    store = CellStore(tmp_path / "study")
    store.write_listings(listings(INSTALLED, LOADED, OTHER))
    for record in records:
        store.write(record)
    contents = {
        "machine": "x86_64",
        "python": "3.12.3",
        "system": {},
        "packages": {},
        "bytes": 1,
        "files": {"torch/lib/libtorch.so": "a" * 64},
        "modules": [each.model_dump() for each in LOADED.modules],
        "objects": [each.model_dump(mode="json") for each in LOADED.objects],
        "distributions": [each.model_dump() for each in INSTALLED.distributions],
    }
    (tmp_path / "hopper.json").write_text(json.dumps(contents))
    done = longca("environment", store.folder, "--image", tmp_path / "hopper.json")
    assert done.returncode == 1 and done.stdout.startswith(
        "6 records ran in 2 environments: 1 in a pinned image, 1 in the files of hopper"
    )
    answer = json.loads(
        longca("environment", store.folder, "--json", "--image", tmp_path / "hopper.json").stdout
    )
    assert answer["ran"]["files"] == 1 and answer["differing"] == ["torch/lib/libtorch.so"]
    assert longca("environment", store.folder).returncode == 0
    (tmp_path / "hopper.json").write_text(json.dumps(contents | {"objects": 7}))
    wrong = longca("environment", store.folder, "--image", tmp_path / "hopper.json")
    assert wrong.returncode == 2 and "cannot be compared with" in wrong.stderr
