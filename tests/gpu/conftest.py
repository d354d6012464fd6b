"""What tests on several GPUs share."""

from collections.abc import Iterator

import pytest

from longca.bench.workers.pool import Pool
from tests.bench.misbehaving import write_plugins


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Processes of ranks that know the misbehaving kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", str(write_plugins(tmp_path_factory.mktemp("plugins"))))
        with Pool("cuda", tmp_path_factory.mktemp("logs")) as pool:
            yield pool
