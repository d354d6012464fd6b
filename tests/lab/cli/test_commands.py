"""The commands over a tiny study, as a user would call them."""

import json
import shutil

import pytest
import torch

from longca.lab.bench.measure.environment import device_name
from longca.lab.bench.run.method_version import method_version
from longca.lab.cli.main import COMMANDS, asked
from longca.lab.cli.options import print_table
from longca.lab.store.cells import CellStore
from longca.lab.studies.record import Others
from longca.lab.studies.study import load_study
from tests.helpers.records import record


def test_help_names_every_command(longca):
    done = longca("--help")
    assert done.returncode == 0
    assert "..." not in longca("-h", COLUMNS="80").stdout.partition("Commands:")[2], (
        "no description is cut off"
    )
    for command in (
        "doctor",
        "list",
        "explain",
        "plan",
        "run",
        "status",
        "report",
        "export",
        "claims",
        "paper",
        "compare",
        "data",
    ):
        assert f"  {command} " in done.stdout


def test_list_shows_all_kinds_and_is_json(longca):
    content = json.loads(longca("list", "--json").stdout)
    assert set(content) == {"masks", "kernels", "strategies", "corpora", "figures", "paper_figures", "claims"}
    assert [mask["no."] for mask in content["masks"]][:14] == list(range(1, 15))
    assert {"naive", "sdpa", "flex", "control", "matmul", "device_copy"} <= {
        kernel["name"] for kernel in content["kernels"]
    }
    parameters = {strategy["name"]: strategy["parameters"] for strategy in content["strategies"]}
    assert (parameters["ulysses"], parameters["usp"], parameters["loongtrain"]) == (
        "",
        "heads",
        "heads, windows",
    )


def test_plan_counts_cells_and_reasons(longca):
    plan = json.loads(longca("plan", "quick", "--json", "--cells").stdout)
    assert plan["num_cells"] == len(plan["cells"]) == len({cell["cell_id"] for cell in plan["cells"]})
    assert plan["hours"] > 0 and plan["methods"]["naive"]["most_bytes"] > 512**2 * 4 * 4


@pytest.mark.parametrize(
    "chosen",
    [("-m", "causal", "-w", "1..8"), pytest.param((), marks=pytest.mark.slow)],
    ids=["causal", "whole"],
)
def test_plan_of_the_paper_names_what_is_unsupported(longca, chosen):
    done = longca("plan", "paper", *chosen, "--gpu", "H100 SXM")
    assert done.returncode == 0, done.stderr
    assert "GPU hours" in done.stdout and "Not run" in done.stdout and "too large" in done.stdout


def test_status_says_what_others_disturbed(longca, tiny, tmp_path):
    """One of three cells was measured beside others: from the cells' files, and from a table of records
    alone."""
    folder = tmp_path / "results" / "tiny"
    store = CellStore(folder)
    busy, quiet, unknown = load_study(str(tiny)).cells()[:3]
    for cell, others in ((busy, Others(cpu_cores=1e6)), (quiet, Others(cpu_cores=0.0)), (unknown, None)):
        store.write(record(cell, study="tiny", others=others))
    said = f"Others used the device while 1 cell ran. When it is quiet: longca run {tiny} --retry disturbed"
    assert said in longca("status", tiny).stdout
    assert longca("export", tiny).returncode == 0
    shutil.rmtree(store.cells)
    assert (
        said in longca("status", tiny).stdout
        and json.loads(longca("status", tiny, "--json").stdout)["disturbed"] == 1
    )
    store.write(record(quiet, study="tiny", others=Others(cpu_cores=0.0)))
    assert "Others" not in longca("status", tiny).stdout


