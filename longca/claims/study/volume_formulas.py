"""Claim 20: counted bytes beside the study's formulas."""

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, points, span
from longca.store.text import format_bytes, number

STRATEGIES = ("ulysses", "ring_p2p", "usp")  # those of the study's table
EQUAL = 0.01  # of the bytes
MASKS = ("full", "causal", "full_document", "causal_document")


class VolumeFormulas(Claim):
    number = 20
    label = "Counted bytes match the formulas"
    sentence = ("Forward the bytes that Ulysses, Ring P2P and USP move match the study's formulas within 1 %, with KV heads copied where "
                "ranks outnumber them.")
    source = "Texts about the paper: its table of formulas; the correction for copies is from its code"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    overturned_by = "Counted bytes differ from the formula on more than a quarter of the points"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=STRATEGIES, direction="fwd", mask=(*REGULAR, *HETEROGENEOUS))
        shares = [(point, self._share(point)) for point in asked if point.ok]
        shares = [(point, share) for point, share in shares if share == share]
        observed = [self._observed(point, share) for point, share in shares]
        told = ", ".join(f"{name} {span((share for point, share in shares if point.strategy == name))}×" for name in STRATEGIES
                         if any(point.strategy == name for point, _ in shares))
        finding = f"Counted bytes are within 1 % at {held(observed)}: {told} the formula"
        return decided(finding, observed, missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=MASKS, world=(2, 4)),
                       note=gpu_note(asked, "bytes are counted, and depend on no GPU"))

    def _observed(self, point, share):
        text = f"{point.method} moves {format_bytes(point.value('moved_bytes'))}, {number(share)}× its formula: {point.where}"
        return Observation(text, abs(share - 1) <= EQUAL, point.cell_ids)

    def _share(self, point):
        """Counted bytes over the formula's, with copies of KV heads where there are any."""
        copied = point.value("formula_replicated_bytes")
        return point.value("moved_bytes") / (copied if copied == copied else point.value("formula_bytes"))
