"""Nothing that a user gives is left out in silence, and each mistake is told in its own words."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["choose", "-w", "two"], ["Invalid value 'two' for '--world'"]),
        (["bench", "none.py", "--head-dim", "x"], ["Invalid value 'x' for '--head-dim'"]),
        (["advise", "causal", "--draws", "0"], ["'0'", "'--draws'"]),
        (["choose", "causal", "causal_document"], ["Two masks are given, 'causal' and 'causal_document'"]),
        (["choose", "-m", "causal", "full"], ["Two masks are given"]),
        (["choose", "causal", "README.md"], ["File 'README.md' holds no records", ".parquet"]),
        (["claims", "reports/paper/data/claims.csv"], ["claims.csv' holds no records"]),
        (["choose", "causal", "docs"], ["Folder 'docs' holds no records"]),
        (["choose", "causal", "nosuch"], ["Unknown study 'nosuch'"]),
        (["list", "masks", "-s", "8K"], ["'--seqlen' is for the matrix", "`longca list matrix`"]),
        (["list", "--head-dim", "64"], ["'--head-dim' is for the matrix"]),
        (["advise", "causal", "--draws", "3"], ["Mask 'causal' is not drawn. Leave draws out"]),
        (["advise", "-s", "1K", "-w", "2048"], ["1K tokens cannot be divided among 2,048 GPUs"]),
        (["advise", "-w", "1000000"], ["32K tokens cannot be divided among 1,000,000 GPUs"]),
        (["advise", "--gpu", "h300"], ["Unknown GPU 'h300'", "H100 SXM", "H200 SXM"]),
    ],
)
def test_it_is_one_line(longca, arguments, expected):
    done = longca(*arguments, here=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout
    for part in expected:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("causal", ["causal -d fwd", "causal -d bwd"]),
        ("causal -d bwd --gpu h100", ["causal -d bwd --gpu h100"]),
        ("causal -d fwd+bwd", ["causal"]),
        ("causal_document -d bwd --gpu h200", ["causal_document -d bwd --gpu 'H200 SXM' --draws 8"]),
    ],
)
def test_each_question_has_one_command_that_predicts_it(longca, words, commands):
    """Advice without a direction is about the sum of both, which is another question than each by itself."""
    said = longca("choose", *words.split(), COLUMNS="200").stdout
    found = [line.partition("longca advise -m ")[2] for line in said.splitlines() if "longca advise" in line]
    assert found == commands
