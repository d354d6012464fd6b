"""Plans of masks: a strategy chosen by cost, masks planned ahead, and a rank that fails to plan."""

import torch

from tests.helpers.cp.public_calls import CAUSAL, DOCUMENTS, OWN, TOLERANCE, T, error, results


def test_auto_takes_what_the_cost_model_says_is_quickest_and_says_so():
    for rank, of_rank in enumerate(results()):
        actual = of_rank["auto"]
        assert actual["estimated"].keys() == set(OWN)
        assert actual["strategy"] == min(actual["estimated"], key=actual["estimated"].get)
        assert f"rank {rank} of 2: {actual['strategy']}, chosen by cost over naive" in actual["repr"]
        assert actual["tokens"][1:] == (T, actual["tokens"][0])
        assert torch.equal(actual["restored"], torch.arange(T))
        assert actual["costs"]["waited_ms"] >= actual["costs"]["plan_ms"] > 0


def test_a_mask_that_was_planned_ahead_is_right_and_kept():
    for of_rank in results():
        ahead = of_rank["ahead"]
        assert error(ahead["results"], CAUSAL) < TOLERANCE
        assert ahead["again"]["plan_ms"] == ahead["costs"]["plan_ms"], "planned once"
        assert ahead["again"]["waited_ms"] < ahead["costs"]["plan_ms"]
        assert of_rank["group is left"]


def test_where_one_rank_fails_all_raise_and_go_on():
    texts = [of_rank["failure"] for of_rank in results()]
    assert texts == ["RuntimeError: rank 1 failed: MemoryError: no room", "MemoryError: no room"]
    assert all(error(of_rank["after it"], DOCUMENTS) < TOLERANCE for of_rank in results())
