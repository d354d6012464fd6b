"""A plug-in folder with one of each kind that studies name, and a study that uses them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

KERNEL = """
from longca.kernels.contract import Kernel
class Toy(Kernel):
    label = "Toy kernel"
"""
STRATEGY = """
from longca.cp.contract import Strategy
class Toy(Strategy):
    label = "Toy strategy"
"""
MESH = """
from longca.core.schema import Frozen
from longca.cp.contract import Strategy
class Toy(Strategy):
    label = "Toy mesh"
    class Params(Frozen):
        heads: int | None = None
        windows: int = 1
"""
MASK = """
from longca.core.schema import Frozen
from longca.masks.contract import Pattern
class Toy(Pattern):
    family, definition = "regular", "never"
    uses_documents = {documents}
    class Params(Frozen):
        step: int = 4
        share: float = 0.5
    def check(self, seqlen, params):
        if seqlen % params.step:
            raise ValueError(f"the length must be divisible by {{params.step}}")
"""
CORPUS = '{"label": "Toy", "source": "made up", "bins": [[1, 9, 5]]}'

GRID = {"kernel": "toy_kernel", "mask": "toy_mask", "seqlen": "1K", "heads": "8:2"}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in LONGCA_PLUGINS that holds toy_kernel, toy_strategy, toy_mesh, toy_mask, toy_documents and
    toy_corpus."""
    files = {
        "kernels/toy_kernel.py": KERNEL,
        "strategies/toy_strategy.py": STRATEGY,
        "strategies/toy_mesh.py": MESH,
        "corpora/toy_corpus.json": CORPUS,
        "masks/toy_mask.py": MASK.format(documents=False),
        "masks/toy_documents.py": MASK.format(documents=True),
    }
    folder = tmp_path / "plugins"
    for position, text in files.items():
        path = folder / position
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("LONGCA_PLUGINS", str(folder))
    return folder


@pytest.fixture
def write_study(tmp_path: Path) -> Callable[..., Path]:
    """Writes a study of grids that are sound but for what is given, and returns its path."""

    def write(*grids: dict[str, Any], **study: Any) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(study | {"grids": [GRID | grid for grid in grids or ({},)]}))
        return path

    return write
