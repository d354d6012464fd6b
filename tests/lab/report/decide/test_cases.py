"""Cases of a setting: the worst share and the mean of each method, and what does not count."""

import pytest

from longca.lab.store.table import derived
from tests.helpers.report.cases import tallied, timed


def test_tallies_tell_the_worst_share_and_on_how_many_masks(small):
    tally = tallied(small[small.seqlen == 1024])
    assert list(tally) == ["flex", "sdpa", "naive"]
    flex, sdpa, naive = tally.values()
    assert (flex.num_cases, flex.num_clear, flex.num_shared) == (2, 1, 1)
    assert (flex.worst.where.mask_label, flex.worst.share) == ("causal", pytest.approx(1 / 1.03))
    assert (sdpa.num_cases, sdpa.worst.share, sdpa.worst.where.mask_label) == (2, pytest.approx(0.5), "full")
    assert (naive.num_cases, naive.num_could_not, naive.num_not_asked) == (1, 1, 0)


def test_a_lone_result_is_no_share():
    """sdpa is alone under full and the slower one under causal: both its worst and its mean are those of
    causal."""
    records = [
        timed("flex", "causal", 1.0, 1.0),
        timed("sdpa", "causal", 4.0, 4.0),
        timed("sdpa", "full", 1.0, 1.0),
    ]
    sdpa, flex = tallied(derived(records)).values()
    assert (sdpa.num_cases, sdpa.num_leading, sdpa.worst.share, sdpa.mean) == (
        2,
        0,
        pytest.approx(0.25),
        pytest.approx(0.25),
    )
    assert flex.worst.share == 1
