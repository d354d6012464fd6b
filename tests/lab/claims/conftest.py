"""The committed records and what the claims say of them, judged once: that takes seconds."""

import pandas as pd
import pytest

from longca.lab.claims.by_gpu import judged
from longca.lab.claims.contract import Verdicts, all_claims
from longca.lab.claims.evidence import COLUMNS
from longca.lab.store.load import committed as committed_files
from longca.lab.store.load import load_columns


@pytest.fixture(scope="session")
def committed() -> tuple[pd.DataFrame, dict[int, Verdicts]]:
    """The columns of the project's records that `longca claims` reads, and each claim's verdicts by its
    number."""
    claims = all_claims()
    columns = dict.fromkeys((*COLUMNS, *(name for claim in claims for name in claim.columns)))
    records = load_columns(committed_files(), tuple(columns))[0]
    return records, dict(zip((claim.number for claim in claims), judged(claims, records), strict=True))
