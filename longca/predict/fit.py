"""Fitting of a kernel's costs to measured times, and held-out residuals.

Costs are fitted by non-negative least squares on relative errors. The tile shape and the throttle are the
best pair of candidates. Records are held out by mask and by length, never individually, since a kernel's
times on one mask are correlated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from longca.predict.fitted import Interval, KernelModel, clock_slowdown
from longca.predict.kernel import FEATURES, TileShape

SHAPES = (
    TileShape(128, 128),
    TileShape(128, 128, 16),
    TileShape(128, 64),
    TileShape(128, 64, 16),
    TileShape(64, 64),
    TileShape(64, 64, 16),
    *(TileShape(rows, keys, 1, per_block=True) for rows, keys in ((128, 64), (64, 64), (128, 128))),
)
THROTTLES = (0.0, 0.05, 0.08, 0.11, 0.14, 0.17, 0.2, 0.24)
UNSHARED = FEATURES.index("unshared")
FEWEST = 12  # records of a kernel and direction
SPLITS: tuple[tuple[str, ...], ...] = (
    (),
    ("plain",),
    ("rows",),
    ("heads",),
    ("lists",),
    ("blocks",),
    ("plain", "heads"),
    ("rows", "heads"),
    ("lists", "heads"),
    ("rows", "blocks"),
    ("lists", "blocks"),
)
"""labels by which a kernel's records may be fitted separately, since some kernels use special algorithms for
some calls"""


@dataclass(frozen=True)
class Sample:
    """One measured call."""

    amounts: tuple[np.ndarray, ...]
    """amounts for each of SHAPES, (6,)"""
    seconds: float
    mask: str
    """groups by which samples are held out"""
    seqlen: int
    labels: Mapping[str, str]
    """`form_labels` of the call"""
    way: str = ""
    """algorithm of the kernel: see `longca.predict.kernel`"""
    heads_per_kv: int = 1
    """query heads for each KV head"""


@dataclass(frozen=True)
class _Fit:
    shape: int
    throttle: float
    costs: np.ndarray
    miss: float

    def predicted(self, samples: Sequence[Sample]) -> np.ndarray:
        at_boost = np.array([sample.amounts[self.shape] for sample in samples]) @ self.costs
        return at_boost * clock_slowdown(at_boost, self.throttle)


def fit_kernel(
    kernel: str, direction: str, samples: Sequence[Sample], form: tuple[str, ...] = (), *, judged: bool = True
) -> KernelModel:
    """Fits one kernel in one direction.

    Args:
        form: form of the model.
        judged: also hold out masks and lengths; otherwise intervals come from the fit itself, which is much
            faster.

    Raises:
        ValueError: there are too few samples.
    """
    if len(samples) < FEWEST:
        raise ValueError(f"{len(samples)} records of '{kernel}' {direction}; at least {FEWEST} are needed")
    best = _fit(samples)
    if judged:
        by_mask = held_out(samples, lambda sample: sample.mask)
        by_length = held_out(samples, lambda sample: sample.seqlen)
    else:
        by_mask = by_length = np.array([sample.seconds for sample in samples]) / best.predicted(samples) - 1
    costs = {name: float(value) * 1e3 for name, value in zip(FEATURES, best.costs, strict=True)}
    return KernelModel(
        kernel,
        direction,
        SHAPES[best.shape],
        costs,
        best.throttle,
        Interval.of(by_mask),
        Interval.of(by_length),
        max(sample.seqlen for sample in samples),
        form,
        samples[0].way,
    )


def fit_forms(
    kernel: str, direction: str, samples: Sequence[Sample], *, judged: bool = True
) -> list[KernelModel]:
    """Fits one kernel in one direction: each of its algorithms, with all calls together, or separately by
    labels if that fits better.

    Algorithms with too few samples have no model.
    """
    by_way: dict[str, list[Sample]] = {}
    for sample in samples:
        by_way.setdefault(sample.way, []).append(sample)
    return [
        model
        for way in sorted(by_way)
        if len(by_way[way]) >= FEWEST
        for model in _fit_way(kernel, direction, by_way[way], judged)
    ]


def _fit_way(kernel: str, direction: str, samples: Sequence[Sample], judged: bool) -> list[KernelModel]:
    """The models of one algorithm. The split among SPLITS has the lowest Bayesian information criterion.

    If all records have bands, or all have blocks, the models are only for such masks.
    """
    best = [list(samples)]
    chosen = tuple[str, ...]()
    least = np.inf
    for split in SPLITS:
        parts: dict[tuple[str, ...], list[Sample]] = {}
        for sample in samples:
            parts.setdefault(tuple(sample.labels[name] for name in split), []).append(sample)
        if any(len(part) < FEWEST for part in parts.values()) or (split and len(parts) == 1):
            continue
        miss = sum(_fit(part).miss for part in parts.values())
        count = len({(sample.mask, sample.seqlen, *sample.labels.values()) for sample in samples})
        criterion = count * np.log(max(miss, 1e-12) / count) + len(FEATURES) * len(parts) * np.log(count)
        if criterion < least:
            least = criterion
            best = list(parts.values())
            chosen = split
    if "blocks" not in chosen and len({sample.labels["blocks"] for sample in samples}) == 1:
        chosen = *chosen, "blocks"
    return [
        fit_kernel(kernel, direction, part, tuple(part[0].labels[name] for name in chosen), judged=judged)
        for part in best
    ]


def held_out(samples: Sequence[Sample], group: Callable[[Sample], Hashable]) -> np.ndarray:
    """Measured over predicted, minus 1, for each sample, (n,), predicted by a fit to the samples of the other
    groups.

    With a single group, the fit uses the samples themselves.
    """
    groups = [group(sample) for sample in samples]
    residuals = np.zeros(len(samples))
    for name in dict.fromkeys(groups):
        inside = [number for number, other in enumerate(groups) if other == name]
        rest = [sample for sample, other in zip(samples, groups, strict=True) if other != name]
        best = _fit(rest if len(rest) >= FEWEST else samples)
        here = [samples[number] for number in inside]
        residuals[inside] = np.array([sample.seconds for sample in here]) / best.predicted(here) - 1
    return residuals


def _fit(samples: Sequence[Sample]) -> _Fit:
    measured = np.array([sample.seconds for sample in samples])
    weights = 1 / np.sqrt(
        _repeats([(sample.mask, sample.seqlen, *sample.labels.values()) for sample in samples])
    )
    boosted = {throttle: at_full_clock(measured, throttle)[:, None] for throttle in THROTTLES}
    fits = []
    for shape, amounts in _distinct(samples):
        if len({sample.heads_per_kv for sample in samples}) == 1:
            # the number of heads for each KV head is constant: the two cannot be distinguished
            amounts[:, UNSHARED] = 0
        for throttle in THROTTLES:
            relative = amounts / boosted[throttle] * weights[:, None]
            costs, miss = non_negative(relative, weights)
            fits.append(_Fit(shape, throttle, costs, miss))
    return min(fits, key=lambda fit: fit.miss)


def _distinct(samples: Sequence[Sample]) -> Iterator[tuple[int, np.ndarray]]:
    """(index in SHAPES, amounts of all samples (n, 6)) of each shape that differs from previous ones."""
    seen: set[bytes] = set()
    for shape in range(len(samples[0].amounts)):
        amounts = np.array([sample.amounts[shape] for sample in samples])
        if (content := amounts.tobytes()) not in seen:
            seen.add(content)
            yield shape, amounts


def _repeats(keys: Sequence[Hashable]) -> np.ndarray:
    """Number of samples with the same setting, for each sample (n,): many records of one setting weigh as
    one."""
    counts: dict[Hashable, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return np.array([counts[key] for key in keys], dtype=float)


def non_negative(matrix: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """(x (k,), squared residual) of the non-negative least squares matrix (n, k) · x = target (n,) (Lawson,
    Hanson)."""
    num = matrix.shape[1]
    scale = np.maximum(np.sqrt(np.square(matrix).sum(axis=0)), 1e-300)
    scaled = matrix / scale
    # two columns may be equal: empty tiles of full masks
    gram = scaled.T @ scaled + 1e-10 * np.eye(num)
    right = scaled.T @ target
    x = np.zeros(num)
    inside = np.zeros(num, dtype=bool)
    for _ in range(10 * num):
        gradient = np.where(inside, -np.inf, right - gram @ x)
        if gradient.max() <= 1e-9 * max(np.abs(right).max(), 1e-300):
            break
        inside[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(num)
            trial[inside] = np.linalg.solve(gram[np.ix_(inside, inside)], right[inside])
            below = inside & (trial <= 0)
            if not below.any():
                break
            step = float((x[below] / (x[below] - trial[below])).min())  # as far as all x stay non-negative
            x += step * (trial - x)
            inside &= x > 1e-12
            x[~inside] = 0
        x = trial
    miss = float(np.square(scaled @ x - target).sum())
    return x / scale, miss


def at_full_clock(measured_s: np.ndarray, throttle: float) -> np.ndarray:
    """The seconds at full clock of a measured time: the inverse of t · slowdown(t), (n,)."""
    low = measured_s / (1 + throttle)
    high = measured_s.copy()
    for _ in range(40):
        middle = (low + high) / 2
        late = middle * clock_slowdown(middle, throttle) > measured_s
        low = np.where(late, low, middle)
        high = np.where(late, middle, high)
    return (low + high) / 2
