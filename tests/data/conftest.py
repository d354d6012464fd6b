"""Corpora small enough to count by hand, in a plug-in folder of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOUND = {"label": "Toy", "source": "made up", "bins": [[1, 4, 8], [5, 5, 3], [10, 19, 2]]}


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty plug-in folder that the registry looks into."""
    folder = tmp_path / "plugins"
    monkeypatch.setenv("LONGCA_PLUGINS", str(folder))
    return folder


@pytest.fixture
def write_corpus(plugin_folder: Path) -> Callable[..., Path]:
    """Writes a corpus file, sound but for what is given, and returns its path."""

    def write(name: str = "toy", **changes: Any) -> Path:
        path = plugin_folder / "corpora" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({key: value for key, value in (SOUND | changes).items() if value is not None})
        )
        return path

    return write
