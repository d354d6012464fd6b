"""Totals of several directions: times add up, errors as independent ones do, and the tie rule is the same."""

from math import exp, hypot, sqrt
from statistics import median
from typing import Any

import pytest

from longca.lab.ranking import standing
from longca.lab.ranking.measurement import Measurement
from longca.lab.ranking.order import Standing
from longca.lab.ranking.point import MeasuredPoint
from longca.lab.ranking.total import total_measurement, total_point, total_standing

SPREAD = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)


def cell(ms: float, work: float = 1e3, **facts: Any) -> Measurement:
    """Samples around a time of so much work, on one device in one run."""
    usual: dict[str, Any] = {"device": "NVIDIA H200", "unit": "GPU-1", "run": "one"}
    return Measurement.timed([ms * each for each in SPREAD], work, **(usual | facts))


def case(**times_ms: float | list[Measurement]) -> Standing:
    cells = {name: [cell(ms)] if isinstance(ms, (int, float)) else ms for name, ms in times_ms.items()}
    return standing([MeasuredPoint(name, tuple(of_method)) for name, of_method in cells.items()])


def test_times_and_work_add_up_and_half_widths_as_independent_errors_do():
    forward, backward = cell(2.0, 700.0), cell(6.0, 1750.0)
    total = total_measurement([forward, backward])
    assert total is not None and median(total.times_ms) == pytest.approx(8.0)
    assert total.rate == pytest.approx((700 + 1750) / 8)
    longer = hypot(*(part.rate / part.low * ms - ms for part, ms in ((forward, 2.0), (backward, 6.0))))
    assert total.rate / total.low * 8 - 8 == pytest.approx(longer)
    alone = (forward.rate / forward.low - 1) * 8  # if errors of both were the same
    assert longer < alone
    assert total.num_samples == 2 * len(SPREAD) and total.num_cells == 2
    assert total.num_independent == pytest.approx(64 / 40)
    assert total_measurement([forward, Measurement(1.0, 1.0, 1.0)]) is None, (
        "without samples there is no time"
    )


def test_totals_are_of_draws_and_of_a_protocol_that_all_directions_have():
    forward = MeasuredPoint("a", tuple(cell(1.0 + seed, seed=seed, rests=seed > 1) for seed in range(4)))
    backward = MeasuredPoint("a", tuple(cell(3.0, seed=seed, rests=True) for seed in (1, 3, 5)))
    total = total_point([forward, backward])
    assert total is not None and [part.seed for part in total.measurements] == [3]
    assert total_point([forward, MeasuredPoint("a", (cell(3.0, seed=9),))]) is None


def test_the_sum_ranks_by_itself():
    """The first forward is not the first together, and what differs less than repeats do is a tie."""
    cases = {"forward": case(a=1.0, b=1.3, c=1.31), "backward": case(a=4.0, b=3.0, c=3.0)}
    together, left_out = total_standing(cases)
    assert together is not None and not left_out
    assert [entry.method for entry in together.entries] == ["b", "c", "a"]
    assert together.leaders == ("b", "c") and together.relation == "run"
    lead = together.entries[1].behind
    assert lead is not None
    resolution, count = lead.resolution, cell(4.3).num_independent
    assert count == 1.0 and exp(lead.log_resolution) <= exp(resolution.log_ratio)
    parts = together.first.point.measurements[0].num_independent
    shrunk = sqrt(resolution.common + (1 - resolution.common) / parts)
    assert lead.log_resolution == pytest.approx(resolution.log_ratio * shrunk, rel=1e-3)


def test_what_lacks_a_direction_is_left_out_with_the_reason():
    forward = case(a=1.0, b=1.1, c=1.2, d=[cell(1.0, seed=7)])
    backward = standing([entry.point for entry in case(a=4.0, d=4.0).entries], {"c": "oom"})
    together, left_out = total_standing({"forward": forward, "backward": backward})
    assert together is not None and [entry.method for entry in together.entries] == ["a"]
    assert left_out == {
        "b": "no record backward",
        "c": "backward oom",
        "d": "no draw was measured forward and backward by one protocol",
    }
    assert together.could_not == {"c": "oom"} and together.not_asked == ("b", "d")
    nothing, _ = total_standing({"forward": case(a=1.0), "backward": case(b=1.0)})
    assert nothing is None


def test_devices_and_runs_of_both_directions_decide_how_close_two_totals_are():
    cases = {
        "forward": case(a=[cell(1.0)], b=[cell(1.0)]),
        "backward": case(a=[cell(3.0)], b=[cell(3.0, run="two")]),
    }
    together, _ = total_standing(cases)
    assert together is not None and together.relation == "device"
    cases["backward"] = case(a=[cell(3.0)], b=[cell(3.0, unit="")])
    together, _ = total_standing(cases)
    assert together is not None and together.relation == "model"


def test_draws_that_the_first_wins_are_those_that_it_has_beside_another():
    first = [cell(1.0, seed=seed) for seed in range(4)]
    second = [cell(0.9 if seed == 2 else 1.4, seed=seed) for seed in (1, 2, 3)]
    assert case(a=first, b=second).shared_draws == {1: True, 2: False, 3: True}
