"""Settings in layers."""

from pathlib import Path

import pytest

from longca.core.errors import UserError
from longca.lab.studies.config import Config, load_config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("study: from_file\ndevice: cpu\nshard_minutes: 5\nresults: from_file\n")
    return path


def test_defaults(tmp_path: Path):
    assert load_config(path=tmp_path / "none.yaml", environ={}) == Config()
    (tmp_path / "empty.yaml").touch()
    assert load_config(path=tmp_path / "empty.yaml", environ={}) == Config()


def test_each_layer_wins_over_those_before(file: Path):
    environ = {
        "LONGCA_DEVICE": "cuda",
        "LONGCA_RESULTS": "from_env",
        "PATH": "/bin",
        "LONGCA_PLUGINS": "a:b",
        "LONGCA_CONTAINER": "sha256:1",
    }
    config = load_config({"results": "given", "study": None, "progress": "plain"}, file, environ)
    assert config == Config(
        study="from_file", device="cuda", shard_minutes=5.0, results=Path("given"), progress="plain"
    )


def test_the_environment_is_read(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGCA_SHARD_MINUTES", "2.5")
    assert load_config(path=file).shard_minutes == 2.5


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        (
            {},
            {"LONGCA_DEVISE": "cpu"},
            "Unknown environment variable 'LONGCA_DEVISE': did you mean 'LONGCA_DEVICE'",
        ),
        (
            {},
            {"LONGCA_DEVICE": "tpu"},
            "LONGCA_* variables: 'device' = 'tpu': Input should be 'auto', 'cpu' or 'cuda'",
        ),
        ({"device": "tpu"}, {}, "Options: 'device' = 'tpu'"),
        ({"devise": "cpu"}, {}, "Options: unknown key 'devise', did you mean 'device'?"),
        (
            {},
            {"LONGCA_SHARD_MINUTES": "0"},
            "LONGCA_* variables: 'shard_minutes' = '0': Input should be greater than 0",
        ),
    ],
)
def test_a_bad_setting_names_its_layer(
    file: Path, overrides: dict[str, str], environ: dict[str, str], message: str
):
    with pytest.raises(UserError) as caught:
        load_config(overrides, file, environ)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devise: cpu", "unknown key 'devise', did you mean 'device'?"),
        ("- study", "Input should be a valid dictionary"),
        ("shard_minutes: soon", "'shard_minutes' = 'soon'"),
        ("device: tpu", "'device' = 'tpu'"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config({"device": "cpu"}, path, {"LONGCA_SHARD_MINUTES": "3"})
    assert str(caught.value).startswith(f"{path}: {message}")
