"""Claim 16: Ring P2P on FULL and on documents."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import STRATEGIES, gpu_note, held, missing, pairs, points, rivals, span
from longca.store.text import number

FLUCTUATES = 1.2  # times: best over worst of all sizes; on FULL sizes differ by less
WORLDS = (8, 16, 32, 64, 96)
AGAIN = "paper_style_ring"  # the study's own schedule, done again


class RingOnFull(Claim):
    number = 16
    label = "Ring P2P is best on FULL and unsteady on documents"
    sentence = ("On FULL none of the five strategies is faster than Ring P2P; on FULL DOCUMENT its rate varies by a fifth or more over numbers "
                "of GPUs and lengths.")
    source = "Texts about the paper; figures of its authors' other project show the opposite on FULL"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = "Another strategy is clearly faster on FULL on more than a quarter of the points, or documents leave the ring's rate steady"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=(*STRATEGIES, AGAIN), mask=("full", "full_document"))
        full = [point for point in asked if point.mask == "full" and point.ok]
        best = [pair for _, pair in rivals([point for point in full if point.strategy != AGAIN], "ring_p2p", "strategy")]
        first = [pair.observed(pair.order != "less") for pair in best]
        steady = list(self._spreads([point for point in asked if point.ok and point.mask == "full_document"]))
        unsteady = [one for name, one, _ in steady if name == "ring_p2p"]
        spreads = {name: [value for other, _, value in steady if other == name] for name in ("ring_p2p", AGAIN)}
        again = pairs([point for point in full if point.strategy == AGAIN], [point for point in full if point.strategy == "ring_p2p"],
                      "strategy")
        most = max((point.world for point in full), default=0)
        told = (f"; the study's schedule done again is at {span(pair.ratio for pair in again)}× this ring on FULL and varies "
                f"{span(spreads[AGAIN])}×" if again else "")
        finding = (f"On FULL the ring is first or level at {held(first)}, at "
                   f"{span(pair.ratio for pair in best)}× the best other; documents vary its rate {span(spreads['ring_p2p'])}×{told}")
        return decided(finding, first, unsteady, part=f"up to {most} ranks" if most < max(WORLDS) else "",
                       missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=("full", "full_document"), world=WORLDS),
                       note=gpu_note(asked, "of one host, so that no message crosses a network."))

    def _spreads(self, found):
        """(strategy, observation, best over worst size) of each strategy with its kernel and direction that has several sizes."""
        groups = defaultdict(list)
        for point in found:
            groups[point.strategy, point.method, point.direction, point.heads, point.device].append(point)
        for (strategy, method, direction, *_), those in groups.items():
            if strategy in ("ring_p2p", AGAIN) and len({point.world for point in those}) > 1:
                low, high = min(those, key=lambda one: one.rate), max(those, key=lambda one: one.rate)
                spread = high.rate / low.rate
                text = f"{method} {direction}: {number(high.rate)} at {high.where}, {number(low.rate)} at {low.where} ({number(spread)}×)"
                yield strategy, Observation(text, spread >= FLUCTUATES, high.cell_ids + low.cell_ids), spread
