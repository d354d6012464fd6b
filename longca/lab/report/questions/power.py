"""The part of a rate that the power limit decides: the same calls with inputs of several values, alone and
without a pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core import format_length
from longca.lab.report.rates import RATE
from longca.lab.report.series import grouped, labelled, points
from longca.lab.store.text import number, plural

if TYPE_CHECKING:
    import pandas as pd

VALUES = {
    "normal": "standard normal",
    "small": "1 % of normal",
    "signs": "±1",
    "constant": "all 1",
}  # from the most power to the least
SETTING = ["method", "direction", "seqlen", "mask_label", "setting"]
CASE = [*SETTING, "sustained", "input_values"]
RATIOS = ("rate_ratio", "clock_ratio")


def power(table: pd.DataFrame) -> pd.DataFrame:
    """Rate, clock and power of each case of the studies that ran inputs of several values, or calls without a
    pause.

    Returns:
        One row for each of `CASE`, as `longca.lab.paper.analysis.select.rates` has them, with clock_mhz,
        power_w, capped (True if the power limit held the clock back), device, and rate and clock over those
        of standard normal inputs of the same setting and pace.
    """
    import pandas as pd

    of_kernels = table.loc[(table.kind == "kernel") & ~table.is_control.astype(bool)]
    asides = of_kernels.loc[(of_kernels.input_values != "normal") | of_kernels.sustained.astype(bool)]
    rows = labelled(
        of_kernels.loc[of_kernels.study.isin(set(asides.study)) & of_kernels.sm_clock_mhz_median.notna()]
    )
    if not len(rows):
        return pd.DataFrame()
    rows["capped"] = rows.clock_event_reasons.astype(str).str.contains("PowerCap")
    state = (
        rows.groupby(CASE)
        .agg(
            clock_mhz=("sm_clock_mhz_median", "median"),
            power_w=("power_w_median", "median"),
            capped=("capped", "any"),
            device=("device", "first"),
        )
        .reset_index()
    )
    data = points(rows, CASE, *RATE, unit="TFLOP/s").merge(state, on=CASE)
    normal = data.loc[data.input_values == "normal", [*SETTING, "sustained", "value", "clock_mhz"]]
    data = data.merge(normal, on=[*SETTING, "sustained"], how="left", suffixes=("", "_normal"))
    data["rate_ratio"] = data.value.astype(float) / data.pop("value_normal").astype(float)
    data["clock_ratio"] = data.clock_mhz / data.pop("clock_mhz_normal")
    data["kind_order"] = data.input_values.map(list(VALUES).index)
    return (
        data.sort_values([*SETTING, "sustained", "kind_order"], kind="stable")
        .drop(columns="kind_order")
        .reset_index(drop=True)
    )


@dataclass(frozen=True)
class Effect:
    """The effect of other values than standard normal ones on sustained calls: medians over settings."""

    values: str
    rate: float
    clock: float
    num: int


def effects(data: pd.DataFrame) -> list[Effect]:
    """Those of each kind of values that ran beside standard normal ones without a pause, the strongest
    first."""
    found = []
    for (values,), rows in grouped(
        data.loc[data.sustained.astype(bool) & (data.input_values != "normal")], ["input_values"]
    ):
        known = rows.dropna(subset=list(RATIOS))
        if len(known):
            found.append(
                Effect(
                    str(values),
                    float(known.rate_ratio.median()),
                    float(known.clock_ratio.median()),
                    len(known),
                )
            )
    return sorted(found, key=lambda effect: -effect.rate)


def values_finding(data: pd.DataFrame) -> str:
    """The finding about values: how much quicker, and how much of that is the clock."""
    of_values = effects(data)
    if not of_values:
        return "No setting ran without a pause on several kinds of values"
    texts = [
        f"{number(effect.rate, 3)}× at {number(effect.clock, 3)}× the clock ({VALUES[effect.values]})"
        for effect in of_values
    ]
    at_limit = data.loc[data.sustained.astype(bool) & (data.input_values == "normal")]
    return (
        f"The power limit holds back {int(at_limit.capped.sum())} of {len(at_limit)} settings with standard "
        "normal inputs; the same calls on other values run faster, in the median as much as the "
        f"clock does: {', '.join(texts)}"
    )


def pace_finding(data: pd.DataFrame) -> str:
    """The finding about the pace: what a pause between calls is worth, by length."""
    normal = data.loc[data.input_values == "normal"]
    both = normal.loc[~normal.sustained.astype(bool)].merge(
        normal.loc[normal.sustained.astype(bool)], on=SETTING, suffixes=("_alone", "_sustained")
    )
    if not len(both):
        return "No setting ran both alone and without a pause"
    both["pace"] = both.value_sustained.astype(float) / both.value_alone.astype(float)
    texts = [
        f"{number(float(rows.pace.min()), 3)}–{number(float(rows.pace.max()), 3)}× at "
        f"{format_length(int(length))}"
        for (length,), rows in grouped(both, ["seqlen"])
    ]
    return (
        f"Without a pause between calls, standard normal inputs reach {' and '.join(texts)} of the rate of "
        f"calls timed alone ({plural(len(both), 'setting')})"
    )
