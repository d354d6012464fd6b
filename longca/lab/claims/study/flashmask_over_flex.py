"""Claim 7: FlashMask beside FlexAttention."""

from longca.lab.claims.as_study import STAND_INS, stand_in
from longca.lab.claims.contract import Claim, Gaps, decided_in_parts
from longca.lab.claims.evidence import GQA, HETEROGENEOUS, LENGTHS, gpu_note, held, missing, points, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part
from longca.lab.claims.regular import is_heterogeneous

NEEDED = "Paddle's FlashMask beside FlexAttention on the six heterogeneous masks, 1K to 48K, both directions"


class FlashmaskOverFlex(Claim):
    number = 7
    label = "FlashMask beats FlexAttention on heterogeneous masks"
    sentence = "On every heterogeneous mask FlashMask is faster than FlexAttention, forward and backward."
    source = "Texts about the paper, without the direction for each mask"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FlexAttention is level or faster on more than a quarter of the points"

    def judge(self, table):
        tried = points(table, ok=False, kind="kernel", kernel=("flashmask", "flex"), mask=HETEROGENEOUS)
        asked = [point for point in tried if is_heterogeneous(point)]
        compared = pairs(
            [point for point in asked if point.kernel == "flashmask"],
            [point for point in asked if point.kernel == "flex"],
            "kernel",
        )
        note = f"{gpu_note(asked)} FlashMask is {STAND_INS['flashmask']}."
        lacking = missing(
            tried,
            self.gpus,
            kernel=("flashmask", "flex"),
            mask=HETEROGENEOUS,
            heads=[GQA],
            seqlen=LENGTHS,
            direction=("fwd", "bwd"),
        )
        return decided_in_parts(*self._parts(compared), note=note.strip(), missing=lacking)

    def judge_as_study(self, table):
        texts = (f"{NEEDED} (needs {self.gpus} and an adapter for Paddle)",)
        return decided_in_parts(stand_in("flashmask", "FlashMask"), missing=Gaps(texts))

    def _parts(self, compared):
        for direction, word in (("fwd", "forward"), ("bwd", "backward")):
            own = [pair for pair in compared if pair.first.direction == direction]
            observed = [pair.observed(pair.order == "more") for pair in own]
            yield Part(
                word,
                f"{word} FlashMask (ours) is faster at {held(observed)} "
                f"({span(pair.ratio for pair in own)}×)",
                observed,
            )
