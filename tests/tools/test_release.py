"""The files of a release, and what describes the project to others: versions, names and licences agree."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from longca.core.errors import UserError
from longca.core.version import VERSION
from longca.lab.archive.release_records import get_records
from tests.helpers.support import ROOT
from tools.release import SUMS, release, version_of, versions

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
SPDX = "https://spdx.org/licenses/"


def test_all_descriptions_of_the_project_agree():
    assert set(versions().values()) == {VERSION}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    codemeta, zenodo = (json.loads((ROOT / name).read_text()) for name in ("codemeta.json", ".zenodo.json"))
    assert citation["title"] == codemeta["name"] == zenodo["title"] and citation["title"].startswith(
        project["name"]
    )
    assert citation["abstract"] == codemeta["description"] == zenodo["description"] == project["description"]
    assert (
        citation["license"]
        == codemeta["license"].removeprefix(SPDX)
        == zenodo["license"]
        == project["license"]
    )
    assert citation["keywords"] == codemeta["keywords"] == zenodo["keywords"] == project["keywords"]
    authors = [
        [author["name"] for author in listed]
        for listed in (citation["authors"], codemeta["author"], zenodo["creators"], project["authors"])
    ]
    assert all(names == authors[0] for names in authors)
    assert citation.get("doi") == codemeta.get("identifier")


def test_a_tag_must_name_the_version_and_the_changes():
    assert version_of(ROOT) == version_of(ROOT, f"v{VERSION}") == VERSION
    with pytest.raises(UserError, match=r"the tag 'v9\.9\.9'"):
        version_of(ROOT, "v9.9.9")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_targets_that_are_there_and_actions_by_commit(path: Path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    targets = {
        word
        for step in steps
        for line in step.get("run", "").splitlines()
        for word in line.split()[1:2]
        if line.startswith("make ")
    }
    makefile = (ROOT / "Makefile").read_text()
    assert targets and all(f"\n{target}" in makefile or f" {target}" in makefile for target in targets)
    used = [step["uses"].partition("@")[2] for step in steps if "uses" in step]
    assert used and all(len(commit) == 40 and int(commit, 16) for commit in used)


@pytest.mark.slow
def test_a_release_is_whole_and_its_records_can_be_got(tmp_path: Path):
    files = release(tmp_path / "release")
    names = {file.name for file in files}
    assert names == {
        f"longca-{VERSION}-py3-none-any.whl",
        f"longca-{VERSION}.tar.gz",
        SUMS,
        *(f"longca-{VERSION}-{kind}.tar.gz" for kind in ("records", "pages", "images")),
    }
    fetched = get_records(tmp_path / "mine", str(tmp_path / "release"))
    assert tmp_path / "mine/reports/h100/h100-dense.parquet" in fetched.files
    assert (tmp_path / "mine/reports/h100/h100-dense.parquet").read_bytes() == (
        ROOT / "reports/h100/h100-dense.parquet"
    ).read_bytes()
    sums = (tmp_path / "release" / SUMS).read_bytes()
    [records] = [file for file in files if file.name.endswith("-records.tar.gz")]
    packed = records.read_bytes()
    release(tmp_path / "release")
    assert records.read_bytes() == packed and len(sums.splitlines()) == len(names) - 1, (
        "equal commits give equal archives"
    )
