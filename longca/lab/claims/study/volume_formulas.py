"""Claim 20: counted bytes beside the study's formulas."""

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, points, reach, span
from longca.lab.claims.parts import Observation, Part
from longca.lab.claims.schedules import NAMES, RING, not_done_again, not_here
from longca.lab.store.text import format_bytes, number

STRATEGIES = {"ulysses": "Ulysses", "ring_p2p": "Ring P2P", "usp": "USP"}  # those of the study's table
EQUAL = 0.01  # of the bytes
MASKS = ("full", "causal", "full_document", "causal_document")  # the study's
WHERE = {"kind": "cp", "direction": "fwd"}


class VolumeFormulas(Claim):
    number = 20
    label = "Counted bytes match the formulas"
    sentence = (
        "Forward the bytes that Ulysses, Ring P2P and USP move match the study's formulas within 1 %, "
        "with KV heads copied where ranks outnumber them."
    )
    source = "Texts about the paper: its table of formulas; the correction for copies is from its code"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    quantity = "bytes"
    overturned_by = "One strategy's bytes differ from its formula on more than a quarter of its points"

    def judge(self, table):
        asked = points(table, ok=False, strategy=tuple(STRATEGIES), mask=(*REGULAR, *HETEROGENEOUS), **WHERE)
        parts = [
            self._part(name, f"{strategy} (ours)", [point for point in asked if point.strategy == strategy])
            for strategy, name in STRATEGIES.items()
        ]
        return decided_in_parts(
            *parts,
            missing=missing(asked, self.gpus, strategy=tuple(STRATEGIES), mask=MASKS, world=(2, 4)),
            note=gpu_note(asked, "bytes are counted, and depend on no GPU"),
        )

    def judge_as_study(self, table):
        asked = points(
            of_study(table, any_gpu=True, any_draw=True), ok=False, strategy=RING, mask=MASKS, **WHERE
        )
        lacking = missing(asked, self.gpus, study="h200-cp", strategy=[RING], mask=MASKS, world=(2, 4))
        return decided_in_parts(
            self._part(STRATEGIES["ring_p2p"], NAMES[RING], asked),
            *not_here("Ulysses", "USP"),
            missing=lacking + not_done_again("ulysses", "usp", gpus=self.gpus),
            part=f"Ring P2P, {reach(asked)}" if asked else "",
            note="Bytes follow from the schedule, and depend on neither GPU nor kernel. "
            "KV heads are copied on more than 8 ranks alone, which no record has.",
        )

    def _part(self, name, moves, asked):
        shares = [(point, self._share(point)) for point in asked if point.ok]
        shares = [(point, share) for point, share in shares if share == share]
        observed = [self._observed(point, share) for point, share in shares]
        ratios = span(share for _, share in shares)
        finding = f"{moves} moves {ratios}× its formula, equal at {held(observed)}"
        return Part(name, finding if observed else f"{moves} is not measured", observed)

    def _observed(self, point, share):
        moved = format_bytes(point.value("moved_bytes"))
        text = f"{point.method} moves {moved}, {number(share)}× its formula: {point.where}"
        return Observation(text, abs(share - 1) <= EQUAL, point.cell_ids)

    def _share(self, point):
        """Counted bytes over the formula's, with copies of KV heads where there are any."""
        copied = point.value("formula_replicated_bytes")
        return point.value("moved_bytes") / (copied if copied == copied else point.value("formula_bytes"))
