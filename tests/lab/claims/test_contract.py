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
from longca.lab.claims.parts import Observation, Part, finding_of, of_methods
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


def observed(held, against=0, name="a"):
    """Observations of different settings, some with a claim and some against it."""
    return [Observation("", index < held, (f"{name}{index}",)) for index in range(held + against)]


def test_parts_have_verdicts_and_one_that_fails_overturns_the_claim():
    good, bad = observed(4), observed(0, 4)
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
    assert verdict.part == "first, second" and verdict.cell_ids == ("a0", "a1", "a2", "a3")
    assert decided_in_parts(Part("first", "one is not measured")).status == "open"
    assert (
        decided_in_parts(Part("only", "all hold", good), missing=Gaps(("x",), 1, 2)).part
        == "1 of 2 points asked for"
    )


def test_a_claim_holds_by_most_of_its_parts_and_never_by_fewer():
    def together(held, unknown, **of_last):
        parts = [Part(str(index), "holds", observed(4)) for index in range(held)]
        return decided_in_parts(
            *parts, *(Part(f"open {index}", "not measured", **of_last) for index in range(unknown))
        )

    assert together(3, 1).status == "holds" and together(2, 1).status == "open"
    beyond = together(1, 1, observations=observed(0, 4), is_open=True)
    assert (beyond.status, beyond.finding, beyond.part) == ("open", "Holds; open: not measured", "0")


def test_too_few_settings_decide_nothing_either_way():
    """A single setting of three against a claim would overturn it."""
    for good, bad in ((3, 0), (0, 3), (2, 1), (1, 0), (0, 1)):
        few = decided("the finding", observed(good, bad))
        assert few.status == "open" and few.finding == f"the finding ({good + bad} of the 4 that decide)"
        assert few.cell_ids and len(few.exceptions) == bad
        assert Part("", "", observed(good, bad)).status == "open"
    assert [decided("", observed(held, 4 - held)).status for held in (4, 3, 2, 0)] == [
        "holds",
        "holds with exceptions",
        "contradicted",
        "contradicted",
    ]
    assert [Part("", "", observed(held, 2 - held), asked=2).status for held in (2, 1, 0)] == [
        "holds",
        "contradicted",
        "contradicted",
    ], "the sentence asks for two"
    assert Part("", "", observed(1), asked=2).told == " (1 of the 2 that decide)"
    twice = [*observed(2), *observed(2)]
    assert Part("", "", twice).status == "open", "two settings on two GPUs"
    assert Part("", "", [Observation("", True)] * 4).status == "holds", "without cells each is a setting"


@pytest.mark.parametrize(
    ("held", "against", "undecided", "expected"),
    [
        (6, 0, 2, "holds"),
        (6, 0, 3, "open"),
        (7, 1, 1, "holds with exceptions"),
        (7, 1, 2, "open"),
        (2, 4, 2, "contradicted"),
        (2, 4, 10, "open"),
    ],
)
def test_cases_measured_in_part_must_not_change_a_status(held, against, undecided, expected):
    assert Part("", "", observed(held, against), undecided=undecided).status == expected


def test_methods_have_a_part_each_and_a_finding_says_their_topic_once():
    mixed = {"fa2": observed(4), "fa3": observed(1, 3), "flex": observed(1), "sdpa": []}
    parts = of_methods("backward is slower at", mixed, ratios={"fa3": "0.9–1.1×"})
    assert [part.status for part in parts] == ["holds", "contradicted", "open", "open"]
    assert finding_of(parts) == (
        "fails: backward is slower at fa3 1/4 (0.9–1.1×); holds: backward is slower at fa2 4/4; open: "
        "backward is slower at flex 1/1 (4 settings decide), it is not measured whether backward is slower "
        "at sdpa"
    )
    assert decided_in_parts(*parts).part == "2 of 4 parts"
    many = {f"kernel {index}": observed(4, 4 * (index < 2)) for index in range(30)}
    assert finding_of(of_methods("slower at", many)) == (
        "fails: slower at kernel 0 4/8, kernel 1 4/8; holds: slower at all 112 of 28 methods"
    )


def test_a_claim_of_a_user_has_one_verdict():
    class Mine(type(CLAIMS[10])):
        number = 24
        judge_as_study = Claim.judge_as_study

    (judgement,) = judged([Mine()], table(CASES[10][0][1]))
    assert judgement.as_study == judgement.repaired and judgement.as_study.status == "holds"
