"""Claim 15: hybrid strategies on documents."""

from collections import defaultdict

from longca.lab.claims.as_study import of_study, without_compat
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import gpu_note, held, missing, num_hosts, points, reach, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Observation, Part
from longca.lab.claims.schedules import RING, WORLDS, lacking, not_here
from longca.lab.store.text import number

HYBRIDS = ("usp", "loongtrain")
PURE = ("ulysses", "ring_p2p")
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
    overturned_by = "On 16 GPUs or more of several nodes a pure strategy is faster, or the lead shrinks"

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
        compared = [
            pair
            for hybrid in HYBRIDS
            for pure in PURE
            for pair in pairs(named[hybrid], named[pure], "strategy")
        ]
        ahead = [pair.observed(pair.order != "less") for pair in compared]
        grown = list(self._growth(compared))
        firsts = [pair.first for pair in compared]
        few = num_hosts(firsts) < 2  # nothing about growth over nodes
        ratios = span(pair.ratio for pair in compared)
        lead = f"hybrids are ahead or level at {held(ahead)}, at {ratios}× the pure strategies"
        parts = [Part("the lead", lead if compared else "no hybrid is beside a pure strategy", ahead, few)]
        if grown:
            parts.append(Part("its growth", f"the lead grows in {held(grown, 'case')}", grown, few))
        return decided_in_parts(
            *parts,
            part=reach(firsts) if few and compared else "",
            note=gpu_note(asked),
            missing=missing(asked, self.gpus, strategy=(*HYBRIDS, *PURE), world=WORLDS),
        )

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, kind="cp", strategy=RING, mask="full_document")
        return decided_in_parts(
            not_here("Ulysses", "USP", "LoongTrain"),
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
