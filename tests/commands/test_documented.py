"""Every command that README and guides name is run by `.ci/run` or by a target that notes when it passed, or
a page says that none does."""

import os
import re
import subprocess

import pytest

from tests.commands import documented
from tests.commands.documented import Elsewhere, elsewhere, unaccounted
from tests.helpers.support import ROOT
from tools import checks
from tools.pages import put

CI = (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_every_command_is_run_somewhere_or_listed():
    assert unaccounted() == [], "run them in tests/commands, or list them in tests/commands/elsewhere.yaml"


def _runs(entry: Elsewhere, commands: list[str]) -> bool:
    """True if what the entry names runs these commands, or gives a reason why nothing does."""
    path, _, name = entry.by.partition("::")
    if entry.by == "make":
        return {command.split()[1] for command in commands} <= {*checks.targets()}
    if entry.by == ".ci/run":
        made = {target for line in CI.splitlines() if line.startswith("lane ") for target in line.split()}
        return {command.removeprefix("make ") for command in commands} - {"setup"} <= made
    if entry.by:
        file = ROOT / path
        return file.exists() and (not name or f"def {name}(" in file.read_text(encoding="utf-8"))
    return bool(entry.why)


def test_what_is_said_to_run_them_does():
    commands = {
        entry.commands: [command for command in documented.documented() if entry.has(command)]
        for entry in elsewhere()
    }
    assert [entry.commands for entry in elsewhere() if not commands[entry.commands]] == [], (
        "no page names them"
    )
    assert [entry.commands for entry in elsewhere() if entry.by and entry.why] == []
    assert [entry.commands for entry in elsewhere() if not _runs(entry, commands[entry.commands])] == []


def test_the_page_lists_what_nothing_runs():
    page = checks.PAGE.read_text(encoding="utf-8")
    assert page == put(page, documented.MARK, documented.table()), "run `make docs`"


def test_commands_are_found_in_blocks_transcripts_and_sentences():
    text = (
        "```bash\nmake setup && longca plan quick   # a note\nlongca image contents cpu > "
        "cpu.json\n```\n```console\n$ longca doctor\n"
        "longca says\n```\n```python\nlongca.plan(1)\n```\nRun `longca run quick -k\nsdpa` or `config`.\n"
    )
    actual = [command for block in documented._blocks(text) for command in documented._commands(block)]
    assert actual == [
        "make setup",
        "longca plan quick",
        "longca image contents cpu",
        "longca doctor",
        "longca run quick -k sdpa",
    ]


def test_the_table_has_a_row_for_each_target_that_notes_itself():
    page = checks.PAGE.read_text(encoding="utf-8")
    rows = checks.rows(page)
    assert page == put(page, checks.MARK, checks.table(rows)), "run `make docs`"
    assert {"test-all", "test-chaos", "test-images-all", "test-slurm-all"} <= rows.keys()
    for row in rows.values():
        assert row == checks.NEVER or (
            len(row) == len(checks.COLUMNS) - 1
            and re.fullmatch(r"20\d\d-\d\d-\d\d", row[0])
            and re.fullmatch(r"[0-9a-f]{10}", row[1])
            and row[2] in ("clean", "changed")
        )


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (["test-all", "whole", "--", "true"], True),
        (["test-all", "part", "--", "true"], False),
        (["test-all", "whole", "--", "false"], False),
    ],
)
def test_a_check_is_noted_when_it_has_passed_as_a_whole(words, noted, tmp_path, capfd):
    page = tmp_path / "checks.md"
    page.write_text("<!-- begin checks -->\n<!-- end checks -->\n")
    assert checks.main(words, page) == (words[-1] == "false")
    rows = checks.rows(page.read_text())
    assert (rows["test-all"] != checks.NEVER) is noted
    assert ("not noted" in capfd.readouterr().err) is not noted


@pytest.mark.parametrize(
    ("arguments", "extent"),
    [("", "whole"), ("-v --durations=40", "whole"), ("-k masks -v", "part"), ("tests/cp", "part")],
)
def test_arguments_that_choose_no_tests_leave_a_check_whole(arguments: str, extent: str):
    own = {name: value for name, value in os.environ.items() if name not in ("NOTED", "MAKEFLAGS")}
    command = ["make", "-n", "test-all", f"ARGS={arguments}"]
    printed = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout
    assert f"tools.checks test-all {extent} --" in printed


def test_a_check_whose_tests_this_machine_cannot_do_is_not_noted(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        f'<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped message="{checks.CANNOT} no '
        f'image"/>'
        '</testcase><testcase name="c"><skipped message="other"/></testcase></testsuite></testsuites>'
    )
    assert checks.counts(report) == {"passed": 1, "skipped": 2, "unfit": 1}


@pytest.mark.parametrize(
    ("required", "outcome"), [("images slurm", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_without_an_image_tests_fail_in_ci_and_are_left_out_elsewhere(required, outcome, monkeypatch):
    from tests.helpers.support import cannot

    monkeypatch.setenv(checks.REQUIRED, required)
    with pytest.raises(outcome, match="there is no apptainer"):
        cannot("images", "there is no apptainer")


def test_ci_requires_images_and_a_cluster_unless_it_is_told_otherwise():
    assert f'export {checks.REQUIRED}="${{{checks.REQUIRED}-images slurm}}"' in CI
