"""The project is found from any folder, and results go where it is."""

from pathlib import Path

import pytest

from longca.core.plugin import PACKAGE_ROOT
from longca.core.reading import project_root
from longca.lab.studies.checkout import home_of_results
from longca.lab.studies.config import load_config, settings
from longca.lab.studies.study import load_study

CHECKOUT = PACKAGE_ROOT.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a study and settings of its own, and a folder in it."""
    (tmp_path / "mine/config/studies").mkdir(parents=True)
    (tmp_path / "mine/notes/old").mkdir(parents=True)
    (tmp_path / "mine/config/config.yaml").write_text("study: own\nresults: out\n")
    grid = "grids: [{kernel: naive, mask: causal, seqlen: 64, heads: 2}]"
    (tmp_path / "mine/config/studies/own.yaml").write_text(grid)
    return tmp_path / "mine"


@pytest.mark.parametrize("folder", [".", "notes", "notes/old"])
def test_a_project_is_found_from_its_folders(project: Path, monkeypatch: pytest.MonkeyPatch, folder: str):
    monkeypatch.chdir(project / folder)
    monkeypatch.delenv("LONGCA_RESULTS", raising=False)
    config = load_config(environ={})
    assert config.study == "own" and config.results.absolute() == project / "out"
    assert len(load_study("own").cells()) == 2
    assert load_config({"results": Path("here")}, environ={}).results == Path("here"), (
        "what a user types is relative to their folder"
    )
    origins = {setting.name: setting.origin for setting in settings(environ={"LONGCA_DEVICE": "cpu"})}
    assert (
        origins["study"].endswith("config/config.yaml")
        and origins["device"] == "LONGCA_DEVICE"
        and origins["progress"] == "default"
    )


def test_elsewhere_it_is_the_checkout_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert project_root() == CHECKOUT and home_of_results() == Path()
    assert load_study("quick").name == "quick" and load_config(environ={}).results == Path("results")
    monkeypatch.chdir(CHECKOUT / "docs" / "guide")
    assert load_config(environ={}).results == CHECKOUT / "results"
