"""Ends the server that ranks are forked from."""

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="session", autouse=True)
def _fork_server_ends() -> Iterator[None]:
    """With the tests, so that the time of its ranks is part of that of the tests; it would end with this process anyway."""
    yield
    forkserver._forkserver._stop()
