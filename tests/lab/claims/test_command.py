"""The command `longca claims`, and a claim in a user's own folder."""

import json
import re
from pathlib import Path

import pytest

from longca.lab.claims.contract import STUDY, all_claims
from longca.lab.cli.claims import command
from longca.lab.store.columns import COLUMNS
from longca.lab.store.export import export
from longca.lab.store.load import committed
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from tests.helpers.claims.cases import LONG
from tests.helpers.claims.verdicts import grid, table
from tests.helpers.records import record
from tests.helpers.support import ROOT


def _records() -> list:
    rates = {"fa3": 700, "cudnn": 600, "cudnn_graph": 590, "fa2": 400, "flex": 390}
    return [
        record(
            Cell(
                kind="kernel",
                kernel=kernel,
                mask="full",
                seqlen=8192,
                num_q_heads=64,
                num_kv_heads=num_kv_heads,
                head_dim=128,
                dtype="bf16",
                direction="fwd",
            ),
            tflops=rate,
            gpu="NVIDIA H200",
        )
        for kernel, rate in rates.items()
        for num_kv_heads in (8, 64)
    ]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return export(_records(), tmp_path)[2]


def test_the_conclusion_comes_first_and_rows_fit_80_columns(longca, records):
    done = longca("claims", records)
    assert done.returncode == 0, done.stderr
    first, *claims = done.stdout.split("\n\n")
    text = " ".join(first.split())
    assert text.startswith("23 claims, as the study has it: ") and "on H200: 1 holds, 22 are open" in text
    assert "contradicted: fewer than three" in text and STUDY in text, (
        "words and the study are where the verdicts are"
    )
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert [int(claim[:2]) for claim in claims] == list(range(1, 24))
    for claim, shown in zip(all_claims(), claims, strict=True):
        shown = " ".join(shown.split())
        assert claim.sentence in shown and f"Source: {claim.source}." in shown, (
            "it says by itself that it is a text"
        )
        assert "As the study has it: " in shown and "With repaired code and today's kernels: " in shown


def test_one_claim_is_shown_whole(longca, records):
    shown = longca("claims", 2, records).stdout
    assert shown == longca("claims", "--number", 2, records).stdout
    first, study, repaired = shown.split("\n\n")
    assert first.startswith("2. On FULL") and STUDY in first
    assert study.startswith(
        "As the study has it:\nVerdict        open (too little that decides it was measured"
    )
    parts = (
        "Verdict        holds (all observations agree)",
        "Judged         6 of 8 parts; 10 of 12 points",
        "forward fa3 is faster than cudnn: holds. 2/2 (1.1",
        "flashmask; 64:8",
        "Evidence       10 cells",
    )
    assert all(part in repaired for part in parts), shown
    assert "and 1 more" not in shown and all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("words", [(5, 7), ("-n", 5, "-n", 7), ("-n", 5, 7)])
def test_several_claims_are_shown_whole_and_counted_first(longca, records, words):
    shown = longca("claims", *words, records).stdout
    assert shown.startswith("2 claims, as the study has it: ")
    heads = [line for line in shown.splitlines() if re.match(r"[0-9]+\. ", line)]
    assert [head.partition(".")[0] for head in heads] == ["5", "7"]


def test_json_has_everything(longca, records):
    content = json.loads(longca("claims", records, "--json").stdout)
    assert (
        content["summary"].startswith("23 claims")
        and len(content["claims"]) == 23
        and content["study"] == STUDY
    )
    second = content["claims"][1]
    assert second["as_study"]["status"] == "open" and second["repaired"]["status"] == "holds"
    assert set(second["repaired"]["cell_ids"]) == {record.cell_id for record in _records()}
    assert {"sentence", "source", "trust", "gpus", "overturned_by"} <= second.keys()
    for verdict in (second["as_study"], second["repaired"]):
        assert {
            "status",
            "finding",
            "exceptions",
            "missing",
            "part",
            "parts",
            "note",
            "gpu",
        } <= verdict.keys()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["99"], ["There is no claim '99'", "1 to 23"]),
        (["not_there.parquet"], ["There is no file 'not_there.parquet'"]),
        (["quick", "2.parquet"], ["There is no file '2.parquet'"]),
        (["quik"], ["Unknown study 'quik'", "'quick'"]),
    ],
)
def test_mistakes_get_one_line(longca, arguments, expected):
    done = longca("claims", *arguments)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert all(part in done.stderr for part in expected)


def test_the_records_of_the_project_are_the_default():
    assert {path.stem for path in committed()} >= {
        "h100-cp",
        "h100-dense",
        "h100-sparse",
        "h200-cp",
        "h200-dense",
        "h200-sparse",
    }


def test_made_up_rows_have_the_types_of_real_records():
    real = derived(_records())
    made = table(grid(500))
    assert list(made.columns) == [column.name for column in COLUMNS] and (made.dtypes == real.dtypes).all()


def test_the_claim_of_the_page_is_judged(tmp_path, monkeypatch):
    text = (ROOT / "docs/guide/claims.md").read_text(encoding="utf-8")
    path = tmp_path / re.search(r"`mine/(\S+)`", text)[1]
    path.parent.mkdir()
    path.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], encoding="utf-8")
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    claim = all_claims()[-1]
    assert claim.number == 24 and claim.name == "band_over_flex"
    for rate, status in ((600, "holds"), (300, "contradicted")):
        band, flex = (
            grid(tflops, kernel=name, seqlen=LONG) for name, tflops in (("band", rate), ("flex", 400))
        )
        verdict = claim.judge(table(band, flex))
        assert verdict.status == status and f"{rate / 400:.2f}×" in verdict.finding
        assert claim.judge(table(band[:3], flex[:3])).status == "open", "of three settings none decides"


def test_a_claim_gets_the_columns_that_it_names_and_no_record_is_decoded(tmp_path, monkeypatch, capsys):
    path = tmp_path / "claims" / "newest_torch.py"
    path.parent.mkdir()
    path.write_text(
        """
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.parts import Observation


class NewestTorch(Claim):
    number, label, sentence, source, trust, gpus, overturned_by = 25, "Torch", "It is there.", "This project", "paper", "one GPU", "None"
    columns = ("torch",)

    def judge(self, table):
        return decided(f"{len(table)} rows", [Observation(version, bool(version)) for version in table.torch])
""",  # noqa: E501
        encoding="utf-8",
    )
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path))
    monkeypatch.setattr("longca.lab.store.load.Decoder.decode", None)
    command(["25", str(committed("power")[0])])
    assert "Verdict        holds" in capsys.readouterr().out
