"""Claim 19: bytes of a ring under masks."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, pairs, points, span

RINGS = ("paper_style_ring", "ring_p2p")  # the study's schedule done again, and this project's
EQUAL = 0.01  # of the bytes: documents that are padded to a multiple of the ranks add less than that
MASKS = ("full", "causal", "full_document", "causal_document")


class RingVolume(Claim):
    number = 19
    label = "A ring's volume does not depend on the mask"
    sentence = "Forward Ring P2P moves as many bytes under any mask as under FULL, within 1 %."
    source = "Texts about the paper: its table of formulas, which has no mask in it; its code agrees"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    overturned_by = "A ring moves fewer bytes under a mask than under FULL, and its results are right"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy=RINGS, direction="fwd", mask=(*REGULAR, *HETEROGENEOUS))
        found = pairs([point for point in asked if point.mask != "full"], [point for point in asked if point.mask == "full"], "mask",
                      column="moved_bytes")
        observed = [pair.observed(abs(pair.ratio - 1) <= EQUAL, f"{pair.first.method} bytes", "under full") for pair in found]
        parts = (self._part(name, [(pair.ratio, one) for pair, one in zip(found, observed, strict=True) if pair.first.strategy == name])
                 for name in RINGS)
        return decided(in_parts(*parts), observed,
                       missing=missing(asked, self.gpus, strategy=RINGS, mask=MASKS, world=(2, 4)),
                       note=gpu_note(asked, "bytes are counted, and depend on no GPU"))

    def _part(self, name, found):
        if not found:
            return f"{name} is not measured", []
        observed = [one for _, one in found]
        return f"under masks {name} moves {span(ratio for ratio, _ in found)}× the bytes of FULL, equal at {held(observed)}", observed
