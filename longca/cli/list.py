"""The command `longca list`: the plug-ins that exist."""

from typing import Annotated, Any

import typer

from longca.cli.options import Json, print_json, print_table
from longca.core.errors import unknown
from longca.core.plugin import KINDS, Registry


def _plurals() -> list[str]:
    return [kind.plural for kind in KINDS.values()]


def command(
    kind: Annotated[str | None, typer.Argument(help="masks, kernels, strategies, corpora, figures or claims", show_default=False,
                                               autocompletion=_plurals)] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the file of each")] = False,
    as_json: Json = False,
) -> None:
    """List masks, kernels, strategies, corpora, figures and claims.

    Beside each kernel and strategy stands whether it can run here.
    """
    by_plural = {known.plural: known.name for known in KINDS.values()} | {known.name: known.name for known in KINDS.values()}
    if kind is not None and kind not in by_plural:
        raise unknown("kind", kind, _plurals())
    kinds = [by_plural[kind]] if kind else list(KINDS)
    found = {KINDS[name].plural: [_facts(name, plugin) for plugin in sorted(Registry(name).load_all(), key=_place)] for name in kinds}
    if as_json:
        print_json(found)
        return
    for plural, rows in found.items():
        columns = [key for key in (rows[0] if rows else {"name": ""}) if verbose or key != "file"]
        print_table(f"{len(rows)} {plural}", columns, [[row.get(column) for column in columns] for row in rows])


def _place(plugin: Any) -> tuple[float, str]:
    """Sort key: plug-ins with a number first, by that number, then the others by name."""
    number = getattr(plugin, "number", None)
    return (float("inf") if number is None else number), plugin.name


def _facts(kind: str, plugin: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": plugin.name}
    if kind == "mask":
        facts |= {"no.": plugin.number, "family": plugin.family, "visible iff": plugin.definition,
                  "parameters": _parameters(plugin)}
    elif kind == "kernel":
        device = device_type()
        facts |= {"label": plugin.label, "family": plugin.family, "summary": plugin.summary,
                  f"on this {device}": plugin.available(device) or "available"}
    elif kind == "strategy":
        device = device_type()
        facts |= {"label": plugin.label, "summary": plugin.summary, "parameters": _parameters(plugin),
                  f"on this {device}": plugin.available(device) or "available"}
    elif kind == "corpus":
        facts |= {"label": plugin.label, "summary": plugin.summary}
    elif kind == "figure":
        facts |= {"section": plugin.section, "caption": plugin.caption}
    elif kind == "claim":
        facts |= {"no.": plugin.number, "label": plugin.label, "needs": plugin.gpus}
    return facts | {"file": str(plugin.path)}


def _parameters(plugin: Any) -> str:
    """Parameters with their defaults; without one where it is off, or where the plug-in chooses by itself."""
    found = {name: value for name, value in plugin.Params().model_dump().items() if value is not False}
    return ", ".join(name if value is None else f"{name}={value}" for name, value in found.items())


def device_type() -> str:
    """"cuda" if this machine has an NVIDIA GPU that its driver shows, else "cpu"; without importing torch."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return "cuda" if pynvml.nvmlDeviceGetCount() else "cpu"
    except Exception:  # no library, no driver, no device: whatever NVML says, there is no GPU to use
        return "cpu"
