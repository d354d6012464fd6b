"""Claim 19: bytes of a ring under masks."""

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, points, reach, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.schedules import NAMES, RING

# of the bytes: documents that are padded to a multiple of the ranks add less than that on 2 and 4 ranks
EQUAL = 0.01
MASKS = ("full", "causal", "full_document", "causal_document")  # the study's
WHERE = {"kind": "cp", "direction": "fwd"}


class RingVolume(Claim):
    number = 19
    label = "A ring's volume does not depend on the mask"
    sentence = "Forward Ring P2P moves as many bytes under any mask as under FULL, within 1 %."
    source = "Texts about the paper: its table of formulas, which has no mask in it; its code agrees"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    quantity = "bytes"
    overturned_by = "A ring moves fewer bytes under a mask than under FULL, and its results are right"

    def judge(self, table):
        asked = points(table, ok=False, strategy="ring_p2p", mask=(*REGULAR, *HETEROGENEOUS), **WHERE)
        lacking = missing(asked, self.gpus, strategy=["ring_p2p"], mask=MASKS, world=(2, 4))
        note = gpu_note(asked, "bytes are counted, and depend on no GPU")
        return self._verdict(
            "ring_p2p (ours)", asked, lacking, "It leaves out keys that no query sees.", note
        )

    def judge_as_study(self, table):
        asked = points(
            of_study(table, any_gpu=True, any_draw=True), ok=False, strategy=RING, mask=MASKS, **WHERE
        )
        lacking = missing(asked, self.gpus, study="h200-cp", strategy=[RING], mask=MASKS, world=(2, 4))
        return self._verdict(
            NAMES[RING],
            asked,
            lacking,
            "Bytes follow from the schedule, and depend on neither GPU nor kernel. They grow with its "
            "padding of documents to multiples of twice the ranks: in its own draws by up to 5 % "
            "on 96 ranks.",
            part=reach(asked) if asked else "",
        )

    def _verdict(self, name, asked, lacking, *notes, part=""):
        compared = pairs(
            [point for point in asked if point.mask != "full"],
            [point for point in asked if point.mask == "full"],
            "mask",
            column="moved_bytes",
        )
        observed = [
            pair.observed(abs(pair.ratio - 1) <= EQUAL, f"{pair.first.method} bytes", "under full")
            for pair in compared
        ]
        ratios = span(pair.ratio for pair in compared)
        finding = f"Under masks {name} moves {ratios}× the bytes of FULL, equal at {held(observed)}"
        return decided(finding, observed, missing=lacking, part=part, note=" ".join(filter(None, notes)))
