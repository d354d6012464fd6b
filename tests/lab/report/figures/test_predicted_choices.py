"""The figure of choices: the extra time of each rule's choice over the best."""

import pytest

from longca.lab.advice.recorded import OWN
from longca.lab.report.decide.predicted import with_predictions
from longca.lab.report.figures.predicted_choices import PredictedChoices
from longca.lab.store.table import derived
from longca.lab.studies.record import Record
from tests.helpers.cp.recorded import whole_settings


@pytest.fixture
def records() -> list[Record]:
    return list(whole_settings())


def test_regret_is_the_time_over_that_of_the_best(records):
    table = derived(records)
    data = PredictedChoices().data(with_predictions(table, records))
    assert set(data.rule) == {"predicted", *(f"always {name}" for name in OWN)} and (data.regret >= 0).all()
    best = data.groupby(["mask_label", "direction", "seqlen"]).regret.min()
    assert (best == 0).all() and len(best) == 4, "one strategy is the best of its setting"
    times = table.set_index("cell_id").time_ms_median.astype(float)
    row = data.iloc[data.regret.to_numpy().argmax()]
    same = table[(table["mask"] == row.mask_label) & (table.direction == row.direction)]
    assert row.regret == pytest.approx(times[row.cell_id] / same.time_ms_median.astype(float).min() - 1)
