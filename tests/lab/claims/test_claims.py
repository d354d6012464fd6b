"""The study's claims: records that say otherwise flip each of them, and the project's records judge them."""

import re

import pandas as pd
import pytest

from longca.lab.claims.parts import STATUSES
from longca.lab.store.columns import COLUMNS
from longca.lab.store.load import committed as committed_files
from longca.lab.store.load import load, load_columns
from longca.lab.store.table import derived, of_grid
from longca.lab.store.text import short_device
from tests.helpers.claims.cases import CASES
from tests.helpers.claims.numbered import CLAIMS
from tests.helpers.claims.verdicts import FRAME_TYPES, GIB, grid, table
from tests.helpers.support import ROOT


@pytest.mark.slow
def test_the_committed_table_is_derived_from_its_records():
    again = derived(load(*committed_files()).records)
    records = load_columns(committed_files(), [column.name for column in COLUMNS])[0]
    records = records.astype({column.name: FRAME_TYPES[column.type] for column in COLUMNS})
    own = of_grid(records).reset_index(drop=True)
    samples = [None if times is None else tuple(times) for times in own.samples_ms]
    pd.testing.assert_frame_equal(again, own.assign(samples_ms=samples))


@pytest.mark.parametrize("number", CASES)
def test_records_flip_a_claim(number):
    actual = [CLAIMS[number].judge(table(rows)) for _, rows in CASES[number]]
    assert [verdict.status for verdict in actual] == [status for status, _ in CASES[number]]
    assert len({verdict.status for verdict in actual}) > 1
    for verdict in actual:
        assert (
            bool(verdict.exceptions) == (verdict.status in ("contradicted", "holds with exceptions"))
            or verdict.status == "open"
        )


def test_every_claim_has_records_that_flip_it():
    assert CASES.keys() == CLAIMS.keys()


@pytest.mark.long
def test_the_records_of_the_project_are_judged(committed):
    records = committed[0]
    verdicts = {number: judgement.repaired for number, judgement in committed[1].items()}
    for number, verdict in verdicts.items():
        for entry in (verdict, *verdict.elsewhere):
            known = set(records.cell_id[records.device.map(short_device) == entry.gpu])
            assert entry.status in STATUSES and entry.finding.startswith(f"On {entry.gpu}: ")
            assert (
                re.search(r"\d", entry.finding) and "nan" not in entry.finding and "–×" not in entry.finding
            ), number
            assert not re.search(r"\b1 [a-z]+s\b|points needs", entry.finding), number
            assert len(entry.finding) <= 260 and entry.cell_ids and set(entry.cell_ids) <= known
            assert ("H200" in entry.note) == (entry.gpu == "H200") and len(set(entry.exceptions)) == len(
                entry.exceptions
            )
            assert all(
                re.search(rf"\b{entry.gpu}\b", text) and not ("H100" in text and "H200" in text)
                for text in entry.exceptions
            )
        assert len({entry.gpu for entry in (verdict, *verdict.elsewhere)}) == 1 + len(verdict.elsewhere)
    assert sum(verdict.status == "open" for verdict in verdicts.values()) < len(verdicts) / 2


def test_the_committed_page_says_what_the_command_says(committed):
    """Both judge the same records, those of play-offs included."""
    of_page = pd.read_csv(ROOT / "reports/paper/data/claims.csv", keep_default_na=False)
    findings = {
        (number, reading, verdict.gpu): [verdict.status, verdict.finding]
        for number, judgement in committed[1].items()
        for reading, first in judgement.named
        for verdict in (first, *first.elsewhere)
    }
    shown = zip(of_page.number, of_page.reading, of_page.gpu, of_page.status, of_page.finding, strict=True)
    assert {(number, reading, gpu): verdict for number, reading, gpu, *verdict in shown} == findings


