"""Settings of a run, in layers: defaults, config/config.yaml, LONGCA_* variables, the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from longca.core.checkout import home_of_results, in_project
from longca.core.errors import unknown
from longca.core.reading import PREFIX as LIMIT_PREFIX
from longca.core.reading import check_variables
from longca.core.schema import Frozen, merge, parse, read_yaml
from longca.core.site import PREFIX as SITE_PREFIX

Launch = Literal["auto", "local", "torchrun", "srun"]

CONFIG_FILE = Path("config/config.yaml")
PREFIX = "LONGCA_"
VARIABLES = f"{PREFIX}* variables"
NOT_SETTINGS = {"LONGCA_PLUGINS", "LONGCA_CONTAINER", "LONGCA_LOCK", "LONGCA_COMMIT", "LONGCA_LOCKS", "LONGCA_WORKFLOW",
                "LONGCA_TRIALS", "LONGCA_STARTED_AS"}  # read elsewhere


class Config(Frozen):
    """All settings, resolved."""

    study: str = "quick"
    """study to run: a name in config/studies, or a path"""
    results: Path = Path("results")
    """folder of results; each study has its own folder below. By default, and in the file, it is relative to the project: the folder
    that holds `config`"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes the GPU where there is one"""
    launcher: Launch = "auto"
    """who starts the ranks: longca itself on this machine (local), or torchrun or srun, one task a rank; auto takes what is there"""
    shard_minutes: float = Field(15.0, gt=0, le=1e6)
    """estimated minutes of measuring in one job"""
    disturbed: Literal["again", "keep"] = "again"
    """cells whose samples drift, or that were measured while others used the device: the next run measures them again, once; or they are
    kept, marked"""
    image: str = ""
    """container of the workflow's jobs under `--sdm apptainer`, which the Slurm profile has: a name in containers/, a file, or a URL with
    digest; if empty, the one that fits the site's GPUs"""
    image_digest: str = Field("", pattern=r"^(sha256:[0-9a-f]{64})?$")
    """what the image must be; as it was obtained if empty"""
    image_key: str = ""
    """public key (PEM) of whoever must have signed an image that is pulled or given as a file; no signature is asked for if empty"""
    progress: Literal["auto", "rich", "plain"] = "auto"
    """plain lines where there is no terminal or CI is set"""

    @field_validator("results")
    @classmethod
    def _can_be_a_folder(cls, value: Path) -> Path:
        if "\0" in str(value):
            raise ValueError("a folder's name has no NUL")
        return value


class Setting(NamedTuple):
    """One setting in force."""

    name: str
    value: Any
    origin: str
    """the layer that it comes from: default, a file, a variable, an option"""


def load_config(overrides: Mapping[str, Any] | None = None, path: Path | None = None,
                environ: Mapping[str, str] | None = None) -> Config:
    """The settings in force; a missing file is an empty layer, an override of None is not set."""
    layers = _layers(overrides, path, environ)
    for where, layer in layers.items():
        parse(Config, layer, where)  # each alone, so that an error names the layer it stands in
    config = parse(Config, merge(*layers.values()), "Settings")
    *_, from_env, given = layers.values()
    if config.results.is_absolute() or path is not None or "results" in from_env or "results" in given:
        return config
    return config.model_copy(update={"results": home_of_results() / config.results})


def settings(overrides: Mapping[str, Any] | None = None, path: Path | None = None,
             environ: Mapping[str, str] | None = None) -> list[Setting]:
    """The settings in force, each with the layer that it comes from."""
    config, layers = load_config(overrides, path, environ), _layers(overrides, path, environ)
    found = []
    for name in Config.model_fields:
        origin = next((where for where, layer in reversed(layers.items()) if name in layer), "default")
        found.append(Setting(name, getattr(config, name), f"{PREFIX}{name.upper()}" if origin == VARIABLES else origin))
    return found


def _layers(overrides: Mapping[str, Any] | None, path: Path | None, environ: Mapping[str, str] | None) -> dict[str, Any]:
    """The place of a layer → its settings; later ones win: the file, variables, options."""
    path = in_project(CONFIG_FILE) if path is None else path
    environ = os.environ if environ is None else environ
    from_env = {}
    for key, value in environ.items():
        if key.startswith(PREFIX) and key not in NOT_SETTINGS and not key.startswith((SITE_PREFIX, LIMIT_PREFIX)):
            name = key.removeprefix(PREFIX).lower()
            if name not in Config.model_fields:
                raise unknown("environment variable", key, [PREFIX + field.upper() for field in Config.model_fields])
            from_env[name] = value
    check_variables()
    from_file = read_yaml(path) if path.exists() else {}
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    return {str(path): from_file, VARIABLES: from_env, "Options": given}
