"""Claim 15: hybrid strategies on documents."""

from collections import defaultdict

from longca.lab.claims.as_study import of_study, without_compat
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import gpu_note, missing, num_hosts, points, reach, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Observation, of_methods
from longca.lab.claims.schedules import RING, WORLDS, lacking, not_here
from longca.lab.store.text import number

HYBRIDS = ("usp", "loongtrain")
PURE = ("ulysses", "ring_p2p")
DIRECTIONS = ("fwd", "bwd")  # a lead grows in one or the other: two cases are all that there are
FEWEST = 4  # ranks: on fewer a hybrid is one of the pure strategies


class HybridsOnDocuments(Claim):
    number = 15
    label = "Hybrids lead on documents, more so with more GPUs"
    sentence = (
        "On FULL DOCUMENT neither Ulysses nor Ring P2P is faster than USP and LoongTrain, and the "
        "hybrids' lead grows with the number of GPUs."
    )
    source = "Texts about the paper: its figure from 8 to 96 GPUs"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = (
        "With several nodes a pure strategy is faster than a hybrid on more than a quarter of their points, "
        "or the lead shrinks"
    )

    def judge(self, table):
        asked = points(
            without_compat(table),
            ok=False,
            kind="cp",
            strategy=(*HYBRIDS, *PURE),
            mask="full_document",
            world=lambda ranks: ranks >= FEWEST,
        )
        named = {name: [point for point in asked if point.strategy == name] for name in (*HYBRIDS, *PURE)}
        beside = {
            f"{hybrid} over {pure}": pairs(named[hybrid], named[pure], "strategy")
            for hybrid in HYBRIDS
            for pure in PURE
        }
        firsts = [pair.first for compared in beside.values() for pair in compared]
        few = num_hosts(firsts) < 2  # nothing about growth over nodes
        return decided_in_parts(
            *of_methods(
                "ahead or level are",
                {
                    both: [pair.observed(pair.order != "less") for pair in compared]
                    for both, compared in beside.items()
                },
                ratios={
                    both: f"{span(pair.ratio for pair in compared)}×" for both, compared in beside.items()
                },
                is_open=few,
            ),
            *of_methods(
                "the lead grows of",
                {both: list(self._growth(compared)) for both, compared in beside.items()},
                asked=len(DIRECTIONS),
                is_open=few,
            ),
            part=reach(firsts) if few and firsts else "",
            note=gpu_note(asked),
            missing=missing(asked, self.gpus, strategy=(*HYBRIDS, *PURE), world=WORLDS),
        )

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, kind="cp", strategy=RING, mask="full_document")
        return decided_in_parts(
            *not_here("Ulysses", "USP", "LoongTrain"),
            missing=lacking(
                asked, "ulysses", "usp", "loongtrain", masks=["full_document"], strategies=[RING]
            ),
        )

    def _growth(self, compared):
        groups = defaultdict(list)
        for pair in compared:
            first = pair.first
            groups[
                first.method,
                pair.second.method,
                first.seqlen // first.world,
                first.direction,
                first.heads,
                first.device,
            ].append(pair)
        for (hybrid, pure, *_), those in groups.items():
            by_world = sorted(those, key=lambda pair: pair.first.world)
            few = by_world[0]
            many = by_world[-1]
            if few is not many:
                text = (
                    f"{hybrid} over {pure}: {number(few.ratio)}× on {few.first.world} ranks, "
                    f"{number(many.ratio)}×: {many.first.where}"
                )
                yield Observation(text, many.is_above(few), few.first.cell_ids + many.first.cell_ids)