def test_claims_of_several_nodes_say_what_they_judged(committed):
    for number, judgement in committed[1].items():
        verdict = judgement.repaired
        if CLAIMS[number].gpus == "several nodes":
            parts = {entry.gpu: entry.part for entry in (verdict, *verdict.elsewhere)}
            # ranks are compared by one protocol: on 4 GPUs they rest, on 2 and 3 they do not
            assert re.search("[34] ranks of one host", parts["H200"]) and "2 ranks of one host" in parts.get(
                "H100", "2 ranks of one host"
            )
            assert (
                all("96 ranks (needs several nodes)" in text for text in verdict.missing) and verdict.missing
            )


def test_a_claim_that_fails_in_one_part_says_so_first():
    def finding(number, index):
        return CLAIMS[number].judge(table(CASES[number][index][1])).finding

    assert finding(5, 1).startswith(
        "Fails: documents widen the gap at none of 3 points; holds: backward is slower at all 6 points"
    )
    assert finding(5, 2).startswith("Fails: backward is slower") and finding(5, 0).startswith(
        "Backward is slower"
    )
    assert finding(17, 2).startswith(
        "Fails: more ranks than heads are refused at 0 of 1 point, since ranks without heads"
    )
    assert finding(12, 2).startswith("Fails: memory is less at none of 3 points; holds: rates")
    memory = CLAIMS[4].judge(
        table(
            grid(50, kernel="sdpa", mask="causal_document", seqlen=32768, absolute_peak_bytes=GIB),
            grid(None, kernel="naive", mask="causal_document", seqlen=32768, status="oom"),
        )
    )
    assert (
        memory.finding
        == "Fails: SDPA is beyond 80 GB from 32K on at 0 of 1 point and needs 1.00 GiB at 32K; "
        "holds: naive is beyond 80 GB from 32K on at the one point"
    )


EXPECTED = {  # claim → (as the study has it, with repaired code on the study's GPU, the reason)
    1: (
        "holds with exceptions",
        "holds with exceptions",
        "cuDNN is ahead on documents: the study's of 4K, true ones of 2K and 4K",
    ),
    2: ("holds", "holds", "only FlashMask, a stand-in here, is not judged as the study has it"),
    3: ("holds", "holds", "masks that equal a regular one at 1K and 2K are no exceptions"),
    4: (
        "contradicted",
        "contradicted",
        "SDPA with a mask and KV heads of its own fits, in the very call of the study",
    ),
    5: (
        "holds with exceptions",
        "contradicted",
        "the study's documents widen the gap at three points in four, true ones at fewer than half",
    ),
    6: ("holds", "contradicted", "the study counts half of a sliding window, and its documents are short"),
    7: ("open", "holds with exceptions", "FlashMask here is ours"),
    9: ("open", "contradicted", "FA2-Sparse here is ours"),
    12: (
        "holds with exceptions",
        "holds with exceptions",
        "FlexAttention gains from 64 KV heads in short backward calls",
    ),
    13: ("holds", "contradicted", "an eager block mask has no memory; one made of blocks needs none"),
}


@pytest.mark.parametrize("number", EXPECTED)
def test_the_committed_records_give_the_expected_verdicts(committed, number):
    as_study, repaired, reason = EXPECTED[number]
    verdicts = committed[1][number]
    assert (verdicts.as_study.status, verdicts.repaired.status) == (as_study, repaired), reason
    assert verdicts.repaired.gpu == "H100" and len(verdicts.as_study.finding) <= 400
    assert not any("H200" in text for text in verdicts.as_study.exceptions) or number in (4, 13), (
        "of the study's GPU alone"
    )


def test_a_case_that_lacks_masks_does_not_fail():
    masks = ["full", "causal", "full_document", "causal_document", "sliding_window", "causal_sliding_window"]
    wide = [*grid(600, mask=masks, seqlen=8192), *grid(200, mask="prefix_lm", seqlen=8192)]
    narrow = grid(600, mask=masks, seqlen=16384)
    judged = CLAIMS[6].judge(table([*wide, *narrow]))
    assert "3.00× (1 of 1)" in judged.finding and not judged.exceptions
    judged = CLAIMS[6].judge(table([*wide, *narrow, *grid(590, mask="prefix_lm", seqlen=16384)]))
    assert "1.02–3.00× (1 of 2)" in judged.finding and judged.exceptions
