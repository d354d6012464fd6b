"""Progress of a run, in a terminal and elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from longca.core.errors import UserError
from longca.lab.bench.run import progress
from longca.lab.bench.run.progress import Both, LogProgress, PlainProgress, RichProgress, make_progress
from longca.lab.bench.run.scores import Score
from longca.lab.studies.cell import Cell
from longca.lab.studies.outcome import Failed, TimedOut, Unsupported
from longca.lab.studies.record import Record
from tests.helpers.bench.misbehaving import kernel_cell
from tests.helpers.records import record as timed_record


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def record(outcome: object, seqlen: int = 32, **fields: object) -> Record:
    cell = kernel_cell("naive", seqlen, **fields)
    return Record(
        cell_id=cell.cell_id,
        cell=cell,
        study="s",
        run_id="r",
        method_version="m",
        outcome=outcome,
        started_at="2026-01-01T00:00:00+00:00",
        seconds=1.25,
    )


def cells(number: int) -> list[Cell]:
    """So many cells of different lengths, 32 among them."""
    return [kernel_cell("naive", seqlen) for seqlen in range(32, 32 + number)]


def timed(kernel: str, tflops: float) -> Record:
    return timed_record(kernel_cell(kernel, 64), tflops=tflops)


def test_plain_is_one_line_a_cell_with_the_reason_and_an_eta(clock):
    stream = io.StringIO()
    show = PlainProgress(stream)
    show.start(cells(12), [Score.of(record(Unsupported(reason="before")))] * 2, Path("logs"))
    clock.now = 3.0
    show.end(record(Unsupported(reason="no\nbands")))
    show.note("a note")
    clock.now = 10.0
    log = "while at: fwd\nraised at: mine.py:7 in forward\n"
    show.end(record(Failed(type="RuntimeError", message="boom" + " and so on" * 99, log=log)))
    show.close()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("12 cells (") and lines[0].endswith("): 2 measured before, 10 to do")
    assert lines[1] == " 1/10 eta 0:00:27  naive 32 causal  unsupported  (no bands)"
    assert lines[2] == "a note"
    assert lines[3].startswith(" 2/10 eta 0:00:40  naive 32 causal  error  (RuntimeError: boom and so on")
    assert lines[3].endswith(" …; at mine.py:7 in forward; logs in logs/)") and len(lines) == 4


def test_a_hang_and_a_crash_name_the_line_as_an_error_does(clock):
    show = PlainProgress(io.StringIO())
    show.start(cells(4), [])
    died = Failed(
        type="WorkerDied",
        message="worker died: it was killed by SIGSEGV",
        log="Fatal Python error: Segmentation fault\n" * 3,
    )
    for outcome in (TimedOut(seconds=2.0), died):
        show.end(
            record(outcome).model_copy(
                update={"notes": ("q is copied", "rank 0 was at mine.py:7 in forward")}
            )
        )
        assert show.board.scores[
            -1
        ].raised_at == "mine.py:7 in forward" and "; at mine.py:7 in forward" in show.line(None)
    of_ranks = record(TimedOut(seconds=2.0), kind="cp", strategy="ulysses", world=2, num_kv_heads=2)
    notes = ("rank 0 was at p2p.py:40 in wait", "rank 1 was at mine.py:7 in forward")
    assert (
        Score.of(of_ranks.model_copy(update={"notes": notes})).raised_at
        == "p2p.py:40 in wait (rank 0), mine.py:7 in forward (rank 1)"
    )


def test_a_timed_cell_shows_time_rate_and_its_share_of_the_best_so_far(clock):
    """The best may be from before the run."""
    show = PlainProgress(io.StringIO())
    show.start(
        [kernel_cell(kernel, 64) for kernel in ("naive", "sdpa", "flex")], [Score.of(timed("naive", 0.5))]
    )
    ends = []
    for kernel, tflops in (("sdpa", 0.25), ("flex", 1.0)):
        show.end(timed(kernel, tflops))
        time_ms = show.board.scores[-1].time_ms
        ends.append(show.line(80).split())
        assert float(ends[-1][2]) == pytest.approx(time_ms, rel=0.01)
    assert (ends[0][:2], ends[0][3], ends[0][5]) == (["sdpa", "causal"], "ms", "GFLOP/s") and abs(
        int(ends[0][6]) - 50
    ) <= 3
    assert (ends[1][0], ends[1][5:]) == ("flex", ["GFLOP/s", "100", "%"])


def test_a_method_without_a_rival_has_no_share(clock):
    show = PlainProgress(io.StringIO())
    show.start(cells(2))
    show.end(timed("naive", 0.5))
    assert show.line(80).rstrip().endswith("GFLOP/s")
    show.end(timed("naive", 0.4))
    assert "%" not in show.line(80), "another record of the same method is no rival"


def test_lines_fit_the_terminal(clock):
    show = PlainProgress(io.StringIO())
    long = kernel_cell("naive", 64, mask="global_sliding_window", mask_params={"window": 16, "num_global": 8})
    show.start(
        [long, kernel_cell("sdpa", 32, mask="full")], logs=Path("results/quick/logs/20261123T083453Z-ea405c")
    )
    show.end(timed_record(long, tflops=0.1))
    assert len(show.line(60, "1/2 eta 0:00:00  ")) <= 60
    show.end(record(Failed(type="RuntimeError", message="boom " * 30)))
    wrapped = show.line(60, "2/2 eta 0:00:00  ").splitlines()
    assert len(wrapped) > 3 and max(map(len, wrapped)) <= 60


def test_the_live_display_fits_60_columns(clock):
    show = RichProgress(Console(file=io.StringIO(), width=60))
    show.start(cells(1500), [Score.of(record(Unsupported(reason="before")))] * 250)
    show.begin(
        kernel_cell(
            "naive", 131072, mask="global_sliding_window", mask_params={"window": 1024, "num_global": 512}
        )
    )
    for outcome in [Unsupported(reason="x")] * 3 + [TimedOut(seconds=1)] * 2:
        show.end(record(outcome))
    show.begin(
        kernel_cell(
            "naive", 131072, mask="global_sliding_window", mask_params={"window": 1024, "num_global": 512}
        )
    )
    clock.now = 5000.0
    console = Console(file=io.StringIO(), width=60)
    console.print(show.render())
    show.close()
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3 and max(len(line.rstrip()) for line in lines) <= 60
    assert "5/1250  ETA 14 days, 9:48:20"[:17] in lines[0]
    assert lines[1].split() == ["ok", "0", "unsupported", "3", "oom", "0", "failed", "2", "left", "1245"]
    assert lines[2].startswith("now: naive global_sliding_window(window=1024")


def test_the_live_display_keeps_what_went_wrong(clock):
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    show = RichProgress(console)
    show.start(cells(3))
    show.end(record(Failed(type="RuntimeError", message="boom")))
    show.end(record(Unsupported(reason="not this")))
    show.end(timed("naive", 0.5))
    show.end(timed("sdpa", 1.0))
    show.note("another thing")
    show.close()
    text = console.file.getvalue()
    assert "RuntimeError: boom" in text and "another thing" in text and "not this" not in text
    assert "GFLOP/s 100 %" in text


def test_a_log_takes_the_same_lines_and_is_added_to(tmp_path, capsys):
    path = tmp_path / "logs" / "run.log"
    for _ in range(2):
        show = make_progress("plain", path)
        assert isinstance(show, Both)
        show.start(cells(1))
        show.begin(kernel_cell("naive"))
        show.end(record(Unsupported(reason="why")))
        show.note("noted")
        assert show.num_left == 0
        show.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 6 and capsys.readouterr().err.splitlines() == lines


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        LogProgress(tmp_path / "file" / "run.log")


def test_a_log_on_a_full_disk_stops_no_cell(capsys):
    show = LogProgress(Path("/dev/full"))
    show.start(cells(1))
    show.note("more")
    show.close()
    assert capsys.readouterr().err == "longca: Some lines of /dev/full are missing: No space left on device\n"


@pytest.mark.parametrize(
    ("mode", "terminal", "ci", "kind"),
    [
        ("auto", True, "", RichProgress),
        ("auto", False, "", PlainProgress),
        ("auto", True, "1", PlainProgress),
        ("rich", False, "1", RichProgress),
        ("plain", True, "", PlainProgress),
    ],
)
def test_which_display(monkeypatch, mode, terminal, ci, kind):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("CI", ci)
    assert type(make_progress(mode)) is kind
