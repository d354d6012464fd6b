"""Claim 21: rates over the number of GPUs."""

from collections import defaultdict

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import (
    STRATEGIES,
    gpu_note,
    missing,
    num_hosts,
    of_one_protocol,
    points,
    reach,
    span,
)
from longca.lab.claims.parts import Observation, of_methods
from longca.lab.claims.schedules import GATHER, KERNEL, NAMES, RING, WORLDS, lacking, not_here
from longca.lab.store.text import number

PER_RANK = 8192  # tokens: the study's
CONSTANT = 1.1  # times: best over worst number of ranks
MASKS = ("full", "causal")


class RateOverRanks(Claim):
    number = 21
    label = "Rates per GPU stay as GPUs are added"
    sentence = (
        "On FULL and CAUSAL, with 8K tokens for each GPU, a strategy's TFLOP/s per GPU differ by less than a "
        "tenth from 8 to 96 GPUs; what they lose, links between nodes take."
    )
    source = "Texts about the paper: its figures from 8 to 96 GPUs"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = (
        "From one node to several, one strategy's rates per GPU differ by a tenth or more in more than a "
        "quarter of its cases"
    )

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=STRATEGIES, mask=MASKS)
        compared = [point for group in self._groups(asked) for point in group]
        few = num_hosts(compared) < 2  # nothing about links between nodes
        return decided_in_parts(
            *self._parts(asked, {name: name for name in STRATEGIES}, few),
            part=reach(compared) if few and compared else "",
            note=gpu_note(asked),
            missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=MASKS, world=WORLDS),
        )

    def judge_as_study(self, table):
        asked = points(
            of_study(table),
            ok=False,
            kind="cp",
            strategy=(RING, GATHER),
            kernel=KERNEL,
            mask=MASKS,
            world=lambda ranks: ranks >= WORLDS[0],
        )
        compared = [point for group in self._groups(asked) for point in group]
        return decided_in_parts(
            *self._parts(asked, NAMES, num_hosts(compared) < 2),
            *not_here("Ulysses", "USP", "LoongTrain"),
            missing=lacking(asked, "ulysses", "usp", "loongtrain", masks=MASKS),
        )

    def _parts(self, asked, strategies, few):
        """A part for each strategy: its cases are masks and directions."""
        groups = {
            shown: self._groups([point for point in asked if point.strategy == name])
            for name, shown in strategies.items()
        }
        return of_methods(
            "rates per GPU differ by less than a tenth for",
            {name: [self._observed(group) for group in own] for name, own in groups.items()},
            ratios={
                name: f"{span(group[-1].rate / group[0].rate for group in own)}×"
                for name, own in groups.items()
            },
            is_open=few,
        )

    def _groups(self, asked):
        """The points of each strategy that differ in the number of ranks alone, slowest first."""
        groups = defaultdict(list)
        for point in asked:
            if point.ok and point.seqlen == PER_RANK * point.world:
                groups[point.method, point.mask, point.direction, point.heads, point.device].append(point)
        return [
            sorted(group, key=lambda point: point.rate)
            for group in map(of_one_protocol, groups.values())
            if len(group) > 1
        ]

    def _observed(self, group):
        low = group[0]
        high = group[-1]
        text = (
            f"{low.method} {number(high.rate)} at {high.where}, {number(low.rate)} at {low.where} "
            f"({number(high.rate / low.rate)}×)"
        )
        return Observation(
            text,
            high.rate <= CONSTANT * low.rate,
            tuple(cell_id for point in group for cell_id in point.cell_ids),
        )
