"""Claim 16: Ring P2P on FULL and on documents."""

from collections import defaultdict

from longca.lab.claims.as_study import of_study, without_compat
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import (
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
from longca.lab.claims.pairs import pairs, rivals
from longca.lab.claims.parts import Observation, Part
from longca.lab.claims.schedules import GATHER, KERNEL, NAMES, RING, WORLDS, decides, lacking, reached
from longca.lab.store.text import number

FLUCTUATES = 1.2  # times: best over worst of all sizes; on FULL sizes differ by less
MASKS = ("full", "full_document")


class RingOnFull(Claim):
    number = 16
    label = "Ring P2P is best on FULL and unsteady on documents"
    sentence = (
        "On FULL none of the five strategies is faster than Ring P2P; on FULL DOCUMENT its rate varies by a "
        "fifth or more over numbers of GPUs and lengths."
    )
    source = "Texts about the paper; figures of its authors' other project show the opposite on FULL"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = (
        "Another strategy is clearly faster on FULL on more than a quarter of the points, or the ring's "
        "rate on documents is steady over several nodes"
    )

    def judge(self, table):
        asked = points(without_compat(table), ok=False, kind="cp", strategy=STRATEGIES, mask=MASKS)
        full = [point for point in asked if point.mask == "full" and point.ok]
        best = [pair for _, pair in rivals(full, "ring_p2p", "strategy")]
        few = num_hosts(full) < 2  # on one host no link between nodes makes rates unsteady, or a ring slow
        parts = self._first("this project's ring", best, few), self._steady(asked, "ring_p2p", few)
        return decided_in_parts(
            *parts,
            part=reach(full) if few and full else "",
            note=gpu_note(asked),
            missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=MASKS, world=WORLDS),
        )

    def judge_as_study(self, table):
        """Its ring beside its all-gather, the only other schedule of the study's that is here."""
        asked = points(of_study(table), ok=False, kind="cp", strategy=(RING, GATHER), mask=MASKS)
        counted = [point for point in asked if decides(point)]
        few = num_hosts(counted) < 2
        known = [point for point in asked if point.ok] if few else counted
        ring, gather = (
            [point for point in known if point.strategy == name and point.mask == "full"]
            for name in (RING, GATHER)
        )
        best = pairs(ring, gather, "strategy")
        parts = self._first(NAMES[RING], best, few), self._steady(known, RING, few)
        return decided_in_parts(
            *parts,
            part=reached(known) if few else "",
            note="The best other is the study's all-gather, the only one of its others that is here.",
            missing=lacking(
                [point for point in asked if point.kernel == KERNEL],
                "ulysses",
                "usp",
                "loongtrain",
                masks=MASKS,
            ),
        )

    def _first(self, name, best, few):
        first = [pair.observed(pair.order != "less") for pair in best]
        ratios = span(pair.ratio for pair in best)
        finding = f"on FULL {name} is first or level at {held(first)} ({ratios}× the best other)"
        return Part(
            "FULL", finding if best else f"on FULL {name} is not measured beside another strategy", first, few
        )

    def _steady(self, asked, strategy, few):
        spreads = list(self._spreads([point for point in asked if point.ok and point.strategy == strategy]))
        finding = (
            f"its rate on documents varies {span(spread for _, spread in spreads)}×"
            if spreads
            else "its rate on documents is not measured on several sizes"
        )
        return Part("documents", finding, [observation for observation, _ in spreads], few)

    def _spreads(self, compared):
        """(observation, best over worst size) of each kernel and direction that has several sizes."""
        groups = defaultdict(list)
        for point in compared:
            if point.mask == "full_document":
                groups[point.method, point.direction, point.heads, point.device].append(point)
        for (method, direction, *_), group in groups.items():
            those = of_one_protocol(group)
            if len({point.world for point in those}) > 1:
                low = min(those, key=lambda point: point.rate)
                high = max(those, key=lambda point: point.rate)
                spread = high.rate / low.rate
                text = (
                    f"{method} {direction}: {number(high.rate)} at {high.where}, {number(low.rate)} at "
                    f"{low.where} ({number(spread)}×)"
                )
                yield Observation(text, spread >= FLUCTUATES, high.cell_ids + low.cell_ids), spread
