"""Rows "as released" beside the rows without the defect: which pairs there are, what they say, and that the
page shows it."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longca.core.plugin import Registry
from longca.core.schema import AS_RELEASED
from longca.lab.paper.build import build_paper, exhibits
from longca.lab.paper.contract import PaperTable
from longca.lab.paper.repairs import REPAIRS
from longca.lab.report.look.style import Style
from longca.lab.report.look.svg import draw
from longca.lab.report.questions.as_released import effect, ordinal, pairs, rank_change
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import OutOfMemory, Unsupported
from longca.lab.studies.record import Record
from tests.helpers.records import record

GPU = "NVIDIA H200"


def made(
    kernel: str,
    tflops: float = 400,
    outcome: Any = None,
    *,
    study: str = "as-released",
    gpu: str = GPU,
    **fields: Any,
) -> Record:
    content = {
        "kind": "kernel",
        "kernel": kernel,
        "mask": "causal",
        "seqlen": 8192,
        "num_q_heads": 64,
        "num_kv_heads": 8,
        "head_dim": 128,
        "dtype": "bf16",
        "direction": "bwd",
    }
    return record(Cell(**content | fields), outcome, tflops=tflops, gpu=gpu, study=study)


def records() -> list[Record]:
    """Records of flex: a call that is slower as released and one that fails; of fa3, one that is as quick; of
    sdpa, no pair."""
    return [
        made("as_released_flex", 100),
        made("flex", 400),
        made("flex", 40, study="h200-dense"),
        made("as_released_flex", outcome=OutOfMemory(requested_bytes=1 << 40, where="bwd"), seqlen=16384),
        made("flex", seqlen=16384),
        made("as_released_fa3", 600, mask="full"),
        made("fa3", 600, mask="full"),
        made("as_released_fa3", outcome=Unsupported(reason="forward it is `fa3`"), direction="fwd"),
        made("fa3", direction="fwd"),
        made("as_released_sdpa", 10, mask="prefix_lm"),
        *(
            made(kernel, tflops, study="h200-dense")
            for kernel, tflops in (("fa2", 300), ("fa3", 700), ("naive", 50))
        ),
    ]


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    return pairs(derived(records()))


def test_rows_of_several_gpus_say_which() -> None:
    (table,) = (exhibit for exhibit in exhibits() if exhibit.name == "as_released_table")
    assert isinstance(table, PaperTable)
    both = [
        made(kernel, tflops, gpu=gpu)
        for gpu, tflops in ((GPU, 400), ("NVIDIA H100 80GB HBM3", 300))
        for kernel in ("flex", "as_released_flex")
    ]
    cells = table.cells(pairs(derived(both)))
    place = cells.header.index("GPU")
    assert place < cells.num_keys and {row[place] for row in cells.rows} == {"H200", "H100"}
    assert all(len(row) == len(cells.header) for row in cells.rows)
    assert "GPU" not in table.cells(pairs(derived(both[:2]))).header


def test_each_defect_that_can_be_measured_names_its_kernel() -> None:
    there = {
        name.removeprefix(AS_RELEASED) for name in Registry("kernel").names() if name.startswith(AS_RELEASED)
    }
    assert {repair.kernel for repair in REPAIRS if repair.kernel} == there


def test_pairs_are_those_that_were_tried_both_ways(found: pd.DataFrame) -> None:
    assert [
        tuple(key)
        for key in found[["kernel", "mask", "seqlen", "status_released", "status_without"]].to_numpy()
    ] == [
        ("fa3", "full", 8192, "ok", "ok"),
        ("flex", "causal", 8192, "ok", "ok"),
        ("flex", "causal", 16384, "oom", "ok"),
    ]
    assert (found.cell_ids.str.split().str.len() == 2).all()


def test_the_row_without_is_of_the_same_study_if_it_has_one(found: pd.DataFrame) -> None:
    assert set(found.study_without) == {"as-released"}
    slower = found[(found.kernel == "flex") & (found.seqlen == 8192)].iloc[0]
    assert slower.ratio == pytest.approx(4, rel=0.05) and slower.ratio_low < slower.ratio < slower.ratio_high
    elsewhere = pairs(derived([made("as_released_flex", 100), made("flex", 40, study="h200-dense")]))
    assert elsewhere.study_without.tolist() == ["h200-dense"] and elsewhere.ratio.iloc[0] == pytest.approx(
        0.4, rel=0.05
    )


def test_ranks_are_among_all_kernels_of_the_same_call(found: pd.DataFrame) -> None:
    slower, failed = (
        found[(found.kernel == "flex") & (found.seqlen == length)].iloc[0] for length in (8192, 16384)
    )
    assert (slower.rank_released, slower.rank_without, slower.num_ranked, slower.rank_changes) == (
        3,
        2,
        4,
        True,
    )
    assert rank_change(slower) == "released flex would be 3rd of 4 (causal, 8K, backward), ours is 2nd"
    assert failed.rank_without is pd.NA and not failed.rank_changes, "nobody else has a record there"
    with_rival = pairs(derived([*records(), made("fa2", 300, seqlen=16384, study="h200-dense")]))
    failed = with_rival[with_rival.status_released == "oom"].iloc[0]
    assert (
        rank_change(failed)
        == "released flex would have no rank (oom) (causal, 16K, backward), ours is 1st of 2"
    )
    assert [ordinal(place) for place in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "112th",
    ]


def test_a_rank_that_noise_could_change_does_not_count() -> None:
    close = pairs(derived([made("as_released_fa3", 600), made("fa3", 602), made("fa2", 601)]))
    assert not close.rank_changes.any()


def test_the_effect_is_that_of_the_records(found: pd.DataFrame) -> None:
    said = effect(found.loc[found.kernel == "flex"])
    ratio = float(found.ratio[found.seqlen == 8192].max())
    assert said.startswith(
        "Of 1 call that runs both ways (torch 2.11.0+cu130), 1 takes longer as released: "
        f"{ratio:.2f}×, backward;"
    )
    assert "none differs by more than 5.0 %" in effect(found.loc[found.kernel == "fa3"])
    assert (
        "1 cell that has a number without the defect ends out of memory" in said
        and "another rank in 1 of 1 cell" in said
    )


def test_notes_tell_what_happened_to_some(found: pd.DataFrame) -> None:
    flex = found.loc[found.kernel == "flex"].assign(
        notes_released=["as released: eager; torch's path", "as released: no mask"]
    )
    assert effect(flex).endswith(
        "noted in 1 cell: eager; noted in 1 cell: torch's path; noted in 1 cell: no mask"
    )
    alike = flex.assign(notes_released=["as released: eager; torch's path"] * 2)
    assert effect(alike).endswith("noted in 2 cells: torch's path"), "the defect itself is told already"


def test_the_page_shows_pairs_and_says_at_each_defect_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [exhibit for exhibit in exhibits() if exhibit.section == "released"]
    monkeypatch.setattr("longca.lab.paper.build.exhibits", lambda: shown)
    text = build_paper(records(), [], tmp_path / "paper").read_text(encoding="utf-8")
    assert "could not be made" not in text and 'id="as_released"' in text and 'id="as_released_table"' in text
    rows = {number: text.split(f'id="repair-{number}"')[1].split("</tr>")[0] for number in (6, 7, 17)}
    assert (
        'href="#as_released"' in rows[7] and "out of memory" in rows[7] and 'href="#as_released"' in rows[17]
    )
    assert "href" not in rows[6], "without a row that lacks the defect there is nothing to say"
    num_measured = sum(
        'class="measured"' in text.split(f'id="repair-{repair.number}"')[1].split("</tr>")[0]
        for repair in REPAIRS
    )
    assert num_measured >= 2 and f"{num_measured} have a measured or counted effect below" in text


def test_without_rows_as_released_there_is_no_exhibit() -> None:
    assert not len(pairs(derived([made("flex")])))


def test_rows_of_one_length_on_two_gpus_have_names_of_their_own() -> None:
    """A figure with two rows "8K bwd" under one mask would not say which is which."""
    both = [
        made(kernel, gpu=gpu)
        for gpu in (GPU, "NVIDIA H100 80GB HBM3")
        for kernel in ("as_released_flex", "flex")
    ]
    lone = [made(kernel, seqlen=1024) for kernel in ("as_released_flex", "flex")]
    figure = Registry("paper_figure").load("as_released")
    text = draw(figure, pairs(derived([*both, *lone])), Style(["flex"]))
    names = re.findall(r">((?:1|8)K bwd[^<]*)<", text)
    assert sorted(names) == ["1K bwd", "8K bwd H100", "8K bwd H200"]
