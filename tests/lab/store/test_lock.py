"""The lock of a results folder: who holds it is told, whatever has been signed."""

import errno
import os
import re

import pytest

from longca.core.errors import UserError
from longca.lab.store.cells import CellStore
from longca.lab.store.lock import holders
from tests.helpers.store.started import start

HOLD = """
import sys, time
from longca.lab.store.cells import CellStore
with CellStore(sys.argv[1]).lock(sys.argv[2] or None):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_and_told_who_runs(tmp_path):
    first = start(HOLD, str(tmp_path), "")
    try:
        with (
            pytest.raises(UserError, match=f"pid {first.pid} on .*, since 2") as caught,
            CellStore(tmp_path).lock(),
        ):
            pass
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=f"pid {first.pid}"), CellStore(tmp_path).lock("a"):
            pass
    finally:
        first.kill()
        first.wait()
    with CellStore(tmp_path).lock():  # what a killed run held is free
        pass


@pytest.mark.parametrize("part", [None, "a"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "FIFO"])
def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path, kind, part):
    """Otherwise, a user who can write to a shared folder could empty another user's file."""
    other = tmp_path / "precious"
    results = tmp_path / "results"
    results.mkdir()
    lock = results / (".lock" if part is None else f".lock.{part}")
    if kind != "dangling link":
        other.write_text("of somebody else")
    {"hard link": lambda: lock.hardlink_to(other), "FIFO": lambda: os.mkfifo(lock)}.get(
        kind, lambda: lock.symlink_to(other)
    )()
    expected = rf"Cannot write .*'{re.escape(lock.name)}' in it is (a|no) .*remove it"
    with pytest.raises(UserError, match=expected), CellStore(results).lock(part):
        pass
    assert holders(results) == []
    assert other.exists() == (kind != "dangling link") and (
        not other.exists() or other.read_text() == "of somebody else"
    )


def test_a_second_run_waits_if_told_to(tmp_path):
    first = start(HOLD, str(tmp_path), "")
    said = []

    def announce(line: str) -> None:
        said.append(line)
        first.kill()

    with CellStore(tmp_path).lock(wait=True, announce=announce):
        assert len(said) == 1 and f"pid {first.pid}" in said[0]
    first.wait()


def test_parts_run_beside_each_other_but_not_beside_the_whole(tmp_path):
    store = CellStore(tmp_path)
    first = start(HOLD, str(tmp_path), "a")
    try:
        with store.lock("b"):
            pass
        for part in ("a", None):
            with pytest.raises(UserError, match=f"pid {first.pid}"), store.lock(part):
                pass
    finally:
        first.kill()
        first.wait()
    with store.lock("a"):
        pass


def test_locks_that_cannot_be(tmp_path, monkeypatch):
    def refuse(number: int) -> None:
        def flock(file: object, mode: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("longca.lab.store.lock.fcntl.flock", flock)

    for number in (errno.ENOLCK, errno.EIO):
        refuse(number)
        with pytest.raises(UserError, match="Cannot lock"), CellStore(tmp_path).lock():
            pass


def test_a_disk_too_full_to_sign_the_lock(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("longca.lab.store.lock.os.pwrite", full)
    with pytest.raises(UserError, match="No space left"), CellStore(tmp_path).lock():
        pass


def test_a_holder_that_has_not_signed_is_still_a_holder(tmp_path):
    first = start(HOLD, str(tmp_path), "")
    (tmp_path / ".lock").write_text("")
    try:
        with pytest.raises(UserError, match="has not signed yet"), CellStore(tmp_path).lock():
            pass
    finally:
        first.kill()
        first.wait()


@pytest.mark.parametrize(
    "content",
    [
        "[" * 4000,
        "[]",
        "9" * 4000,
        '{"pid": 1, "host": "h"}',
        '{"pid": "\\u001b[2J\\n", "host": "' + "y" * 2000 + '", "since": "x"}',
    ],
)
def test_whatever_a_holder_signs_is_told_in_one_plain_line(tmp_path, content):
    with CellStore(tmp_path).lock():
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(UserError) as refusal, CellStore(tmp_path).lock():
            pass
        (signed,) = holders(tmp_path)
    assert signed in str(refusal.value) and signed.isprintable() and len(signed) < 600
