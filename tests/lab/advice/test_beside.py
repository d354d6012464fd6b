"""Predictions beside measurements: on pages, and of records that none can be made for."""

import pytest

from longca.lab.advice.beside import predictions
from longca.lab.report.decide.predicted import with_predictions
from longca.lab.report.figures.predicted_choices import PredictedChoices
from longca.lab.report.figures.predicted_errors import PredictedErrors
from longca.lab.store.table import derived
from longca.lab.studies.record import Record
from longca.masks import build_mask
from longca.predict.fitted import load_fitted
from tests.helpers.committed import committed
from tests.helpers.cp.recorded import whole_settings
from tests.helpers.records import quick_study


@pytest.fixture
def records() -> list[Record]:
    return list(whole_settings())


def test_each_measured_cell_has_a_prediction_inside_its_interval(records):
    made = predictions(records)
    assert set(made) == {(record.cell_id, record.run_id) for record in records}
    assert all(entry.low_ms < entry.ms < entry.high_ms for entry in made.values())
    table = derived(records)
    data = PredictedErrors().data(with_predictions(table, records))
    assert len(data) == 20 and data.error.abs().max() < 0.15 and data.inside.mean() > 0.75
    expected = data.time_ms_median.astype(float) / data.predicted_ms.astype(float) - 1
    assert data.error.tolist() == pytest.approx(expected.tolist())


def test_no_prediction_where_nothing_is_known(records):
    assert predictions(quick_study()) == {}, "they are of a CPU"
    broken = records[0].model_copy(update={"notes": ("a ring of 2; tokens: nonsense; messages by NCCL",)})
    oom = next(entry.outcome for entry in quick_study() if entry.outcome.status == "oom")
    failed = records[1].model_copy(update={"outcome": oom, "samples": None})
    assert predictions([broken, failed]) == {}
    table = with_predictions(derived(quick_study()), quick_study())
    assert (
        table.predicted_ms.isna().all()
        and not len(PredictedErrors().data(table))
        and not len(PredictedChoices().data(table))
    )


def test_without_records_of_a_kernel_with_a_strategy_an_interval_is_also_that_of_the_kernel():
    """Context parallelism on H200s ran an earlier `band`: nothing is known there of the present one with a
    strategy."""
    fitted = load_fitted()
    [older] = committed(
        "h200-cp",
        kernel=["band"],
        strategy=["ulysses"],
        direction=["bwd"],
        mask=["causal_sliding_window"],
        seqlen=[16384],
        world=[2],
    )
    assert older.environment is not None and predictions([older]) == {}
    source = older.environment.source.model_copy(update={"git_sha": "f" * 40})
    record = older.model_copy(update={"environment": older.environment.model_copy(update={"source": source})})
    [made] = predictions([record]).values()
    model = fitted.find("band", "bwd", build_mask("causal_sliding_window", seqlen=16384).traits, 8)
    assert model is not None and "ulysses+band" not in fitted.strategies
    for interval in (model.residuals, fitted.strategies["ulysses"]):
        assert (
            made.low_ms <= made.ms * (1 + interval.low) + 1e-9
            and made.high_ms >= made.ms * (1 + interval.high) - 1e-9
        )
