"""The controls of a page: the timer, and what the device can do."""

import re

import pytest

from longca.lab.report.build import build
from tests.helpers.records import gpu_study
from tests.helpers.report.outline import Outline


def test_it_says_whether_the_timer_can_be_trusted_and_what_the_device_can_do(text):
    timer, ceilings = re.search(r'id="timer">(.*?)id="ceilings">(.*?)</section>', text, re.DOTALL).groups()
    assert re.findall(r">([\d.]+ ms)</a>", timer) == ["0.5 ms", "1 ms", "2 ms"] and "matmul" not in timer
    assert re.findall(r">(\w+)</a>", ceilings) == ["matmul", "device_copy"]
    assert re.search(r"2K × 2K, bf16</td>.*?1\d\d\.\d GFLOP/s", ceilings, re.DOTALL)
    assert re.search(r"512 MiB read and written</td>.*?1[12]\.\d+ GB/s", ceilings, re.DOTALL)
    assert "Of the maker" not in ceilings, "no source says what this CPU can do"


@pytest.mark.usefixtures("no_figures")
def test_a_gpus_ceilings_are_held_against_its_maker(tmp_path):
    chosen = [
        entry
        for entry in gpu_study()
        if entry.work
        or (
            entry.cell.mask == "full"
            and entry.cell.seqlen == 8192
            and entry.cell.num_kv_heads == 8
            and entry.cell.direction == "fwd"
        )
    ]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    ceilings = re.search(r'id="ceilings">(.*?)</section>', text, re.DOTALL)[1]
    assert "Of the maker" in ceilings and len(re.findall(r">\d\d %</td>", ceilings)) == 3
    assert "% of ceiling" in text
    Outline(text)


def test_without_controls_the_page_says_so(tmp_path):
    chosen = [entry for entry in gpu_study()[-9:] if entry.work is None]
    text = build(chosen, [], tmp_path / "report.html", study_title="x").read_text(encoding="utf-8")
    assert "nothing on this page validates the timer" in text and "shares of a ceiling are omitted" in text
    assert "of ceiling" not in text.split("<script", 2)[1] and 'href="#ceilings"' not in text
    Outline(text)
