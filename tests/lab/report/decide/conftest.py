"""Records of two masks, of which each test takes its part."""

import pytest

from longca.lab.store.table import derived
from longca.lab.studies.outcome import OutOfMemory
from tests.helpers.records import record
from tests.helpers.report.cases import cell, timed


@pytest.fixture(scope="package")
def small():
    """Two masks at 1K; sdpa and flex tie under causal, naive is alone at 2K and never runs full."""
    records = [
        timed("sdpa", "causal", 0.96, 1.0, 1.04),
        timed("flex", "causal", 1.0, 1.03, 1.06),
        timed("naive", "causal", 4.0, 4.0),
        timed("sdpa", "full", 4.0, 4.0),
        timed("flex", "full", 2.0, 2.0),
        timed("naive", "causal", 9.0, seqlen=2048),
        record(cell("naive", "full"), OutOfMemory(requested_bytes=None, where="fwd")),
    ]
    return derived(records)
