"""Predictions of measured cells by models that have not seen them, and of what each rule would have chosen.

Held out by mask: kernels are fitted without the mask of the cell. Held out by ranks or by strategy: the
speeds of messages are fitted without cells of that number of ranks, or of that strategy. Records of several
GPUs fit nothing of a kernel in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.predict.links import fitted_of, misses, predicted
from longca.core import load_hardware
from longca.cp.forecast import PASS_EFFICIENCY, links_of
from longca.cp.schedule import LinkSpeeds
from longca.cp.schedule.timeline import estimated_s
from longca.lab.advice.recorded import OWN, MeasuredCell
from longca.lab.studies.fitting import CallsToFit, has_rests, samples
from longca.predict.fit import FEWEST, Sample, fit_forms
from longca.predict.fitted import FittedKernels

# as of `benchmarks.predict.links.GRID`
LINK_GRID = (300, 380, 460), (10, 30, 60), (0.0, 0.15, 0.3), (0.7, 0.85, 1.0)
# share of the pairs of records of one plan that differ by less than what is called noise
REPEATS_WITHIN = 0.95


@dataclass(frozen=True)
class Residual:
    """One measured cell and what was predicted of it."""

    cell: MeasuredCell
    predicted_s: float

    @property
    def error(self) -> float:
        """Measured over predicted, less 1."""
        return self.cell.seconds / self.predicted_s - 1


def of_usual_protocol(cells: Sequence[MeasuredCell], calls: CallsToFit) -> list[MeasuredCell]:
    """The cells of the protocol by which most kernels are fitted to these calls."""
    rests = calls.rests
    return [cell for cell in cells if has_rests(cell.record) == rests]


def by_mask(cells: Sequence[MeasuredCell], calls: CallsToFit) -> list[Residual]:
    """The cells of the protocol of most calls, each predicted by kernels that were fitted to these calls
    without its mask."""
    cells = of_usual_protocol(cells, calls)
    kernels = {cell.record.cell.kernel for cell in cells}
    device = fitted_of(cells).device
    singles = [record for record in calls.records() if record.cell.kernel in kernels]
    groups: dict[tuple[str, str], list[Sample]] = {}
    for record, sample in zip(singles, samples(singles), strict=True):
        groups.setdefault((record.cell.kernel, record.cell.direction), []).append(sample)
    residuals = []
    for mask in sorted({cell.record.cell.mask for cell in cells}):
        here = [cell for cell in cells if cell.record.cell.mask == mask]
        models = []
        for key in sorted({(cell.record.cell.kernel, cell.record.cell.direction) for cell in here}):
            rest = [sample for sample in groups.get(key, ()) if sample.mask.split()[0] != mask]
            models += fit_forms(*key, rest, judged=False) if len(rest) >= FEWEST else []
        residuals += with_kernels(here, FittedKernels(device, (), tuple(models)))
    return residuals


def with_kernels(cells: Iterable[MeasuredCell], fitted: FittedKernels) -> list[Residual]:
    """The cells whose kernel is among the fitted ones."""
    hardware = load_hardware()
    networks = {network.name: links_of(network) for network in hardware.networks}
    bandwidth = (hardware.bandwidth_gb_s(fitted.device) or 0) * 1e9
    residuals = []
    for cell in cells:
        device = cell.device(fitted, bandwidth * PASS_EFFICIENCY)
        if device is not None:
            residuals.append(Residual(cell, cell.forecast_s(device, networks[cell.profile])))
    return residuals


def by_group(
    cells: Sequence[MeasuredCell], ways: Mapping[str, Callable[[MeasuredCell], Hashable]]
) -> dict[str, dict[str, np.ndarray]]:
    """Residuals of each group of cells, with the speeds of messages that fit the other groups best.

    Args:
        ways: name of a way to group → the group of a cell.
    """
    points = list(itertools.product(*LINK_GRID))
    ratios = predicted(cells, points)
    errors_of: dict[str, dict[str, np.ndarray]] = {}
    for way, group in ways.items():
        groups = [group(cell) for cell in cells]
        errors_of[way] = {}
        if len(set(groups)) == 1:
            continue  # nothing is left to be fitted on
        for name in sorted(set(groups), key=str):
            inside = np.array([other == name for other in groups])
            values = 1 / ratios[int(misses(ratios[:, ~inside]).argmin()), inside] - 1
            if not np.isnan(values).all():
                errors_of[way][str(name)] = values[~np.isnan(values)]
    return errors_of


@dataclass(frozen=True)
class Choice:
    """One setting in which several strategies were measured, and what a rule takes."""

    setting: tuple[Hashable, ...]
    rule: str
    taken: str
    best: str
    regret: float
    """time of what it takes over that of the best, less 1"""
    noise: float

    @property
    def is_right(self) -> bool:
        """It takes the best, or one that is within the noise of it."""
        return self.regret <= self.noise


Settings = dict[tuple[Hashable, ...], dict[str, Residual]]
"""(world, length, mask, its parameters, kernel, direction, seed) → own strategies that chose their parameters
themselves"""


def settings_of(residuals: Iterable[Residual]) -> Settings:
    """The cells of own strategies by their setting."""
    settings: Settings = {}
    for residual in residuals:
        cell = residual.cell.record.cell
        if cell.strategy in OWN and not cell.strategy_params:
            key = (
                cell.world,
                cell.seqlen,
                cell.mask,
                str(cell.mask_params),
                cell.kernel,
                cell.direction,
                cell.seed,
            )
            settings.setdefault(key, {})[str(cell.strategy)] = residual
    return settings


def repeated(settings: Settings) -> np.ndarray:
    """By how much two records of one plan differ, (n,): strategies may choose the same plan, and each is
    measured for itself."""
    values = []
    for ran in settings.values():
        for first, other in itertools.combinations(ran.values(), 2):
            if _plan(first) and _plan(first) == _plan(other):
                quick, slow = sorted((first.cell.seconds, other.cell.seconds))
                values.append(slow / quick - 1)
    return np.array(values)


def _plan(residual: Residual) -> str:
    notes = "; ".join(residual.cell.record.notes).replace("heads among 2; heads in", "heads in")
    return "; ".join(note for note in notes.split("; ") if not note.startswith("messages"))


def choices(residuals: Sequence[Residual]) -> list[Choice]:
    """The choices of rules in each setting in which the same kernel ran three own strategies or more.

    Strategies that made the same plan took the quickest of its records: what delays a call only lengthens it.
    """
    settings = settings_of(residuals)
    made = []
    sure = float(np.quantile(repeated(settings), REPEATS_WITHIN))
    for key, ran in settings.items():
        if len(ran) < 3:
            continue
        seconds = _seconds_of_plans(ran)
        best = min(ran, key=lambda name: seconds[name])
        rules = {
            "predicted": min(ran, key=lambda name: ran[name].predicted_s),
            "present rule": min(ran, key=lambda name: _present_s(ran[name])),
            **{f"always {name}": name for name in ("ulysses", "ring_p2p", "ring_allgather") if name in ran},
        }
        for rule, taken in rules.items():
            noise = max(ran[taken].cell.noise, ran[best].cell.noise, sure)
            made.append(Choice(key, rule, taken, best, seconds[taken] / seconds[best] - 1, noise))
    return made


def _seconds_of_plans(ran: Mapping[str, Residual]) -> dict[str, float]:
    """Strategy → the least seconds among the strategies with its plan."""
    plans = {name: _plan(entry) or name for name, entry in ran.items()}
    return {
        name: min(first.cell.seconds for other, first in ran.items() if plans[other] == plan)
        for name, plan in plans.items()
    }


def _present_s(residual: Residual) -> float:
    """Seconds by the estimate from areas that `strategy="auto"` had before there was this model."""
    work = residual.cell.work
    cell = residual.cell.record.cell
    assert work is not None, "an own strategy"
    forward = estimated_s(work, cell.call_spec, LinkSpeeds(), needs_backward=False)
    return (
        forward
        if cell.direction == "fwd"
        else estimated_s(work, cell.call_spec, LinkSpeeds(), needs_backward=True) - forward
    )
