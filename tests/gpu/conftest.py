"""Helpers that tests on several GPUs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from longca.lab.bench.workers.pool import Pool
from tests.helpers.bench.misbehaving import write_plugins

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each file whose GPUs are missing is one skipped test, not hundreds. The files are still imported, so
    that they stay correct."""
    num_gpus = torch.cuda.device_count()
    skipped = {}
    for item in items:
        needed = 2 if item.get_closest_marker("multi_gpu") else 1
        if item.path.is_relative_to(FOLDER) and num_gpus < needed:
            skipped.setdefault((item.path, needed), []).append(item)
    for (_, needed), (first, *others) in skipped.items():
        dropped = set(others)
        items[:] = [item for item in items if item not in dropped]
        gpus = f"NVIDIA GPU{'s' * (needed > 1)}"
        reason = f"{len(others) + 1} tests that need {needed} {gpus}, and {num_gpus} are here"
        first.add_marker(
            pytest.mark.skipif(True, reason=reason), append=False
        )  # it is read before the one of its file


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Processes of ranks that know the misbehaving kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(write_plugins(tmp_path_factory.mktemp("plugins"))))
        with Pool("cuda", tmp_path_factory.mktemp("logs")) as pool:
            yield pool
