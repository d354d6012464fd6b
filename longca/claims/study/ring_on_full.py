"""Claim 16: Ring P2P on FULL and on documents."""

from collections import defaultdict

from longca.claims.as_study import of_study, without_compat
from longca.claims.contract import Claim, Observation, Part, decided_in_parts
from longca.claims.evidence import (
    STRATEGIES,
    gpu_note,
    held,
    missing,
    num_hosts,
    pairs,
    points,
    reach,
    rivals,
    span,
)
from longca.claims.schedules import GATHER, KERNEL, NAMES, RING, WORLDS, lacking
from longca.store.text import number

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
        asked = points(
            of_study(table), ok=False, kind="cp", strategy=(RING, GATHER), kernel=KERNEL, mask=MASKS
        )
        large = [point for point in asked if point.world >= WORLDS[0]]
        few = num_hosts(large) < 2
        parts = self._first(NAMES[RING], self._beside_gather(large), few), self._steady(large, RING, few)
        return decided_in_parts(
            *parts,
            note=self._on_few_ranks(table),
            missing=lacking(asked, "ulysses", "usp", "loongtrain", masks=MASKS),
        )

    def _beside_gather(self, found):
        ring, gather = (
            [point for point in found if point.strategy == name and point.mask == "full"]
            for name in (RING, GATHER)
        )
        return pairs(ring, gather, "strategy")

    def _on_few_ranks(self, table):
        """A sentence on the study's schedules where they were measured; it decides nothing."""
        found = self._beside_gather(points(of_study(table), kind="cp", strategy=(RING, GATHER), mask="full"))
        if not found:
            return ""
        first = [pair.observed(pair.order != "less") for pair in found]
        kernels = " and ".join(sorted({pair.first.kernel for pair in found}))
        ratios, where = span(pair.ratio for pair in found), reach([pair.first for pair in found])
        return (
            f"On {where.removeprefix('up to ')}, over {kernels}, the study's ring is at {ratios}× its "
            f"all-gather, first or level at {held(first)}."
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

    def _spreads(self, found):
        """(observation, best over worst size) of each kernel and direction that has several sizes."""
        groups = defaultdict(list)
        for point in found:
            if point.mask == "full_document":
                groups[point.method, point.direction, point.heads, point.device].append(point)
        for (method, direction, *_), those in groups.items():
            if len({point.world for point in those}) > 1:
                low, high = min(those, key=lambda point: point.rate), max(those, key=lambda point: point.rate)
                spread = high.rate / low.rate
                text = (
                    f"{method} {direction}: {number(high.rate)} at {high.where}, {number(low.rate)} at "
                    f"{low.where} ({number(spread)}×)"
                )
                yield Observation(text, spread >= FLUCTUATES, high.cell_ids + low.cell_ids), spread
