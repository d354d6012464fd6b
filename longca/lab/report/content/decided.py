"""The first picture of a page: its heat map and its ranking without a script, and the script's data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca.lab.report.content.blanks import words_text
from longca.lab.report.content.packing import compressed
from longca.lab.report.decide.heat_map import ALONE
from longca.lab.report.decide.script import caption, described, views_json
from longca.lab.report.decide.views import Decision
from longca.lab.store.text import percent
from longca.lab.studies.samples import NOISY

if TYPE_CHECKING:
    from longca.lab.report.series import Unit

LONE = "“only”: no other method ran that mask, so it does not count."
OF_RANKS = "Rates are of one rank; a call lasts as long as its slowest rank."
REPEATS = (
    "Rows “paper compat” show a mask again, in the definition of LongCA-bench's released code; not every "
    "method was measured there, so that counts, worst shares and families exclude them. "
)


@dataclass(frozen=True)
class Decided:
    """The first picture of a page."""

    decision: Decision
    caption: str
    described: str
    views: str
    """compressed JSON of all views"""
    lone: str
    """a sentence on results without a rival; "" if there are none"""
    noisy: str
    """the spread above which a result is noisy"""
    of_ranks: str
    """a sentence on the rates of ranks; "" for kernels alone"""
    repeats: str
    """a sentence on masks that are shown again in another definition; "" without them"""
    blanks: str = ""
    """what stands in place of numbers"""
    homes: Mapping[str, str] | None = None
    """cell → the address of its record; None if this page has them all"""

    def address(self, cell_id: str) -> str:
        """The address of a cell's record; "" if no page has it."""
        return f"#cell-{cell_id}" if self.homes is None else self.homes.get(cell_id, "")


def decided(
    decision: Decision, rows: Mapping[str, int], unit: Unit, homes: Mapping[str, str] | None = None
) -> Decided:
    """The picture of these views.

    Args:
        rows: cell → its row in the page's records.
        unit: the unit of the page's rates.
        homes: as of `Decided`.
    """
    view = decision.default
    every = decision.views
    has_lone = any(entry.is_alone for shown in every for entry in shown.entries.values())
    return Decided(
        decision,
        caption(view, decision, unit),
        described(view, decision),
        compressed(views_json(decision, rows, unit)),
        LONE if has_lone else "",
        percent(NOISY),
        "" if all(shown.ranks == ALONE for shown in every) else OF_RANKS,
        REPEATS if any(shown.has_repeats for shown in every) else "",
        words_text("Fields", [status for shown in every for status, _ in shown.missing.values()]),
        homes,
    )
