"""Records of context parallelism of whole settings."""

from functools import cache

from longca.lab.advice.recorded import OWN
from longca.lab.store.load import load
from longca.lab.studies.record import Record
from tests.helpers.support import ROOT


@cache
def whole_settings() -> tuple[Record, ...]:
    """A few settings in which all own strategies ran, on two GPUs."""
    actual = tuple(
        record
        for record in load(ROOT / "reports/h100/h100-cp.parquet").records
        if record.cell.kind == "cp"
        and record.cell.world == 2
        and record.cell.seqlen == 16384
        and record.cell.seed == 0
        and record.cell.mask in ("causal", "causal_document")
        and record.cell.strategy in OWN
        and not record.cell.strategy_params
    )
    assert len(actual) == 20
    return actual
