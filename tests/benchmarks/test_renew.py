"""The renewal of results within a time limit: order, GPUs, interruption, archives. Its parts are small
programs here."""

import shlex
import signal
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks import renew
from benchmarks.renew import PARTS, Part, pack
from longca.lab.studies.study import load_study
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

PROGRAM = """import os, sys, time, pathlib
name, seconds = sys.argv[1:]
log = pathlib.Path(os.environ["RENEW_LOG"])
def say(what):
    with log.open("a") as file:
        file.write(f"{name} {what} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
say("begins")
try:
    time.sleep(float(seconds))
    say("ends")
except KeyboardInterrupt:
    say("stopped")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program_of_test.py").write_text(PROGRAM)
    monkeypatch.setattr(renew, "ROOT", tmp_path)
    monkeypatch.setattr(renew, "FOLDER", tmp_path / "results")
    monkeypatch.setenv("RENEW_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def part(name: str, seconds: float, *, all_gpus: bool = False, files: tuple[str, ...] = ()) -> Part:
    return Part("a test", f"program_of_test {name} {seconds}", all_gpus, files)


def test_parts_of_one_gpu_run_side_by_side_and_those_of_all_alone(place: Path) -> None:
    parts = {
        "a": part("a", 0.4),
        "b": part("b", 0.4),
        "c": part("c", 0.1, all_gpus=True),
        "d": part("d", 0.1),
    }
    assert sorted(renew.renew(parts, 2, 60.0)) == ["a", "b", "c", "d"]
    lines = (place / "log").read_text().splitlines()
    assert set(lines[:2]) == {"a begins 0", "b begins 1"}
    assert lines[4:6] == ["c begins 0,1", "c ends 0,1"] and lines[6:] == ["d begins 0", "d ends 0"]


def test_gpus_are_those_that_are_visible(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    renew.renew({"a": part("a", 0.3), "b": part("b", 0.3)}, 2, 60.0)
    assert set((place / "log").read_text().splitlines()[:2]) == {"a begins 2", "b begins 5"}


@pytest.mark.parametrize(
    "disposition", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"]
)
def test_at_the_end_of_the_time_parts_are_interrupted_and_others_not_begun(
    place: Path, capsys: pytest.CaptureFixture[str], disposition: object
) -> None:
    """Also where a script has started it in the background, so that it ignores SIGINT."""
    begun = time.monotonic()
    before = signal.signal(signal.SIGINT, disposition)
    try:
        assert renew.renew({"long": part("long", 60.0), "next": part("next", 0.1)}, 1, 1.5) == []
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < 30
    assert (place / "log").read_text().splitlines() == ["long begins 0", "long stopped 0"]
    said = capsys.readouterr().out
    assert "long is interrupted" in said and "not begun: next" in said


def test_a_part_that_does_not_end_is_killed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "deaf_of_test.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(300)\n"
    )
    monkeypatch.setattr(renew, "GRACE_S", 0.5)
    begun = time.monotonic()
    assert (
        renew.renew({"deaf": Part("a test", "deaf_of_test"), "other": Part("a test", "deaf_of_test")}, 2, 1.5)
        == []
    )
    assert time.monotonic() - begun < 30


def test_what_ended_by_itself_is_not_next_again(place: Path) -> None:
    parts = {"ends": part("ends", 0.1), "lasts": part("lasts", 30.0)}
    assert renew.renew(parts, 2, 3.0) == ["ends"]
    assert {name: renew.has_ended(name, each) for name, each in parts.items()} == {
        "ends": True,
        "lasts": False,
    }
    assert not renew.has_ended("ends", part("ends", 0.2)), "another part of that name"


def test_archives_hold_what_parts_have_written(place: Path) -> None:
    parts = {"a": part("a", 0.0, files=("elsewhere.csv", "nowhere.csv")), "never": part("never", 0.0)}
    renew.renew({"a": parts["a"]}, 1, 60.0)
    (place / "elsewhere.csv").write_text("1")
    pack(parts, place / "home")
    assert [path.name for path in (place / "home").iterdir()] == ["a.tar.gz"]
    with tarfile.open(place / "home/a.tar.gz") as archive:
        assert {"results/a/log.txt", "elsewhere.csv"} <= set(archive.getnames())


def test_its_studies_kernels_and_modules_exist() -> None:
    for entry in PARTS.values():
        module, *arguments = shlex.split(entry.command)
        if module == "longca":
            assert load_study(arguments[1]).cells(), entry.command
        else:
            assert module == "pytest" or (ROOT / f"{module.replace('.', '/')}.py").is_file(), entry.command


def test_an_unknown_part_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        renew.main(["dens"])
    assert "did you mean 'dense'" in capsys.readouterr().err.splitlines()[-1]
