"""Claim 7: FlashMask beside FlexAttention."""

from longca.claims.contract import Claim, decided
from longca.claims.evidence import GQA, HETEROGENEOUS, LENGTHS, gpu_note, held, missing, pairs, points, span


class FlashmaskOverFlex(Claim):
    number = 7
    label = "FlashMask beats FlexAttention on heterogeneous masks"
    sentence = "On every heterogeneous mask FlashMask is faster than FlexAttention, forward and backward."
    source = "Texts about the paper, without the direction for each mask"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FlexAttention is level or faster on more than a quarter of the points"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=("flashmask", "flex"), mask=HETEROGENEOUS)
        found = pairs([point for point in asked if point.kernel == "flashmask"],
                      [point for point in asked if point.kernel == "flex"], "kernel")
        observed = [pair.observed(pair.order == "more") for pair in found]
        told = ", ".join(f"{span(ratios)}× {word}" for direction, word in (("fwd", "forward"), ("bwd", "backward"))
                         if (ratios := [pair.ratio for pair in found if pair.first.direction == direction]))
        finding = f"FlashMask is faster at {held(observed)}: {told}"
        note = f"{gpu_note(asked)} FlashMask is this project's Triton operator, not Paddle's kernel."
        return decided(finding, observed, note=note.strip(),
                       missing=missing(asked, self.gpus, kernel=("flashmask", "flex"), mask=HETEROGENEOUS, heads=[GQA], seqlen=LENGTHS,
                                       direction=("fwd", "bwd")))
