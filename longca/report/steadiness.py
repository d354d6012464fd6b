"""What the page says of its samples: drift, the precision of medians, rests, and clocks that were not steady."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.core.sampling import DRIFT_SHARE, FEWEST_FOR_DRIFT
from longca.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

PRECISE_PERCENT = 0.5
MOST_NAMED = 5  # cells that drift most


@dataclass(frozen=True)
class Drifting:
    """A cell whose samples drift."""

    cell_id: str
    text: str
    """"+4.2 %" """


@dataclass(frozen=True)
class Steadiness:
    """Sentences about the samples of a page, and the cells that drift most."""

    sentences: tuple[str, ...]
    drifting: tuple[Drifting, ...]


def steadiness(table: pd.DataFrame) -> Steadiness:
    """The steadiness of all results of a page.

    Args:
        table: the derived table, one row a record.
    """
    timed = table[table.status == "ok"]
    drifting = timed[timed.drift.isin(("rising", "falling"))]
    order = drifting.drift_percent.astype(float).abs().sort_values(ascending=False, kind="stable").index[:MOST_NAMED]
    named = tuple(Drifting(row.cell_id, f"{row.drift_percent:+.1f} %") for row in drifting.loc[order].itertuples())
    return Steadiness(tuple(filter(None, (_of_drift(timed, drifting), _of_precision(timed), _of_rests(timed), _of_clocks(timed)))), named)


def _of_drift(timed: pd.DataFrame, drifting: pd.DataFrame) -> str:
    known = int((timed.drift != "unknown").sum())
    unknown = len(timed) - known
    rest = f" Of {unknown:,} more it is not known: they have fewer than {FEWEST_FOR_DRIFT} samples." if unknown and known else ""
    if not known:
        return (f"Whether samples drift is not known of any result: each has fewer than {FEWEST_FOR_DRIFT}." if unknown else "")
    verb = "drifts" if len(drifting) == 1 else "drift"
    return (f"{len(drifting):,} of {plural(known, 'result')} {verb}: samples get slower or faster in the order measured, by more than "
            f"{100 * DRIFT_SHARE:g} % from the first third to the last (Mann and Kendall's test, 1 %). Their numbers stand.{rest}")


def _of_precision(timed: pd.DataFrame) -> str:
    known = timed.precision_percent.dropna().astype(float)
    if not len(known):
        return ""
    return (f"The 95 % interval of the median lies within {PRECISE_PERCENT:g} % of it in {int((known <= PRECISE_PERCENT).sum()):,} of "
            f"{plural(len(known), 'result')} with six samples or more.")


def _of_rests(timed: pd.DataFrame) -> str:
    on_gpu = timed[(timed.device_type == "cuda") & ~timed.sustained.astype(bool)]
    rested = on_gpu[on_gpu.duty.notna()]
    if not len(on_gpu):
        return ""
    if not len(rested):
        return ("Calls followed each other without rests. Under long ones a power controller lowers the clock (3 to 9 % on an H100): "
                "their times are not comparable with those of calls that rest.")
    shares = "/".join(f"{100 * share:g}" for share in sorted(set(rested.duty.astype(float))))
    mixed = len(on_gpu) - len(rested)
    rest = f" {plural(mixed, 'result')} had no rests, and {'is' if mixed == 1 else 'are'} not comparable with these." if mixed else ""
    return f"GPUs rested after each call, busy for at most {shares} % of the time.{rest}"


def _of_clocks(timed: pd.DataFrame) -> str:
    tested = timed.steady.dropna().astype(bool)
    unsteady = int((~tested).sum())
    return f"In {unsteady:,} of {plural(len(tested), 'result')} times or clock were not steady yet when samples began." if unsteady else ""
