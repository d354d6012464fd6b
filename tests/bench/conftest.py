"""Plug-ins that misbehave, for the worker processes of these tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.misbehaving import write_plugins


@pytest.fixture(scope="session")
def misbehaving(tmp_path_factory) -> Path:
    """A folder for LONGCA_PLUGINS."""
    return write_plugins(tmp_path_factory.mktemp("plugins"))


@pytest.fixture(scope="module")
def plugins(misbehaving: Path) -> Iterator[None]:
    """Worker processes see them, and use one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(misbehaving))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
