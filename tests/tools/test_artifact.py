"""The Artifact Appendix follows from the records, and its sizes are true."""

import re

import pytest

from longca.lab.claims.contract import all_claims
from tests.helpers.claims.dense_cases import CASES
from tests.helpers.claims.numbered import CLAIMS
from tests.helpers.claims.verdicts import table
from tools import artifact
from tools.pages import put

TEXT = artifact.PAGE.read_text(encoding="utf-8")


def test_every_claim_has_its_section_and_command():
    headings = re.findall(r"^### (\d+)\. (.+)$", TEXT, flags=re.MULTILINE)
    assert headings == [(str(claim.number), claim.label) for claim in all_claims()] and len(headings) == 23
    assert re.findall(r"`longca claims (\d+)`: from", TEXT) == [number for number, _ in headings]


def test_the_guide_has_the_cells_that_each_claim_asks_for():
    guide = artifact.GUIDE.read_text(encoding="utf-8")
    assert put(guide, "needed", artifact.needed_table()) == guide, "run `make artifact`"
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| (\d)[^|]*\|$", guide, flags=re.MULTILINE)
    assert [int(number) for number, *_ in rows] == [claim.number for claim in all_claims()]
    for number, cells, path in rows:
        assert not re.search(r"\b(flashmask|fa2_sparse|ring_p2p|ring_allgather|band)\b", cells), number
        assert (path == "2") == (int(number) <= 14)


def test_a_claim_reads_no_kernel_that_its_row_does_not_name():
    rows = dict(re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|", artifact.needed_table(), flags=re.MULTILINE))
    for number, cases in CASES.items():
        named = set(re.findall(r"\b[a-z]\w+\b", rows[str(number)]))
        for _, made in cases:
            behind = set(CLAIMS[number].judge_as_study(table(made)).cell_ids)
            read = {row["kernel"].removeprefix("as_released_") for row in made if row["cell_id"] in behind}
            assert read <= named, (number, read - named)


def test_each_expected_result_has_its_tolerance():
    (within,) = re.findall(r"^\| H100 \| model \| no \| ([\d.]+ %) \|", TEXT, flags=re.MULTILINE)
    stated = {claim.name: artifact._tolerance(claim) for claim in all_claims()}
    assert TEXT.count("\n| tolerance | the word in bold is the same; ") == len(stated) == 23
    assert within in stated["fa3_fastest"] and "bytes are equal" not in stated["fa3_fastest"]
    assert "counted bytes are equal" in stated["ring_volume"] and "%" not in stated["ring_volume"]
    both = stated["heads_matter_little"]
    assert within in both and "bytes of memory" in both


def test_sizes_are_those_of_the_files():
    stated = dict(re.findall(r"^\| (.+) \| (\d+) MB \|$", TEXT, flags=re.MULTILINE))
    for name, size in artifact.sizes().items():
        assert float(stated[name]) == pytest.approx(size / artifact.MB, rel=0.1, abs=0.6), name


@pytest.mark.slow
def test_the_page_is_current():
    for name, content in artifact.blocks():
        if name != "sizes":
            assert put(TEXT, name, content) == TEXT, f"{name}: run `make artifact`"
