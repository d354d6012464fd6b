"""Claim 15: hybrid strategies on documents."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import gpu_note, held, missing, num_hosts, pairs, points, reach, span
from longca.store.text import number

HYBRIDS, PURE = ("usp", "loongtrain"), ("ulysses", "ring_p2p")
FEWEST = 4  # ranks: on fewer a hybrid is one of the pure strategies
WORLDS = (8, 16, 32, 64, 96)


class HybridsOnDocuments(Claim):
    number = 15
    label = "Hybrids lead on documents, more so with more GPUs"
    sentence = ("On FULL DOCUMENT neither Ulysses nor Ring P2P is faster than USP and LoongTrain, and the hybrids' lead grows with the "
                "number of GPUs.")
    source = "Texts about the paper: its figure from 8 to 96 GPUs"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = "On 16 GPUs or more of several nodes a pure strategy is faster, or the lead shrinks"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=(*HYBRIDS, *PURE), mask="full_document", world=lambda ranks: ranks >= FEWEST)
        named = {name: [point for point in asked if point.strategy == name] for name in (*HYBRIDS, *PURE)}
        found = [pair for hybrid in HYBRIDS for pure in PURE for pair in pairs(named[hybrid], named[pure], "strategy")]
        ahead = [pair.observed(pair.order != "less") for pair in found]
        grown = list(self._growth(found))
        firsts = [pair.first for pair in found]
        few = num_hosts(firsts) < 2  # nothing about growth over nodes
        parts = [(f"hybrids are ahead or level at {held(ahead)}, at {span(pair.ratio for pair in found)}× the pure strategies", ahead),
                 *([(f"the lead grows in {held(grown, 'case')}", grown)] if grown else [])]
        finding = in_parts(*parts, is_open=few)
        return decided(finding, ahead, grown, is_open=few, part=reach(firsts) if few else "",
                       missing=missing(asked, self.gpus, strategy=(*HYBRIDS, *PURE), world=WORLDS), note=gpu_note(asked))

    def _growth(self, found):
        groups = defaultdict(list)
        for pair in found:
            one = pair.first
            groups[one.method, pair.second.method, one.seqlen // one.world, one.direction, one.heads, one.device].append(pair)
        for (hybrid, pure, *_), those in groups.items():
            few, many = min(those, key=lambda pair: pair.first.world), max(those, key=lambda pair: pair.first.world)
            if few is not many:
                text = (f"{hybrid} over {pure}: {number(few.ratio)}× on {few.first.world} ranks, {number(many.ratio)}×: "
                        f"{many.first.where}")
                yield Observation(text, many.is_above(few), few.first.cell_ids + many.first.cell_ids)
