"""`longca choose`: who is the fastest, from records; where none fits, what is nearest."""

import json
from itertools import product

import pandas as pd
import pytest

from longca import advise, choose
from longca.core import UserError
from longca.lab.report.choose import COLUMNS, CallQuestion, nearest_settings, rankings
from longca.lab.store.export import export
from longca.lab.store.load import load_columns
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import OutOfMemory
from longca.predict.earlier import EARLIER_RECORDS
from tests.helpers.records import record
from tests.helpers.support import ROOT

H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"
RATES = {"fa3": 660.0, "cudnn": 600.0, "flex": 430.0, "sdpa": 320.0, "naive": 60.0}


def question(mask="causal", seqlen=32768, direction="fwd", **fields):
    return CallQuestion(
        **{
            "mask": mask,
            "params": {},
            "usual_params": {},
            "seqlen": seqlen,
            "num_q_heads": 64,
            "num_kv_heads": 8,
            "head_dim": 128,
            "dtype": "bf16",
            "direction": direction,
            **fields,
        }
    )


@pytest.fixture(scope="module")
def records():
    """Five kernels at three lengths; naive runs out of memory at the longest."""
    collected = []
    for mask, params in (("causal", {}), ("sliding_window", {"window": 256})):
        for (kernel, tflops), seqlen, direction in product(
            RATES.items(), (8192, 16384, 32768), ("fwd", "bwd")
        ):
            cell = Cell(
                kind="kernel",
                kernel=kernel,
                mask=mask,
                mask_params=params,
                seqlen=seqlen,
                num_q_heads=64,
                num_kv_heads=8,
                head_dim=128,
                dtype="bf16",
                direction=direction,
            )
            lost = (
                OutOfMemory(requested_bytes=1 << 38, where="fwd")
                if kernel == "naive" and seqlen == 32768
                else None
            )
            collected.append(record(cell, lost, tflops=tflops, gpu=H200))
    return collected


@pytest.fixture(scope="module")
def table(records):
    return derived(records)[list(COLUMNS)]


def test_the_order_is_that_of_the_times(table):
    (ranking,) = rankings(table, question())
    rows = table[(table["mask"] == "causal") & (table.seqlen == 32768) & (table.direction == "fwd")]
    expected = rows[rows.status == "ok"].sort_values("time_ms_median")
    assert [method for method, _ in ranking.methods] == expected.method.tolist()
    assert [placed.ms for _, placed in ranking.methods] == expected.time_ms_median.tolist()
    assert (
        ranking.devices == (H200,)
        and ranking.num_samples == expected.num_samples.sum()
        and ranking.num_cells == len(expected)
    )
    assert (
        ranking.finding.startswith(f"{expected.method.iloc[0]} is first of {len(expected)}: ")
        and "faster than" in ranking.finding
    )
    assert ranking.finding.endswith("not played off. 1 could not.")
    assert ("naive", "oom") in [(method, status) for method, status, _ in ranking.missing]


def test_a_tie_is_told_as_one(table):
    rows = table["mask"].eq("causal") & table.method.isin(["fa3", "cudnn"])
    alike = table.copy()
    for column, value in (
        ("tflops_per_device", 600.0),
        ("tflops_per_device_low", 590.0),
        ("tflops_per_device_high", 610.0),
    ):
        alike.loc[rows, column] = value + (alike.method[rows] == "cudnn")
    (ranking,) = rankings(alike, question())
    assert (
        ranking.finding.startswith("A tie of 2 in front: cudnn (601 TFLOP/s") and "and fa3" in ranking.finding
    )


def test_parameters_that_are_not_named_have_their_defaults_where_these_were_measured(table):
    wide = table[table["mask"] == "sliding_window"]
    both = pd.concat(
        [wide, wide.assign(mask_params="window=1024", tflops_per_device=wide.tflops_per_device / 2)]
    )
    (narrow,) = rankings(both, question("sliding_window", usual_params={"window": 1024}))
    assert narrow.setting.startswith("sliding_window (window=1024) · 32K tokens · 64:8 heads")
    (only,) = rankings(wide, question("sliding_window", usual_params={"window": 1024}))
    assert "(window=256)" in only.setting, "what was measured is told, where the defaults were not"
    assert (
        rankings(wide, question("sliding_window", params={"window": 1024}, usual_params={"window": 1024}))
        == []
    )


def test_the_nearest_settings_are_told_by_what_differs(table):
    assert rankings(table, question(seqlen=20000)) == []
    assert nearest_settings(table, question(seqlen=20000)) == ["16K tokens", "32K tokens", "8K tokens"]
    assert nearest_settings(table, question(num_kv_heads=4))[0] == "64:8 heads"
    assert nearest_settings(table, question("full")) == []


def test_columns_alone_give_what_whole_records_give(records, table, tmp_path):
    export(records, tmp_path)
    actual, problems = load_columns(
        [tmp_path, tmp_path / "records.parquet", tmp_path / "records.json"], COLUMNS
    )
    assert problems == [] and len(actual) == len(records), "the same record counts once"
    assert rankings(actual, question()) == rankings(table, question())
    (tmp_path / "records.parquet").write_bytes(b"PAR1")
    lost, problems = load_columns([tmp_path / "records.parquet"], COLUMNS)
    assert len(lost) == 0 and "damaged" in str(problems[0])


