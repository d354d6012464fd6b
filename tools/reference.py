"""Writes docs/reference from the code: the columns of the derived table, all settings, and the command
line."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel

from tools.described import described_schema
from tools.pages import ROOT

FOLDER = ROOT / "docs/reference"
NOTE = "Made by `make docs` from the code; a test fails when it is stale."
TYPES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "floats": "list of numbers",
}
# read beside the settings; longca.lab.studies.config.NOT_SETTINGS names those that begin with LONGCA_
OTHER_VARIABLES = {
    "LONGCA_PLUGINS": "a folder with your own `kernels`, `masks`, `strategies`, `corpora`, `figures`, "
    "`claims`; several are divided by `:`",
    "LONGCA_CONTAINER": "digest of the container that the process runs in; the workflow sets it, records "
    "name it",
    "LONGCA_LOCK": "digest of the lock that the container was built from; set inside the image",
    "LONGCA_COMMIT": "commit of the code, where there is no Git to ask; a bundle sets it",
    "LONGCA_LOCKS": "folder of the locks of this machine's devices, which all its users must share; "
    "`/tmp/longca-locks` if not set",
    "LONGCA_TRIALS": "how trial imports of plug-ins ended, for the processes that a command starts; set by "
    "it. `none`: there are none",
    "LONGCA_STARTED_AS": "mark of a process that longca has started, and of all that this one starts; set by "
    "longca",
    "LONGCA_RELEASES": "address of all releases, for `longca records get`; a wheel of a release knows it",
    "LONGCA_WORKFLOW": "the workflow that started a run, which ends when that is gone; the workflow sets it",
    "CI": "plain lines of progress, where it is set",
    "TORCH_INDEX": "the package index that `make setup` takes torch from: PyTorch's own of the build for "
    "CPUs, whose hashes longca knows",
    "TORCH_LOCK": "a lock of your own with hashes, for `make setup` to install torch from: with "
    "`TORCH_INDEX` any build",
}


def columns() -> str:
    """docs/reference/columns.md."""
    from longca.lab.store.columns import COLUMNS

    rows = [
        (f"`{column.name}`", TYPES[column.type], column.unit, column.meaning, column.source)
        for column in COLUMNS
    ]
    return _page(
        "Columns",
        "`longca export STUDY` writes one row a record, as `records.parquet`, `records.csv` and "
        "`records.json`; `longca.load` gives the "
        'same in Python, units in `frame.attrs["units"]`. Each column follows from '
        "the records alone. A column that does not apply is empty.",
        "A record leaves out what is as usual: `input_values` normal, `sustained` false, no "
        "`strategy_params`, no `new_tokens`. A table that an older "
        "longca wrote lacks the columns that came later: `reports/h200/h200-cp.parquet` has neither these "
        "four nor those of others' use "
        "of the GPU. `longca.load` makes all columns anew from the records.",
        "In every CSV file of longca, text that begins with `=`, `+`, `-` or `@` and is no number has an "
        "apostrophe before it, since a "
        "spreadsheet would run it as a formula. Numbers stay as they are: `-1.5`. Parquet and JSON hold all "
        "text unchanged.",
        _table(("column", "type", "unit", "meaning", "field of the record"), rows),
    )


def settings() -> str:
    """docs/reference/settings.md."""
    from longca.core import Registry
    from longca.core.reading import LIMITS
    from longca.lab.studies import Config, Measure, Study
    from longca.lab.studies.config import CONFIG_FILE, NOT_SETTINGS, PREFIX
    from longca.lab.studies.grid import Grid
    from longca.lab.studies.site import PREFIX as SITE_PREFIX
    from longca.lab.studies.site import SBATCH, SITE_FILE, Site
    from longca.lab.studies.study import STUDIES

    assert set(OTHER_VARIABLES) >= NOT_SETTINGS
    fields = ("key", "values", "default", "meaning")
    patterns = sorted(
        Registry("mask").load_all(), key=lambda pattern: (pattern.number or float("inf"), pattern.name)
    )
    strategies = Registry("strategy").load_all()
    masks, plans = (
        [(f"`{plugin.name}`", *row) for plugin in plugins for row in _fields(plugin.Params)]
        for plugins in (patterns, strategies)
    )
    return _page(
        "Settings",
        "A wrong key or value ends in one line that names the nearest right one, and exit code 2.",
        "## Settings of a run",
        f"Later layers win: defaults, then `{CONFIG_FILE}`, then environment variables, then options of the "
        f"command.",
        _table(
            (*fields[:1], "variable", *fields[1:]),
            [
                (row[0], f"`{PREFIX}{name.upper()}`", *row[1:])
                for name, row in zip(Config.model_fields, _fields(Config), strict=True)
            ],
        ),
        "## The Slurm site",
        f"Later layers win: sbatch's own variables, then `{SITE_FILE}`, then environment variables. Empty "
        f"settings are left to Slurm. "
        "[Slurm](../guide/slurm.md) tells more.",
        _table(
            (*fields[:1], "variable", "sbatch's", *fields[1:]),
            [
                (
                    row[0],
                    f"`{SITE_PREFIX}{name.upper()}`",
                    f"`{SBATCH[name]}`" if name in SBATCH else "",
                    *row[1:],
                )
                for name, row in zip(Site.model_fields, _fields(Site), strict=True)
            ],
        ),
        "## Other variables",
        _table(
            ("variable", "meaning"),
            [
                (", ".join(f"`{variable}`" for variable in name.split(", ")), meaning)
                for name, meaning in OTHER_VARIABLES.items()
            ],
        ),
        "## Limits",
        "Files from outside may be damaged, or made to harm. Before a file takes memory it is held to these "
        "limits, far beyond what measuring needs. A file beyond one of them ends in a line that names its "
        "variable; of records, the file is named and skipped. A variable takes a whole number of at least 1.",
        _table(
            ("variable", "default", "unit", "of what"),
            [(f"`{limit.variable}`", f"`{limit.default}`", limit.unit, limit.meaning) for limit in LIMITS],
        ),
        "## A study",
        f"A study is a YAML file in `{STUDIES}`, or any path that ends in `.yaml`.",
        _table(fields, _fields(Study)),
        "### A grid",
        "The cells of a grid are the product of its lists; one value may stand for a list of one. A length "
        "is a number of tokens or `8K`, "
        "`1M` (K = 1024).",
        _table(fields, _fields(Grid)),
        "### How cells are measured",
        "The key `measure` of a study.",
        _table(fields, _fields(Measure)),
        "## Parameters of masks",
        "A mask of a grid is a name, or `name: {parameter: value}`. A list of values makes a mask for each.",
        _table(("mask", "parameter", *fields[1:]), masks),
        "## Parameters of strategies",
        "A strategy of a grid is a name, or `name: {parameter: value}`. A list of values makes cells for "
        "each. Other strategies have none. "
        "Values that do not fit the ranks or the heads end as `unsupported`, with the reason.",
        _table(("strategy", "parameter", *fields[1:]), plans),
    )


def command_line() -> str:
    """docs/reference/command-line.md."""
    from longca.lab.cli.main import build_app

    parts = []
    for name, run in _commands():
        parts.append(f"## longca {name}")
        parts += [" ".join(paragraph.split()) for paragraph in (run.__doc__ or "").split("\n\n")]
        params = _params(run)
        arguments = [row[0].strip("`") for row in params if not row[0].startswith("`-")]
        parts.append(
            "    "
            + " ".join(["longca", name, *arguments, *(["[OPTIONS]"] if len(arguments) < len(params) else [])])
        )
        if params:
            parts.append(_table(("argument or option", "value", "default", "meaning"), params))
    epilog = (build_app().info.epilog or "").removeprefix("Exit codes:")
    codes = [code.strip(" .").split(" ", 1) for code in re.split(r", (?=\d)", epilog)]
    return _page(
        "Command line",
        "`longca` lies in `.venv/bin`. `longca COMMAND --help` shows the same. `longca "
        "--install-completion` completes names in your shell.",
        _table(("exit code", "meaning"), codes),
        "Filters (`--kernel`, `--mask` …) take names, globs (`'causal*'`), several of them divided by "
        "commas, and `!` before one that is "
        "left out.",
        *parts,
    )


def _commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """(name, the function that runs it) of each command, those of a group with the group's name before
    theirs."""
    from longca.lab.cli.main import COMMANDS, command_module

    for name in COMMANDS:
        module = command_module(name)
        if hasattr(module, "app"):
            for command in module.app.registered_commands:
                yield f"{name} {command.name or command.callback.__name__}", command.callback
        else:
            yield name, module.command


def _params(run: Callable[..., None]) -> list[tuple[str, str, str, str]]:
    """(argument or option, value, default, meaning) of each parameter of a command."""
    hints = get_type_hints(run, include_extras=True)
    rows = []
    for name, parameter in inspect.signature(run).parameters.items():
        kind = hints[name]
        info = None
        if get_origin(kind) is Annotated:
            kind, info = get_args(kind)[:2]
        if kind is typer.Context:  # of the command line itself, not an argument
            continue
        required = parameter.default is inspect.Parameter.empty
        if isinstance(info, typer.models.OptionInfo):
            # typer takes the first as default
            given = [
                declaration
                for declaration in (info.default, *(info.param_decls or ()))
                if isinstance(declaration, str)
            ]
            shown = ", ".join(f"`{declaration}`" for declaration in given or [f"--{name.replace('_', '-')}"])
        else:
            shown = f"`{name.upper()}`" if required else f"`[{name.upper()}]`"
        kind = next((declaration for declaration in get_args(kind) if type(None) in get_args(kind)), kind)
        several = get_origin(kind) is list
        kind = get_args(kind)[0] if several else kind
        least = f", at least {info.min}" if info is not None and info.min is not None else ""
        value = (
            ""
            if kind is bool
            else {str: "text", int: "whole number", float: "number", Path: "path"}[kind] + least
        )
        default = (
            "required"
            if required
            else ""
            if str(parameter.default) in ("None", "False", "")
            else f"`{parameter.default}`"
        )
        rows.append(
            (
                shown,
                f"{value}, several" if several else value,
                default,
                (info.help if info is not None else "") or "",
            )
        )
    return rows


def _fields(model: Any) -> list[tuple[str, str, str, str]]:
    """(key, values, default, meaning) of each field of a pydantic model."""
    schema = described_schema(model)
    rows = []
    for name, entry in schema.get("properties", {}).items():
        given = model.model_fields[name]
        default = (
            "required" if given.is_required() else _default(given.get_default(call_default_factory=True))
        )
        rows.append(
            (
                f"`{name}`",
                _values(entry, schema.get("$defs", {})),
                default,
                " ".join(entry.get("description", "").split()),
            )
        )
    return rows


def _values(entry: dict[str, Any], named: dict[str, Any]) -> str:
    """The values that a JSON schema lets through, in words."""
    if "$ref" in entry:
        name = entry["$ref"].rsplit("/", 1)[-1]
        return _values(named[name], named) if "enum" in named[name] else name.lower()
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "anyOf" in entry:
        return " or ".join(
            dict.fromkeys(_values(option, named) for option in entry["anyOf"] if option.get("type") != "null")
        )
    if entry.get("type") == "array":
        return f"list: {_values(entry['items'], named)}"
    if entry.get("type") == "object":
        return "mapping"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}[
        entry["type"]
    ]
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [
        f"{word} {entry[key]:,.12g}" if entry[key] < 1 << 40 else ""
        for key, word in bounds.items()
        if key in entry
    ]
    return ", ".join([words if entry.get("format") != "path" else "path", *filter(None, limits)])


def _default(value: Any) -> str:
    if isinstance(value, BaseModel) or value in (None, "", (), {}):
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{element}`" for element in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _page(title: str, *parts: str) -> str:
    return (
        "\n\n".join(
            [
                f"# {title}",
                NOTE,
                "<!-- begin generated -->",
                *(part for part in parts if part),
                "<!-- end generated -->",
            ]
        )
        + "\n"
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header)]
    lines += [
        ["---"] * len(lines[0]),
        *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PAGES: dict[Path, Callable[[], str]] = {
    FOLDER / "columns.md": columns,
    FOLDER / "settings.md": settings,
    FOLDER / "command-line.md": command_line,
}


if __name__ == "__main__":
    for path, content in PAGES.items():
        path.write_text(content(), encoding="utf-8")
