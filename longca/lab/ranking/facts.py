"""The facts of a measurement beside its rate, from columns of the derived table.

One list serves a row, a record and the index of a folder's cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from longca.lab.store import View

UNIT = ("gpus", "hostname", "device_type")
"""the columns that tell one device from another"""


class Fact(NamedTuple):
    """One fact: where it is found. Not by `longca.lab.store.columns`, whose edits must not measure anything
    again."""

    column: str
    of_view: Callable[[View], Any]


FACTS: dict[str, Fact] = {
    "device": Fact("device", lambda v: v.device),
    "run": Fact("run_id", lambda v: v.record.run_id),
    "playoff": Fact("playoff", lambda v: v.record.playoff),
    "rounds": Fact(
        "playoff_rounds", lambda v: tuple(map(float, v.record.turns.rounds)) if v.record.turns else None
    ),
    "seed": Fact("seed", lambda v: v.cell.seed),
    "cell_id": Fact("cell_id", lambda v: v.record.cell_id),
    "version": Fact("method_version", lambda v: v.record.method_version),
    "noise": Fact("noise", lambda v: v.noise),
    "disturbed": Fact("disturbed", lambda v: bool(v.disturbance)),
    "rests": Fact("duty", lambda v: v.samples and v.samples.duty),
}
"""field of `Measurement` → its fact; `unit` follows from `UNIT`"""
COLUMNS = (*(fact.column for fact in FACTS.values()), *UNIT)


def facts_of_view(view: View) -> dict[str, Any]:
    """The same as `facts_of` of the record's row."""
    return facts_of({"unit": view.unit, **{fact.column: fact.of_view(view) for fact in FACTS.values()}})


def facts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Measurement` that say where, when and of what it is.

    Args:
        values: column → value; what is missing, None or NA is not known. `unit` stands for the columns of
            `UNIT` where it is given.
    """
    known: dict[str, Any] = {field: values.get(fact.column) for field, fact in FACTS.items()}
    noise = number_of(known["noise"])
    rounds = known["rounds"]
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
    """The device itself, as `longca.lab.store.view.View.unit`."""
    return gpus or (hostname if device_type == "cpu" else "")


def number_of(value: Any) -> float:
    """The value as a float; NaN for what is not known."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
