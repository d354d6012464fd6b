"""Plug-ins that misbehave, for the worker processes of these tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longca.lab.bench.workers.pool import Pool
from longca.lab.store.cells import CellStore
from tests.helpers.bench.misbehaving import write_plugins


@pytest.fixture(scope="session")
def misbehaving(tmp_path_factory) -> Path:
    """A folder for LONGCA_PLUGINS."""
    return write_plugins(tmp_path_factory.mktemp("plugins"))


@contextmanager
def seen(misbehaving: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(misbehaving))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def plugins(misbehaving: Path) -> Iterator[None]:
    """Worker processes see them, and use one thread."""
    with seen(misbehaving):
        yield


@pytest.fixture(scope="package")
def kept_pool(misbehaving: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Its processes go from module to module, as each one's start takes a second."""
    with seen(misbehaving), pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "LONGCA_LOCKS", str(tmp_path_factory.mktemp("locks"))
        )  # it has its lock as long as it lives
        pool = Pool("cpu", tmp_path_factory.mktemp("logs"))
    with pool:
        yield pool


@pytest.fixture(scope="module")
def pool(plugins: None, kept_pool: Pool) -> Pool:
    return kept_pool


@pytest.fixture
def store(tmp_path) -> CellStore:
    return CellStore(tmp_path / "tiny")
