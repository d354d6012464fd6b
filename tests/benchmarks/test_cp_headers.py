"""The cost of headers is measured without other processes."""

import pytest

from benchmarks.cp.headers import main


def test_a_line_says_what_a_header_costs(capsys: pytest.CaptureFixture[str]):
    assert main(["--ranks", "3", "--calls", "80"]) == 0
    assert capsys.readouterr().out.startswith("3 ranks: ")
