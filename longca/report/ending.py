"""What a finished report says on the terminal: its finding, and whether its controls passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.report.decide import views
from longca.report.series import labelled
from longca.report.tables import ceilings, waits
from longca.store.table import derived
from longca.store.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from longca.core.record import Record


def ending(records: Sequence[Record]) -> list[str]:
    """(the finding, the verdict of the controls) of a page of these records, without what there is nothing of."""
    table = labelled(derived(list(records)))
    decided = views.decision(table)
    return [text for text in (decided.finding if decided else "", controls_text(table)) if text]


def controls_text(table: pd.DataFrame) -> str:
    """Whether the timer was right, and which controls failed; "" without controls.

    Args:
        table: derived, with columns `nominal_ms`, `is_control`, `status` and `error`.
    """
    timed = [row for row in waits(table) if row["status"] == "ok"]
    controls = [*waits(table), *ceilings(table)]
    if not controls:
        return ""
    failed = [row for row in controls if row["status"] != "ok"]
    parts = []
    if timed:
        worst = max(abs(row["time_ms_median"] / row["nominal_ms"] - 1) for row in timed)
        parts.append(f"{plural(len(timed), 'call')} of known length timed within {100 * worst:.2g} %")
    if failed:
        names = ", ".join(dict.fromkeys(f"{row['method']} {row['status']}" for row in failed))
        return f"Controls: {len(failed)} of {len(controls)} failed ({names}). {'; '.join(parts)}".strip()
    return f"Controls: all {len(controls)} passed" + (f"; {parts[0]}." if parts else ".")
