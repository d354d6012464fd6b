"""A call after all of an input has changed, beside one after few changes.

Between timed calls a few rows of the inputs change. A kernel could keep its last result and compute what
follows from these rows alone: it would be right, fast, and of no use. So after the samples, values (in a
backward, output gradients) are reversed and multiplied as a whole. The judge computes what follows from the
reversed ones, and attention is linear in the factor. A call that then takes much longer has computed
differences in the samples. A factor alone would not do: a kernel could multiply the result that it has kept.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable

import torch

from longca.lab.bench.check.timed_calls import TimedCalls
from longca.lab.studies.record import Samples

FACTORS = (-1.0, 2.0, -2.0, 4.0, -4.0)
"""exact in every dtype, and exactly undone; taken in turn"""
MOST_RATIO = 2.0
LEAST_ROUNDS = 4
# A scheduler may interrupt each of a few short calls: under load four of four were once ten times as long.
MOST_ROUNDS = 24
MOST_SECONDS = 2.0  # of work: no scheduler doubles so long calls, which have had the least number of rounds


def slower_by(
    calls: TimedCalls, change: Callable[[float], object], samples: Samples, device: torch.device
) -> float | None:
    """By what factor a call takes longer after all of an input has changed; None if by no more than
    `MOST_RATIO`.

    Args:
        change: reverses and multiplies the input in which the result is linear; the inverse factor undoes it.
    """
    [times_ms, *_] = samples.time_ms
    if _changed_ms(calls, change, FACTORS[0], device) <= MOST_RATIO * statistics.median(times_ms):
        return None
    changed_ms = math.inf
    usual_ms = math.inf
    # on a CPU that others keep busy little work is done in two seconds
    clock = time.monotonic if device.type == "cuda" else time.process_time
    start = clock()
    # the machine may have become slower: calls of both kinds alternate
    for count, factor in enumerate(itertools.islice(itertools.cycle(FACTORS[::-1]), MOST_ROUNDS), 1):
        usual_ms = min(usual_ms, _usual_ms(calls, device))
        changed_ms = min(changed_ms, _changed_ms(calls, change, factor, device))
        if count < LEAST_ROUNDS:
            continue
        if changed_ms <= MOST_RATIO * usual_ms:
            return None
        if clock() - start >= MOST_SECONDS:
            break
    return changed_ms / usual_ms


def _usual_ms(calls: TimedCalls, device: torch.device) -> float:
    """The time of a second call: before the first one, all was changed back."""
    elapsed_ms = 0.0
    for _ in range(2):
        calls.before()
        elapsed_ms = _time_ms(calls, device)
        calls.after(timed=False)
    return elapsed_ms


def _changed_ms(
    calls: TimedCalls, change: Callable[[float], object], factor: float, device: torch.device
) -> float:
    calls.before()
    change(factor)
    elapsed_ms = _time_ms(calls, device)
    calls.keep_scaled(factor)
    calls.after(timed=False)
    change(1.0 / factor)
    return elapsed_ms


def _time_ms(calls: TimedCalls, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start_ns = time.perf_counter_ns()
    calls()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - start_ns) / 1e6
