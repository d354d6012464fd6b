"""Labels: masks by name and by the parameters in which those of a table differ; parts joined to one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from longca.core import format_length
from longca.lab.store.text import distinct_names

PAPER_COMPAT = "paper_compat=True"
COMPAT = "paper compat"  # the same in a label
SEPARATOR = " · "  # of the parts of a label


def params_of(text: str) -> dict[str, str]:
    """The parameters of a mask: "window=1024, sink=4"."""
    return dict(pair.split("=", 1) for pair in text.split(", ") if pair)


class MaskName(NamedTuple):
    variant: str
    detail: str
    """the variant, with the requested density if masks of that name differ in it"""
    label: str


def mask_names(masks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], MaskName]:
    """The names of masks with their parameters as texts."""
    params = {key: params_of(key[1]) for key in masks}
    values: dict[tuple[str, str], set[str]] = {}
    for (mask, _), given in params.items():
        for name, value in given.items():
            values.setdefault((mask, name), set()).add(value)
    names = {}
    for (mask, text), given in params.items():
        differing = {name: value for name, value in given.items() if len(values[mask, name]) > 1}
        density = differing.pop("density", None)
        shown = {
            name: "" if value == "True" else f" {_shown(name, value)}"
            for name, value in differing.items()
            if value != "False"
        }
        variant = " · ".join(f"{name.replace('_', ' ')}{value}" for name, value in shown.items())
        detail = join(variant, f"density {density}" if density else "")
        names[mask, text] = MaskName(variant, detail, join(mask, detail))
    return names


def _shown(name: str, value: str) -> str:
    """The value of a mask's parameter as the rest of a page writes it: a window of 1024 tokens is "1K"."""
    return format_length(int(value)) if name == "window" and value.isdigit() else value


def join(*parts: str) -> str:
    """The non-empty parts as one label."""
    return SEPARATOR.join(part for part in parts if part)


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Label of `join` → the same with short names of GPUs, for titles with little room."""
    parts = {label: label.split(SEPARATOR) for label in dict.fromkeys(labels)}
    gpus = {part for of_label in parts.values() for part in of_label if part.startswith("NVIDIA ")}
    names = distinct_names(sorted(gpus))
    return {label: join(*(names.get(part, part) for part in of_label)) for label, of_label in parts.items()}


def is_of_paper(label: str) -> bool:
    """True if the label tells that its mask is defined as in LongCA-bench's released code."""
    return COMPAT in label.split(SEPARATOR)
