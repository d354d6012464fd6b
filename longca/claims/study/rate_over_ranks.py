"""Claim 21: rates over the number of GPUs."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import (
    STRATEGIES,
    gpu_note,
    held,
    missing,
    num_hosts,
    of_one_protocol,
    points,
    reach,
    span,
)
from longca.store.text import number

PER_RANK = 8192  # tokens: the study's
CONSTANT = 1.1  # times: best over worst number of ranks
WORLDS = (8, 16, 32, 64, 96)


class RateOverRanks(Claim):
    number = 21
    label = "Rates per GPU stay as GPUs are added"
    sentence = ("On FULL and CAUSAL, with 8K tokens for each GPU, a strategy's TFLOP/s per GPU differ by less than a tenth from 8 to 96 "
                "GPUs; what they lose, links between nodes take.")
    source = "Texts about the paper: its figures from 8 to 96 GPUs"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = "From one node to several, rates per GPU differ by a tenth or more on more than a quarter of the strategies"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=STRATEGIES, mask=("full", "causal"))
        groups = defaultdict(list)
        for point in asked:
            if point.ok and point.seqlen == PER_RANK * point.world:
                groups[point.method, point.mask, point.direction, point.heads, point.device].append(point)
        ranked = [sorted(group, key=lambda one: one.rate) for group in map(of_one_protocol, groups.values()) if len(group) > 1]
        observed = [self._observed(group) for group in ranked]
        compared = [point for group in ranked for point in group]
        few = num_hosts(compared) < 2  # nothing about links between nodes
        finding = (f"On {span((point.world for point in compared), show=str)} ranks, rates per GPU differ by "
                   f"{span(group[-1].rate / group[0].rate for group in ranked)}×, less than a tenth in {held(observed, 'case')}")
        return decided(finding, observed, is_open=few, part=reach(compared) if few else "",
                       missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=("full", "causal"), world=WORLDS),
                       note=gpu_note(asked))

    def _observed(self, group):
        low, high = group[0], group[-1]
        text = f"{low.method} {number(high.rate)} at {high.where}, {number(low.rate)} at {low.where} ({number(high.rate / low.rate)}×)"
        return Observation(text, high.rate <= CONSTANT * low.rate, tuple(cell_id for point in group for cell_id in point.cell_ids))
