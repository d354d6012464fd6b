"""The main picture: every method under every mask at one setting, as shares of the best one."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report.decide import cases, views
    from longca.lab.report.decide.call_question import question_of, refuse_second_mask
    from longca.lab.report.decide.choice import DIRECTIONS, answer, choose
    from longca.lab.report.decide.heat_map import SHORT_STATUS
    from longca.lab.report.decide.repeats import RepeatRow, repeat_rows
    from longca.lab.report.decide.totals import WORDS
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "DIRECTIONS",
    "SHORT_STATUS",
    "WORDS",
    "RepeatRow",
    "answer",
    "cases",
    "choose",
    "question_of",
    "refuse_second_mask",
    "repeat_rows",
    "views",
]
