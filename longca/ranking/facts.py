"""The facts of a measurement beside its rate, from columns of the derived table.

One list serves a row, a record and the index of a folder's cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNIT = ("gpus", "hostname", "device_type")
"""the columns that tell one device from another"""
FACTS: dict[str, str] = {
    "device": "device",
    "run": "run_id",
    "playoff": "playoff",
    "rounds": "playoff_rounds",
    "seed": "seed",
    "cell_id": "cell_id",
    "version": "method_version",
    "noise": "noise",
    "disturbed": "disturbed",
    "rests": "duty",
}
"""field of `Measurement` → its column; `unit` follows from `UNIT`"""
COLUMNS = (*FACTS.values(), *UNIT)


def facts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Measurement` that say where, when and of what it is.

    Args:
        values: column → value; what is missing, None or NA is not known. `unit` stands for the columns of
            `UNIT` where it is given.
    """
    known = {field: values.get(column) for field, column in FACTS.items()}
    noise, rounds = number_of(known["noise"]), known["rounds"]
    unit = values["unit"] if "unit" in values else unit_of(*(values.get(column) or "" for column in UNIT))
    return {
        **{field: known[field] or "" for field in ("device", "run", "playoff", "cell_id", "version")},
        "unit": unit,
        "rounds": tuple(rounds) if hasattr(rounds, "__len__") else (),
        "seed": int(seed) if (seed := number_of(known["seed"])) == seed else 0,
        "noise": noise if noise == noise else 0.0,
        "disturbed": known["disturbed"] is True,
        "rests": number_of(known["rests"]) > 0,
    }


def unit_of(gpus: str, hostname: str, device_type: str) -> str:
    """The device itself, as `longca.store.view.View.unit`."""
    return gpus or (hostname if device_type == "cpu" else "")


def number_of(value: Any) -> float:
    """The value as a float; NaN for what is not known."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