def test_records_of_earlier_kernels_are_named(table):
    cell = Cell(
        kind="kernel",
        kernel="band",
        mask="causal",
        seqlen=32768,
        num_q_heads=64,
        num_kv_heads=8,
        head_dim=128,
        dtype="bf16",
        direction="fwd",
    )
    present = derived([record(cell, tflops=650.0, gpu=H200)])[list(COLUMNS)]
    earlier = present.assign(git_sha=EARLIER_RECORDS[0] + "0" * 33)
    for added, expected in ((present, []), (earlier, ["band"])):
        (ranking,) = rankings(pd.concat([table, added], ignore_index=True), question())
        assert ranking.earlier == expected and "band" in dict(ranking.methods)


def test_the_records_that_come_with_the_project(longca):
    """Read from any folder, without torch, and by the same numbers as in JSON."""
    done = longca("choose", "causal", "-d", "bwd", COLUMNS="80")
    content, other = json.loads(longca("choose", "causal", "-d", "bwd", "--json").stdout)["rankings"]
    assert done.returncode == 0, done.stderr
    first = content["methods"][0]
    assert content["devices"] == [H100] and other["devices"] == [H200]
    assert done.stdout.startswith(f"{H100}: ") and f"\n{H200}: " in done.stdout
    assert first["method"] in " ".join(done.stdout.split())[:80] and isinstance(first["time_ms"], float)
    assert json.loads(longca("choose", "causal", "-d", "bwd", "--json", "--gpu", "h200").stdout)[
        "rankings"
    ] == [other]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert f"n = {content['num_cells']} cells" in done.stdout
    forward = longca("choose", "causal").stdout
    after = " ".join(forward.split()).partition("; then ")[2].partition(" %")[0]
    method, share = after.split(" at ")
    assert f" {share} % " in next(line for line in forward.splitlines() if line.split()[:1] == [method]), (
        "once"
    )
    assert "records of h100-dense; h100-cp measured some of them, too, and stands aside" in " ".join(
        done.stdout.split()
    )
    assert content["studies"] == ["h100-dense"] and "h100-cp" in content["studies_aside"], (
        "no other study is put into the answer"
    )
    both = longca(
        "choose",
        "causal",
        "-d",
        "bwd",
        "--json",
        "reports/h100/h100-dense.parquet",
        "reports/h100/h100-cp.parquet",
    )
    assert json.loads(both.stdout)["rankings"][0]["studies"] == ["h100-cp", "h100-dense"], (
        "studies that are named are put together"
    )
    lone = longca("choose", "full", "-s", "8K", "-d", "fwd", "reports/h200/as-released.parquet")
    assert "Only naive ran" in lone.stdout and "100 %" not in lone.stdout
    refused = longca("choose", "causal", "-s", "24K", "--heads", "32:8")
    assert (
        refused.returncode == 2
        and "the nearest have 64:8 heads" in refused.stderr
        and len(refused.stderr.strip().splitlines()) == 1
    )
    for arguments, said in (
        (["causl"], "'causal'"),
        (["causal", "-d", "up"], "'up'"),
        (["causal", "--dtype", "bf61"], "'bf16'"),
        (["causal", "--heads", "3:2"], "3 query heads"),
        (["causal", "--gpu", "A100 SXM"], H100),
        (["sliding_window:windo=3"], "'window'"),
        ([], "No mask is given"),
        (["causal", "-m", "full"], "Two masks are given"),
        (["causal", "-w", "4", "--deterministic"], "read the rows of `band`"),
    ):
        wrong = longca("choose", *arguments)
        assert wrong.returncode == 2 and said in wrong.stderr and len(wrong.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("choose causal -s 32K -w 1", "choose --mask causal --tokens 32K --gpus 1"),
        ("choose full {0} -s 8K", "choose -m full {0} -s 8K"),
        ("advise -m causal --tokens 8K --gpus 2", "advise causal --seqlen 8K --world 2"),
    ],
)
def test_both_commands_take_a_question_in_either_form(longca, first, second):
    study = "reports/h200/as-released.parquet"
    one, other = (
        longca(*form.format(study).split(), "-d", "fwd", "--gpu", "h200") for form in (first, second)
    )
    assert one.returncode == 0 and one.stdout == other.stdout


@pytest.mark.parametrize("ask", [choose, advise])
@pytest.mark.parametrize(
    ("option", "argument"), [("heads", "num_q_heads"), ("world", "gpus"), ("tokens", "seqlen")]
)
def test_options_of_the_commands_are_named_in_python(ask, option, argument):
    with pytest.raises(UserError, match=f"There is no argument '{option}'. It is {argument}"):
        ask("causal_document", **{option: 4})


def test_advise_refuses_two_masks(longca):
    refused = longca("advise", "causal", "-m", "full")
    assert refused.returncode == 2 and "Two masks are given, 'causal' and 'full'" in refused.stderr


def test_the_guide_shows_what_is_answered(longca):
    """And that is the page's answer: `tests/lab/ranking/test_same_answers.py` compares the two."""
    guide = (ROOT / "docs/guide/first-half-hour.md").read_text(encoding="utf-8")
    command = "longca choose causal_document -s 32K -d bwd --gpu h100"
    shown = guide.partition(f"$ {command}\n")[2].partition("\n…")[0]
    assert shown and longca(*command.split()[1:], COLUMNS="80").stdout.startswith(shown)


@pytest.mark.parametrize(("command", "other"), [("advise -m", "choose"), ("choose", "advise -m")])
def test_advise_and_choose_name_each_other_with_the_gpu(longca, command, other):
    """Without it, the one would answer for another GPU than the other."""
    done = longca(*command.split(), "causal", "-d", "fwd", "--gpu", "h100 sxm", COLUMNS="80")
    assert f"longca {other} causal -d fwd --gpu 'h100 sxm'" in done.stdout
