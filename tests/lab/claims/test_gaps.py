"""Points that records lack, in words."""

from longca.lab.claims.evidence import missing, points
from tests.helpers.claims.verdicts import grid, table


def test_missing_points_are_told_together():
    records = table(grid(500, kernel="fa3", seqlen=[8192, 16384]), grid(None, kernel="fa2", status="oom"))
    gaps = missing(points(records, ok=False), "one GPU", kernel=("fa3", "fa2"), seqlen=(8192, 16384, 32768))
    assert gaps.judged == "3 of 6 points asked for"
    assert sorted(gaps.texts) == ["fa2; 16K (needs one GPU)", "fa3, fa2; 32K (needs one GPU)"]
