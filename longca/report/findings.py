"""Claims that follow from the numbers: the fastest methods, where they are fastest, against how many others, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.store.text import number

if TYPE_CHECKING:
    import pandas as pd


def ranked(data: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The points that have a value, with their place among those that agree in `by`: the highest value is the first.

    Args:
        data: points (`longca.report.series.points`) with a column `method`.

    Returns:
        The points, the best first, with num_methods, place (1 is the first), share (of the best value), lead (over the next value; NA
        for the last) and tied (its value and the best one differ by at most the mean of both interquartile ranges; the best one is
        tied if any other is).
    """
    found = _valued(data).astype({"value": float, "noise": float}).sort_values("value", ascending=False, kind="stable")
    groups = found.groupby(by, sort=False, dropna=False)
    best, noise, behind = groups.value.transform("first"), groups.noise.transform("first"), groups.value.shift(-1)
    place = groups.cumcount() + 1
    found = found.assign(num_methods=groups.value.transform("size"), place=place, share=found.value / best, lead=found.value / behind,
                         tied=(place > 1) & (2 * (best - found.value) <= best * noise + found.value * found.noise))
    ties = found.groupby(by, sort=False, dropna=False).tied.transform("any")
    return found.assign(tied=found.tied | ((found.place == 1) & ties))


def _valued(data: pd.DataFrame) -> pd.DataFrame:
    """The points with a value above 0: the rate of a mask without visible pairs ranks nowhere."""
    return data[data.value.fillna(0).astype(float) > 0]


def leaders(data: pd.DataFrame, by: list[str], most: int = 4) -> list[str]:
    """The methods that are first, or tied with the first, most often; of equals the ones with the highest sum of shares."""
    found = ranked(data, by)
    found = found.assign(wins=(found.place == 1) | found.tied).groupby("method", sort=True)[["wins", "share"]].sum()
    return found.sort_values(["wins", "share"], ascending=False, kind="stable").index[:most].tolist()


def fastest(data: pd.DataFrame, by: list[str], x: str = "seqlen") -> pd.DataFrame:
    """For each combination of `by`, the method with the highest value at the largest x where two methods or more have one.

    Where there is no such x the only method is told, at its largest x: num_methods is then 1, and it has beaten nobody (`contested`).

    Args:
        data: points (`longca.report.series.points`) with columns `method` and `x`.

    Returns:
        by, x, method, value, low, high, num_samples, num_methods, cell_ids, second, lead (value over the second's; NA if it is
        alone) and clear (it is not tied with the second as `ranked` defines it, or is alone).
    """
    import numpy as np

    ok = _valued(data)
    compared = ok[x].where(ok.groupby([*by, x], dropna=False).method.transform("nunique") > 1)
    keys = [ok[name] for name in by]
    at = compared.groupby(keys).transform("max").fillna(ok.groupby(by)[x].transform("max"))
    rows = ranked(ok[ok[x] == at], by)
    best, behind = rows[rows.place == 1], rows[rows.place == 2][[*by, "method", "tied"]]
    found = best.drop(columns="tied").sort_index(kind="stable").merge(behind.rename(columns={"method": "second"}), on=by, how="left")
    found["second"] = found["second"].fillna("").astype(str)
    found["lead"] = found["lead"].where(found.num_methods > 1, np.nan)
    found["clear"] = ~found.tied.eq(True)
    columns = ("method", "value", "low", "high", "num_samples", "cell_ids", "num_methods", "second", "lead", "clear")
    return found[[*by, x, *columns]]


def contested(winners: pd.DataFrame) -> pd.DataFrame:
    """Those that were faster than another method at the same setting."""
    return winners[winners.num_methods > 1]


def rivals(winners: pd.DataFrame) -> str:
    """The number of methods that each of them was compared with: "3", or "4 to 13"."""
    least, most = int(winners.num_methods.min()) - 1, int(winners.num_methods.max()) - 1
    return str(most) if least == most else f"{least} to {most}"


def wins(winners: pd.DataFrame) -> list[tuple[str, int]]:
    """(method, how often it is fastest), most often first."""
    counts = winners.method.value_counts(sort=False)
    return sorted(((str(method), int(count)) for method, count in counts.items()), key=lambda item: (-item[1], item[0]))


def who_wins(winners: pd.DataFrame, what: str = "mask") -> str:
    """"sdpa is fastest on 9 of 13 masks, flex on 4, each against 2 others, by up to 3.1× (2 of them within the noise)"."""
    if not len(winners):
        return "Nothing could be timed"
    names = sorted(set(winners.method))
    winners = contested(winners)
    if not len(winners):
        return f"Only {' and '.join(names)} ran" if len(names) < 3 else "No two methods ran the same cells"
    ranked = wins(winners)
    total = len(winners)
    thing, of, rest = what.partition(" of ")
    things = what if total == 1 else f"{thing}s{of}{rest}"
    first, most = ranked[0]
    sentence = f"{first} is fastest on " + (f"all {total} {things}" if most == total and total > 1 else
                                            f"the one {what}" if total == 1 else f"{most} of {total} {things}")
    sentence += "".join(f", {name} on {count}" for name, count in ranked[1:4])
    open_ones = int((~winners.clear.astype(bool)).sum())
    doubt = f" ({open_ones} of them within the noise)" if open_ones else ""
    others = f"against {rivals(winners)} other{'s' if winners.num_methods.max() > 2 else ''}"
    return f"{sentence}, {others}, by up to {number(winners.lead.astype(float).max(), 2)}×{doubt}"
