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
from longca.lab.claims.pairs import beside_each
from longca.lab.claims.parts import Observation, Part, of_methods
from longca.lab.claims.schedules import (
    GATHER,
    KERNEL,
    NAMES,
    RING,
    WORLDS,
    decides,
    lacking,
    not_here,
    reached,
)
from longca.lab.store.text import number

FLUCTUATES = 1.2  # times: best over worst of all sizes; on FULL sizes differ by less
MASKS = ("full", "full_document")
DIRECTIONS = ("fwd", "bwd")  # a rate varies in one or the other: two cases are all that there are


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
        "Another strategy is clearly faster on FULL on more than a quarter of its points, or the ring's "
        "rate on documents is steady over several nodes"
    )

    def judge(self, table):
        asked = points(without_compat(table), ok=False, kind="cp", strategy=STRATEGIES, mask=MASKS)
        full = [point for point in asked if point.mask == "full" and point.ok]
        few = num_hosts(full) < 2  # on one host no link between nodes makes rates unsteady, or a ring slow
        others = [name for name in STRATEGIES if name != "ring_p2p"]
        return decided_in_parts(
            *self._first("this project's ring", full, "ring_p2p", others, few),
            self._steady(asked, "ring_p2p", few),
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
        full = [point for point in known if point.mask == "full"]
        return decided_in_parts(
            *self._first(NAMES[RING], full, RING, [GATHER], few),
            self._steady(known, RING, few),
            *not_here("Ulysses", "USP", "LoongTrain"),
            part=reached(known) if few else "",
            missing=lacking(
                [point for point in asked if point.kernel == KERNEL],
                "ulysses",
                "usp",
                "loongtrain",
                masks=MASKS,
            ),
        )

    def _first(self, name, full, ring, others, few):
        own = [point for point in full if point.strategy == ring]
        beside = beside_each(own, full, others, "strategy")
        return of_methods(
            f"on FULL {name} is first or level beside",
            {
                NAMES.get(other, other): [pair.observed(pair.order != "less") for pair in compared]
                for other, compared in beside.items()
            },
            ratios={
                NAMES.get(other, other): f"{span(pair.ratio for pair in compared)}×"
                for other, compared in beside.items()
            },
            is_open=few,
        )

    def _steady(self, asked, strategy, few):
        spreads = list(self._spreads([point for point in asked if point.ok and point.strategy == strategy]))
        finding = (
            f"its rate on documents varies {span(spread for _, spread in spreads)}×, by a fifth or more in "
            f"{held([observation for observation, _ in spreads], 'case')}"
            if spreads
            else "its rate on documents is not measured on several sizes"
        )
        observed = [observation for observation, _ in spreads]
        return Part("documents", finding, observed, few, asked=len(DIRECTIONS))

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
