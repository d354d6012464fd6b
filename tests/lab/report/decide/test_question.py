"""The first sentence of a page answers what its study asks."""

import pytest

from longca.lab.report.decide.predicted import with_predictions
from longca.lab.report.decide.views import decision
from longca.lab.report.questions.own import own_finding
from longca.lab.store.table import derived
from tests.helpers.committed import committed


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("as-released", "calls that run both as released and without the defect, the defects make"),
        ("as-study", "calls that run both as released and without the defect, the defects make"),
        ("power", "The power limit holds back"),
        ("ahead", "Predicted times of"),
    ],
)
def test_it_is_the_study_s_own_finding(study: str, said: str) -> None:
    records = committed(study)
    decided = decision(with_predictions(derived(records), records))
    assert decided and said in decided.finding.partition(". ")[0]
    assert ("never ranked" in decided.finding) == study.startswith("as-")
    assert "never ranked" not in decided.finding.removesuffix(
        "are never ranked: the page of the whole study has them beside this project's rows."
    ), "a rule comes after findings"


def test_other_studies_ask_who_is_the_fastest(small) -> None:
    decided = decision(small)
    assert own_finding(small) == "" and decided and decided.finding.startswith("At 1K tokens")
