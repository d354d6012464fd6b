"""Settings of a run, in layers: defaults, config/config.yaml, LONGCA_* variables, the command line."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from longca.core import Frozen, merge, parse, read_yaml, unknown
from longca.core.reading import PREFIX as LIMIT_PREFIX
from longca.core.reading import check_variables, in_project
from longca.lab.studies.checkout import home_of_results
from longca.lab.studies.site import PREFIX as SITE_PREFIX

Launch = Literal["auto", "local", "torchrun", "srun"]

CONFIG_FILE = Path("config/config.yaml")
PREFIX = "LONGCA_"
VARIABLES = f"{PREFIX}* variables"
NOT_SETTINGS = {
    "LONGCA_PLUGINS",
    "LONGCA_CONTAINER",
    "LONGCA_LOCK",
    "LONGCA_COMMIT",
    "LONGCA_LOCKS",
    "LONGCA_WORKFLOW",
    "LONGCA_TRIALS",
    "LONGCA_STARTED_AS",
    "LONGCA_RELEASES",
}  # read elsewhere


class Config(Frozen):
    """All settings, resolved."""

    study: str = "quick"
    """study to run: a name in config/studies, or a path"""
    results: Path = Path("results")
    """folder of results, with a sub-folder for each study. By default, and in the file, it is relative to the
    project: the folder that contains `config`"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto uses the GPU if there is one"""
    launcher: Launch = "auto"
    """launcher of the ranks: longca itself on this machine (local), or torchrun or srun, one task for each
    rank; auto detects it"""
    shard_minutes: float = Field(default=15.0, gt=0, le=1e6)
    """estimated minutes of measuring in one job"""
    disturbed: Literal["again", "keep"] = "again"
    """cells whose samples drift, or that other processes disturbed: the next run measures them again, once;
    or they are kept and marked"""
    image: str = ""
    """container of the workflow's jobs under `--sdm apptainer` (set in the Slurm profile): a name in
    containers/, a file, or a URL with digest; if empty, the one for the site's GPUs"""
    image_digest: str = Field(default="", pattern=r"^(sha256:[0-9a-f]{64})?$")
    """required digest of the image; if empty, that of the obtained image"""
    image_key: str = ""
    """public key (PEM) of the required signature of an image that is pulled or given as a file; if empty, no
    signature is required"""
    progress: Literal["auto", "rich", "plain"] = "auto"
    """plain lines without a terminal or if CI is set"""

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
    """its source: default, a file, a variable, an option"""


def load_config(
    overrides: Mapping[str, Any] | None = None,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The settings in force; a missing file is an empty layer, an override of None is ignored."""
    layers = _layers(overrides, path, environ)
    for where, layer in layers.items():
        parse(Config, layer, where)  # separately, so that an error names its layer
    config = parse(Config, merge(*layers.values()), "Settings")
    *_, from_env, given = layers.values()
    if config.results.is_absolute() or path is not None or "results" in from_env or "results" in given:
        return config
    return config.model_copy(update={"results": home_of_results() / config.results})


def settings(
    overrides: Mapping[str, Any] | None = None,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Setting]:
    """The settings in force, each with its source."""
    config = load_config(overrides, path, environ)
    layers = _layers(overrides, path, environ)
    made = []
    for name in Config.model_fields:
        origin = next((where for where, layer in reversed(layers.items()) if name in layer), "default")
        made.append(
            Setting(name, getattr(config, name), f"{PREFIX}{name.upper()}" if origin == VARIABLES else origin)
        )
    return made


def _layers(
    overrides: Mapping[str, Any] | None, path: Path | None, environ: Mapping[str, str] | None
) -> dict[str, Any]:
    """Source → settings of a layer; later layers win: the file, variables, options."""
    path = in_project(CONFIG_FILE) if path is None else path
    environ = os.environ if environ is None else environ
    from_env = {}
    for key, value in environ.items():
        if (
            key.startswith(PREFIX)
            and key not in NOT_SETTINGS
            and not key.startswith((SITE_PREFIX, LIMIT_PREFIX))
        ):
            name = key.removeprefix(PREFIX).lower()
            if name not in Config.model_fields:
                raise unknown(
                    "environment variable", key, [PREFIX + field.upper() for field in Config.model_fields]
                )
            from_env[name] = value
    check_variables()
    from_file = read_yaml(path) if path.exists() else {}
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    return {str(path): from_file, VARIABLES: from_env, "Options": given}
