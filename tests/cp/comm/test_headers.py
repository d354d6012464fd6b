"""Headers of all ranks in shared memory: those of a process that has ended."""

import multiprocessing
from io import FileIO
from pathlib import Path

import pytest

from longca.cp.comm.headers import SharedHeaders, file_bytes
from longca.cp.comm.process_group import PeerLost

pytestmark = pytest.mark.long


def _posts_once(path: str) -> None:
    headers = SharedHeaders(FileIO(path, "r+"), 1, 2)
    headers.post(b"last words")


def test_a_process_that_has_ended_is_noticed_before_the_timeout(tmp_path: Path):
    path = tmp_path / "headers"
    path.write_bytes(bytes(file_bytes(2)))
    headers = SharedHeaders(FileIO(path, "r+"), 0, 2)
    process = multiprocessing.get_context("forkserver").Process(target=_posts_once, args=(str(path),))
    process.start()
    process.join()
    headers.post(b"first")
    assert headers.read(30.0) == [b"first", b"last words"]
    headers.post(b"second")
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        headers.read(30.0)
    headers.close()
