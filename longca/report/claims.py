"""Claims that follow from the numbers: the fastest methods, where they are fastest, and by how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.store.text import number

if TYPE_CHECKING:
    import pandas as pd


def fastest(data: pd.DataFrame, by: list[str], x: str = "seqlen") -> pd.DataFrame:
    """For each combination of `by`, the method with the highest value at the largest x where any method has one.

    Args:
        data: points (`longca.report.series.points`) with columns `method` and `x`.

    Returns:
        by, x, method, value, low, high, num_samples, num_methods, cell_ids, second, lead (value over the second's; NA if it is
        alone) and clear (it leads by more than the two spread, or is alone).
    """
    import pandas as pd

    found = []
    ok = data[data.value.notna()]
    for key, group in ok.groupby(by, sort=False):
        rows = group[group[x] == group[x].max()].sort_values("value", ascending=False, kind="stable")
        best, second = rows.iloc[0], rows.iloc[1] if len(rows) > 1 else None
        found.append({
            **dict(zip(by, key, strict=True)), x: best[x],
            **{name: best[name] for name in ("method", "value", "low", "high", "num_samples", "cell_ids")},
            "num_methods": len(rows),
            "second": "" if second is None else second.method, "lead": None if second is None else best.value / second.value,
            "clear": second is None or 2 * (best.value - second.value) > best.value * best.noise + second.value * second.noise})
    columns = ("method", "value", "low", "high", "num_samples", "cell_ids", "num_methods", "second", "lead", "clear")
    return pd.DataFrame(found, columns=[*by, x, *columns])


def wins(winners: pd.DataFrame) -> list[tuple[str, int]]:
    """(method, how often it is fastest), most often first."""
    counts = winners.method.value_counts(sort=False)
    return sorted(((str(method), int(count)) for method, count in counts.items()), key=lambda item: (-item[1], item[0]))


def who_wins(winners: pd.DataFrame, what: str = "mask") -> str:
    """"sdpa is fastest on 9 of 13 masks, flex on 4, by up to 3.1× (2 of them within the noise)"."""
    if not len(winners):
        return "Nothing could be timed"
    if (winners.num_methods == 1).all():
        names = sorted(set(winners.method))
        return f"Only {' and '.join(names)} ran" if len(names) < 3 else "No two methods ran the same cells"
    ranked = wins(winners)
    total = len(winners)
    things = what if total == 1 else f"{what}s"
    first, most = ranked[0]
    sentence = f"{first} is fastest on " + (f"all {total} {things}" if most == total and total > 1 else
                                            f"the one {what}" if total == 1 else f"{most} of {total} {things}")
    sentence += "".join(f", {name} on {count}" for name, count in ranked[1:4])
    open_ones = int((~winners.clear.astype(bool)).sum())
    doubt = f" ({open_ones} of them within the noise)" if open_ones else ""
    return f"{sentence}, by up to {number(winners.lead.astype(float).max(), 2)}×{doubt}"
