"""Output of `make newer` about the locks, with an index of its own."""

import subprocess

import pytest

from tools import newer


def index(requirements, python, *options):
    """An index with version 3 of `a`, and version 2 for users who have `b`, too."""
    return "b==1.0\n" + ("a==3.0\n" if "--no-deps" in options else "a==2.0 ; sys_platform == 'linux'\n")


def test_a_package_is_named_with_both_of_its_newest_releases(monkeypatch):
    monkeypatch.setattr(newer, "resolved", index)
    versions = newer.versions("a==1.5 \\\n    --hash=sha256:0\nb==1.0 ; python\n")
    lock = newer.Lock("mine", ("a==1.5", "b==1.0"), "3.11", versions)
    assert newer.newer(lock) == [newer.Row("mine", "a", "1.5", "2.0", "3.0")]


def test_every_lock_has_what_is_asked_of_it():
    locks = newer.locks()
    assert {"torch.lock", "hopper-cu130"} <= {lock.name for lock in locks}
    for lock in locks:
        assert all(wanted.partition("==")[0] in lock.versions for wanted in lock.requirements), lock.name
        assert {"torch", *newer.ALSO} <= lock.versions.keys()


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("uv"), subprocess.CalledProcessError(2, "uv", stderr="error: Failed to fetch: `x`\n")],
)
def test_without_uv_or_the_index_one_line_says_so(error, monkeypatch, capsys):
    def resolved(*_):
        raise error

    monkeypatch.setattr(newer, "resolved", resolved)
    assert newer.main() == newer.CANNOT
    said = capsys.readouterr().err
    assert said.startswith("newer: uv cannot look up releases") and said.count("\n") == 1
