import subprocess
import tomllib
from pathlib import Path

import pytest

from longca.lab.studies import checkout
from longca.lab.studies.checkout import COMMIT, COMMIT_FILE, described, source

SHA = "0a" * 20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    monkeypatch.delenv(COMMIT, raising=False)
    return tmp_path


def test_a_folder_that_is_no_checkout_has_no_commit(root):
    commit = source.__wrapped__()
    assert (commit.git_sha, commit.git_dirty, described(commit)) == (None, None, "")


@pytest.mark.parametrize(("told", "dirty"), [(SHA, False), (f"{SHA}-dirty", True)])
def test_a_copy_says_where_it_comes_from(root, monkeypatch, told, dirty):
    (root / COMMIT_FILE).write_text(f"{told}\n")
    commit = source.__wrapped__()
    assert (commit.git_sha, commit.git_dirty, described(commit)) == (SHA, dirty, told)
    monkeypatch.setenv(COMMIT, "ff" * 20)
    assert source.__wrapped__().git_sha == "ff" * 20, "the variable comes first"


def test_a_checkout_knows_its_commit_and_changes(root):
    (root / "file").write_text("one")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", root, *arguments], check=True)
    first = source.__wrapped__()
    assert len(first.git_sha or "") == 40 and first.git_dirty is False
    (root / "file").write_text("two")
    assert source.__wrapped__().git_dirty is True


def test_without_git_a_checkout_has_no_commit(root, monkeypatch):
    (root / ".git").mkdir()
    monkeypatch.setenv("PATH", str(root))
    assert source.__wrapped__().git_sha is None


def test_one_version():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == source().version
