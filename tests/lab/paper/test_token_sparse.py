"""NSA and DSA: the finding counts what packages offer, and no row is claimed without one."""

from dataclasses import replace

import pandas as pd
import pytest

from longca.core.plugin import Registry
from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import PaperTable


@pytest.fixture(scope="module")
def exhibit() -> PaperTable:
    return next(exhibit for exhibit in exhibits() if exhibit.name == "token_sparse")  # type: ignore[return-value]


def test_the_finding_counts_offers(exhibit: PaperTable, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules[type(exhibit).__module__]
    said = exhibit.title(exhibit.data(pd.DataFrame()))
    assert (
        "of 3 packages for NSA, 1 runs both passes on Hopper (fla-core), none of them with the study's heads"
        in said
    )
    assert "of 7 packages for DSA, 0 run both passes on Hopper" in said
    offers = [
        replace(offer, backward="yes", study_heads="yes") if offer.package == "sgl-flash-mla" else offer
        for offer in module.OFFERS
    ]
    monkeypatch.setattr(module, "OFFERS", tuple(offers))
    said = exhibit.title(exhibit.data(pd.DataFrame()))
    assert (
        "of 7 packages for DSA, 1 runs both passes on Hopper (sgl-flash-mla), 1 of them with the study's "
        "heads" in said
    )


def test_each_offer_says_why_there_is_no_row(exhibit: PaperTable) -> None:
    table = exhibit.cells(exhibit.data(pd.DataFrame()))
    assert all(all(row) for row in table.rows)
    assert not {"nsa", "dsa"} & {name.split("_")[-1] for name in Registry("kernel").names()}, (
        "a kernel that there is belongs in the curves"
    )
