"""The question of a study, where that is not who is the fastest: its answer is the first sentence of its
page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import AS_RELEASED
from longca.lab.report.decide.predicted import judged

if TYPE_CHECKING:
    import pandas as pd

AHEAD = "ahead"  # its cells were chosen to judge predictions


def own_finding(table: pd.DataFrame) -> str:
    """The answer of these records to their study's own question, a sentence without its end: what defects of
    released code cost, what the power limit takes, or how far predictions are off. "" for other studies, and
    where the records cannot tell."""
    table = table.copy(deep=False)
    table.attrs = {}  # parts are labelled anew, without rows of play-offs
    if table.kernel.astype(str).str.startswith(AS_RELEASED).any():
        from longca.lab.report.questions.as_released import pairs, slowdown

        both = pairs(table)
        return "; ".join(slowdown(both)) if both.ratio.notna().any() else ""
    if (table.input_values != "normal").any() or table.sustained.astype(bool).any():
        from longca.lab.report.questions.power import effects, power, values_finding

        data = power(table)
        return values_finding(data) if len(data) and effects(data) else ""
    predicted = judged(table)
    if set(table.study) == {AHEAD} and len(predicted):
        from longca.lab.report.figures.predicted_errors import PredictedErrors

        return PredictedErrors().title(predicted)
    return ""
