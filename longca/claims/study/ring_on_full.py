"""Claim 16: Ring P2P on FULL and on documents."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import (
    STRATEGIES,
    gpu_note,
    held,
    missing,
    num_hosts,
    of_one_protocol,
    pairs,
    points,
    reach,
    rivals,
    span,
)
from longca.store.text import number

FLUCTUATES = 1.2  # times: best over worst of all sizes; on FULL sizes differ by less
WORLDS = (8, 16, 32, 64, 96)
AGAIN = "paper_style_ring"  # the study's own schedule, done again


class RingOnFull(Claim):
    number = 16
    label = "Ring P2P is best on FULL and unsteady on documents"
    sentence = ("On FULL none of the five strategies is faster than Ring P2P; on FULL DOCUMENT its rate varies by a fifth or more over "
                "numbers of GPUs and lengths.")
    source = "Texts about the paper; figures of its authors' other project show the opposite on FULL"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = ("Another strategy is clearly faster on FULL on more than a quarter of the points, or the ring's rate on documents is "
                     "steady over several nodes")

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=(*STRATEGIES, AGAIN), mask=("full", "full_document"))
        full = [point for point in asked if point.mask == "full" and point.ok]
        best = [pair for _, pair in rivals([point for point in full if point.strategy != AGAIN], "ring_p2p", "strategy")]
        first = [pair.observed(pair.order != "less") for pair in best]
        steady = list(self._spreads([point for point in asked if point.ok and point.mask == "full_document"]))
        few = num_hosts(full) < 2  # on one host no link between nodes makes rates unsteady
        unsteady = [one for name, one, _ in steady if name == "ring_p2p" and not few]
        spreads = {name: [value for other, _, value in steady if other == name] for name in ("ring_p2p", AGAIN)}
        again = pairs([point for point in full if point.strategy == AGAIN], [point for point in full if point.strategy == "ring_p2p"],
                      "strategy")
        parts = [(f"on FULL the ring is first or level at {held(first)} ({span(pair.ratio for pair in best)}× the best other)", first)]
        if spreads["ring_p2p"]:
            parts.append((f"its rate on documents varies {span(spreads['ring_p2p'])}×", unsteady))
        if again:
            varies = f", and varies {span(spreads[AGAIN])}×" if spreads[AGAIN] else ""
            parts.append((f"the study's schedule, done again, is at {span(pair.ratio for pair in again)}× this ring{varies}", []))
        return decided(in_parts(*parts), first, unsteady, part=f"FULL, {reach(full)}" if few else "",
                       missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=("full", "full_document"), world=WORLDS),
                       note=gpu_note(asked))

    def _spreads(self, found):
        """(strategy, observation, best over worst size) of each strategy with its kernel and direction that has several sizes."""
        groups = defaultdict(list)
        for point in found:
            groups[point.strategy, point.method, point.direction, point.heads, point.device].append(point)
        for (strategy, method, direction, *_), group in groups.items():
            those = of_one_protocol(group)
            if strategy in ("ring_p2p", AGAIN) and len({point.world for point in those}) > 1:
                low, high = min(those, key=lambda one: one.rate), max(those, key=lambda one: one.rate)
                spread = high.rate / low.rate
                text = f"{method} {direction}: {number(high.rate)} at {high.where}, {number(low.rate)} at {low.where} ({number(spread)}×)"
                yield strategy, Observation(text, spread >= FLUCTUATES, high.cell_ids + low.cell_ids), spread
