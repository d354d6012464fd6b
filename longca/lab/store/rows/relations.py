"""The columns of a row that follow from other rows too, or from the peaks of GPUs in `config/hardware.yaml`.

They are computed from the other columns each time, since a new record of a control changes those of every
row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from longca.core import Hardware

RELATED = (
    "peak_tflops",
    "peak_percent",
    "ceiling_tflops",
    "ceiling_gb_per_s",
    "ceiling_percent",
    "single_tflops",
    "single_percent",
)
BASELINE = "_baseline"  # the id of the same cell on one GPU; "" without context parallelism
NEEDED = (
    "study",
    "device",
    "device_uuid",
    "dtype",
    "cell_id",
    "started_at",
    "is_control",
    "tflops",
    "tflops_per_device",
    "gb_per_s",
    "num_samples",
    "playoff",
    "repeat",
    "duty",
    BASELINE,
)
Key = tuple[str, str, str]
Rates = dict[Key, float]
Singles = dict[tuple[*Key, bool], float]


def related(values: Mapping[str, Sequence[Any]], hardware: Hardware) -> dict[str, list[Any]]:
    """The columns `RELATED`.

    Ceilings are the highest rates of the controls of a study, device and dtype, by median times. A device is
    compared with its own controls, or with those of its model if it has none. Copies apply to all dtypes. The
    rate on a single GPU is that of the same kernel in the same study, on the same model of device, with the
    same mask (so all tokens of the sequence), heads and direction, by the same protocol: with rests of the
    GPU after each call, or without. The last of several records counts.

    Args:
        values: the columns `NEEDED`, a value for each row.
        hardware: peaks of GPUs by their makers.
    """
    rows = list(zip(*(values[name] for name in NEEDED[:5]), strict=True))
    products, copies = _ceilings(rows, values)
    singles = _singles(rows, values)
    peak = functools.cache(hardware.peak_tflops)
    bandwidth = functools.cache(hardware.bandwidth_gb_s)
    columns: dict[str, list[Any]] = {name: [] for name in RELATED}
    add = [columns[name].append for name in RELATED]
    measured = zip(
        *(values[name] for name in ("is_control", "tflops_per_device", "gb_per_s", BASELINE, "duty")),
        strict=True,
    )
    for (study, device, uuid, dtype, _), (is_control, rate, gb_per_s, baseline, duty) in zip(
        rows, measured, strict=True
    ):
        peak_tflops = peak(device, dtype)
        own = f"{device} {uuid}"
        product = _highest(products, (study, own, dtype), (study, device, dtype))
        copy = _highest(copies, (study, own, ""), (study, device, ""))
        single = singles.get((study, device, baseline, bool(duty))) if baseline else None
        share = _percent(rate, peak_tflops) if gb_per_s is None else _percent(gb_per_s, bandwidth(device))
        row = (
            peak_tflops,
            share,
            product,
            copy,
            None if is_control else _percent(rate, product),
            single,
            _percent(rate, single),
        )
        for append, value in zip(add, row, strict=True):
            append(value)
    return columns


def _ceilings(rows: Sequence[tuple[str, ...]], values: Mapping[str, Sequence[Any]]) -> tuple[Rates, Rates]:
    """(TFLOP/s of products, GB/s of copies) of each device itself, and of each model."""
    products: Rates = {}
    copies: Rates = {}
    for number, is_control in enumerate(values["is_control"]):
        if is_control:
            study, device, uuid, dtype, _ = rows[number]
            for name in (device, f"{device} {uuid}"):
                _raise(products, (study, name, dtype), values["tflops"][number])
                _raise(copies, (study, name, ""), values["gb_per_s"][number])
    return products, copies


def _singles(rows: Sequence[tuple[str, ...]], values: Mapping[str, Sequence[Any]]) -> Singles:
    """(study, device, cell, whether the GPU rested after each call) → TFLOP/s on one GPU, for the cells that
    others are compared with."""
    wanted = {baseline for baseline in values[BASELINE] if baseline}
    numbers = [
        number
        for number, (row, count, playoff, is_repeat) in enumerate(
            zip(rows, values["num_samples"], values["playoff"], values["repeat"], strict=True)
        )
        if row[4] in wanted and count is not None and not playoff and not is_repeat
    ]
    rates: Singles = {}
    for number in sorted(numbers, key=values["started_at"].__getitem__):
        study, device, _, _, cell_id = rows[number]
        rate = values["tflops"][number]
        if rate is not None:
            rates[study, device, cell_id, bool(values["duty"][number])] = rate
    return rates


def _highest(rates: Rates, own: Key, model: Key) -> float | None:
    rate = rates.get(own)
    return rates.get(model) if rate is None else rate


def _percent(rate: float | None, limit: float | None) -> float | None:
    return 100 * rate / limit if rate is not None and limit else None


def _raise(highest: Rates, key: Key, rate: float | None) -> None:
    if rate is not None:
        highest[key] = max(rate, highest.get(key, 0.0))