def test_status_run_export_report(longca, tiny, tmp_path):
    """On from some records and a truncated file: its cell and those without a record are measured, of the
    kernel that is asked for."""
    folder = tmp_path / "results" / "tiny"
    store = CellStore(folder)
    study = load_study(str(tiny))
    cells = study.cells()
    cut, kept, *_ = (cell for cell in cells if cell.kernel == "naive" and cell.kind == "kernel")
    store.write(record(cut, study="tiny"))
    path = store.path(cut.cell_id)
    path.write_text(path.read_text()[:100])
    assert path.name in longca("status", tiny).stdout
    assert longca("report", tiny).returncode == 2, "no whole record is left"
    others = [cell for cell in cells if cell.kernel == "sdpa"][1:]
    version = method_version(kept, study.measure_of(kept), device_name(torch.device("cpu")))
    finished = record(kept, study="tiny").model_copy(update={"method_version": version})
    files = [store.write(entry) for entry in (finished, *(record(cell, study="tiny") for cell in others))]
    times = [file.stat().st_mtime_ns for file in files]
    status = json.loads(longca("status", tiny, "--json").stdout)
    assert status["methods"]["sdpa"] == {"ok": 3, "left": 1} and status["methods"]["naive"] == {
        "ok": 1,
        "left": 3,
    }
    ran = longca("run", tiny, "-k", "naive", "-c", "!*")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert [file.stat().st_mtime_ns for file in files] == times, "finished cells are not measured again"
    assert json.loads(path.read_text())["outcome"]["status"] == "ok"
    status = json.loads(longca("status", tiny, "--json").stdout)
    assert status["methods"] == {
        "naive": {"ok": 4},
        "sdpa": {"ok": 3, "left": 1},
        "ulysses+naive": {"left": 1},
    }
    exported = longca("export", tiny)
    assert exported.returncode == 0 and (folder / "records.csv").read_text().count("\n") > 8
    assert json.loads(longca("export", tiny, "--json").stdout)["num_records"] == 7
    page = longca("report", tiny)
    assert (
        page.stdout.splitlines()[-1] == str(folder / "report.html")
        and (folder / "report.html").stat().st_size > 10_000
    )
    shown = longca("explain", tiny, "-k", "naive", "-m", cut.mask, "-d", cut.direction, "-c", "!*")
    assert "last result  ok: " in shown.stdout, shown.stdout + shown.stderr


def test_tables_keep_their_titles_whole_and_their_brackets(capsys):
    print_table("a title that is longer than its table [/x]", ["name"], [["[/y] :smile:"]], caption="[z]")
    text = capsys.readouterr().out
    assert text.splitlines()[0].rstrip() == "a title that is longer than its table [/x]"
    assert "[/y] :smile:" in text and "[z]" in text


@pytest.mark.long
def test_doctor_says_what_is_there(longca):
    assert longca("doctor").stdout.startswith("This machine can measure on ")
    checks = {check["check"]: check for check in json.loads(longca("doctor", "--json").stdout)}
    assert checks["torch"]["state"] == "ok" and checks["kernel sdpa"]["state"] == "ok"


def test_data_show_and_masks(longca, tiny):
    shown = json.loads(longca("data", "show", "pile", "-s", "4K", "--json").stdout)
    assert sum(shown["drawn"]) == 4096
    masks = json.loads(longca("data", "masks", tiny).stdout)
    assert {row["mask"] for row in masks} == {"full", "causal_document", "causal"}
    drawn = json.loads(longca("data", "sample", tiny).stdout)
    assert all(sum(row["lengths"]) == row["seqlen"] for row in drawn)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "quick"], ("plan",)),
        (["--help"], COMMANDS),
        ([], COMMANDS),
        (["plam"], COMMANDS),
        (["--version", "list"], ("list",)),
    ],
)
def test_only_the_command_that_is_asked_for_is_imported(words: list[str], expected: tuple[str, ...]):
    assert asked(words) == expected


def test_the_nearest_command_of_a_wrong_name_is_told(longca):
    done = longca("plam")
    assert done.returncode == 2 and "No such command 'plam'" in done.stderr and "plan" in done.stderr
