"""Failing system calls and a loss of power cost no record whose writing has returned."""

from pathlib import Path

import pytest

from tests.chaos.faults import COMMANDS, FAULTS, Disk, can_trace, command_harms, fault_harms, lost_to_power

needs_strace = pytest.mark.skipif(not can_trace(), reason="no process can be traced here")


@needs_strace
def test_a_loss_of_power_takes_no_finished_record(tmp_path: Path):
    assert lost_to_power(tmp_path) == []


@needs_strace
@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param(
            *each, marks=() if each in [("fsync", "EIO"), ("rename", "ENOSPC")] else pytest.mark.slow
        )
        for each in FAULTS
    ],
)
def test_a_failing_call_ends_in_one_line_and_loses_nothing(tmp_path: Path, call: str, error: str):
    assert fault_harms(tmp_path, call, error, 2) == []


@pytest.mark.parametrize(
    ("left_out", "loses"),
    [(None, ""), (2, "its content"), (4, "the name /r/cells/aa/x.json"), (5, "the name /r/cells/aa")],
)
def test_the_model_sees_each_step_that_is_left_out(left_out: int | None, loses: str):
    steps = [
        'openat(AT_FDCWD</w>, "/r/cells/aa/.x.tmp", O_WRONLY|O_CREAT|O_EXCL, 0666) = 3</r/cells/aa/.x.tmp>',
        'write(3</r/cells/aa/.x.tmp>, "{}", 2) = 2',
        "fsync(3</r/cells/aa/.x.tmp>) = 0",
        'rename("/r/cells/aa/.x.tmp", "/r/cells/aa/x.json") = 0',
        "fsync(4</r/cells/aa>) = 0",
        "fsync(5</r/cells>) = 0",
    ]
    disk = Disk("/r")
    disk.take('mkdir("/r/cells/aa", 0777) = 0')
    for number, line in enumerate(steps):
        if number != left_out:
            disk.take(line)
    assert disk.loses("/r/cells/aa/x.json") == loses


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_changes_no_record_and_can_be_run_again(tmp_path: Path, command: str):
    assert command_harms(tmp_path, command, "rename", 1) == []
