"""The main picture: every method under every mask at one setting, as shares of the best one."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.report.decide import views
    from longca.lab.report.decide.choice import DIRECTIONS, advise_command, answer, choose, question_of
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["DIRECTIONS", "advise_command", "answer", "choose", "question_of", "views"]
