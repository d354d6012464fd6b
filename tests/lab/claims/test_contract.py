"""The contract of claims: each is complete, and verdicts of parts make one verdict."""

import pytest

from longca.lab.claims.by_gpu import judged
from longca.lab.claims.contract import (
    Claim,
    Gaps,
    Verdict,
    Verdicts,
    all_claims,
    decided,
    decided_in_parts,
    summary,
)
from longca.lab.claims.parts import Observation, Part
from tests.helpers.claims.cases import CASES
from tests.helpers.claims.numbered import CLAIMS
from tests.helpers.claims.verdicts import table


def test_the_study_has_23_claims():
    assert [claim.number for claim in all_claims()] == list(range(1, 24))


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_a_claim_is_complete_and_open_without_records(claim):
    for text in (claim.label, claim.sentence, claim.source, claim.overturned_by):
        assert len(text) > 15 and not text.endswith(" ")
    assert claim.sentence.endswith(".") and len(claim.label) <= 60
    assert claim.gpus in ("one GPU", "2–4 GPUs", "several nodes") and claim.trust in (
        "paper",
        "second-hand",
        "reading of its code",
    )
    for verdict, needed in ((claim.judge(table()), claim.gpus), (claim.judge_as_study(table()), "(needs ")):
        assert verdict.status == "open" and not verdict.cell_ids and not verdict.exceptions
        assert verdict.missing and all(needed in text for text in verdict.missing)


def test_a_summary_counts_the_study_first_and_repaired_verdicts_by_gpu():
    held, contradicted, unknown = (Verdict(status, "") for status in ("holds", "contradicted", "open"))
    first = [Verdicts(held, held), Verdicts(held, contradicted), Verdicts(unknown, contradicted)]
    assert summary(first) == (
        "3 claims, as the study has it: 2 hold, 1 is open. "
        "With repaired code and today's kernels: 1 holds, 2 are contradicted"
    )
    assert decided("unused").status == "open" and summary([]) == "No claim"
    both = Verdict(
        "holds",
        "",
        cell_ids=("a",),
        gpu="H100",
        elsewhere=(Verdict("contradicted", "", cell_ids=("a",), gpu="H200"),),
    )
    alone = Verdict("holds with exceptions", "", cell_ids=("b",), gpu="H200")
    of_gpus = [Verdicts(unknown, verdict) for verdict in (both, alone, Verdict("open", "", gpu="H100"))]
    assert summary(of_gpus).endswith(
        "today's kernels, on H100: 1 holds, 2 are open; "
        "on H200: 1 holds with exceptions, 1 is contradicted, 1 is open"
    )


def test_parts_have_verdicts_and_those_that_are_open_do_not_decide():
    good, bad = ([Observation("", holds, (str(holds),))] * 4 for holds in (True, False))
    verdict = decided_in_parts(
        Part("first", "one", good), Part("second", "two", bad), Part("third", "not measured")
    )
    assert (
        verdict.status == "contradicted" and verdict.finding == "Fails: two; holds: one; open: not measured"
    )
    assert [(part.name, part.status) for part in verdict.parts] == [
        ("first", "holds"),
        ("second", "contradicted"),
        ("third", "open"),
    ]
    assert verdict.part == "first, second" and verdict.cell_ids == ("True", "False")
    beyond = decided_in_parts(Part("first", "one", good), Part("second", "two", bad, is_open=True))
    assert (beyond.status, beyond.finding, beyond.part) == ("holds", "One; open: two", "first")
    assert decided_in_parts(Part("first", "one is not measured")).status == "open"
    assert (
        decided_in_parts(Part("only", "all hold", good), missing=Gaps(("x",), 1, 2)).part
        == "1 of 2 points asked for"
    )


def test_a_claim_of_a_user_has_one_verdict():
    class Mine(type(CLAIMS[10])):
        number = 24
        judge_as_study = Claim.judge_as_study

    (judgement,) = judged([Mine()], table(CASES[10][0][1]))
    assert judgement.as_study == judgement.repaired and judgement.as_study.status == "holds"
