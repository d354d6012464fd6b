"""Claim 1: FlashAttention-3 on regular masks."""

from longca.core import format_length
from longca.lab.claims.as_study import STUDY_DENSE, of_study, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import (
    DENSE,
    GQA,
    LENGTHS,
    MHA,
    REGULAR,
    gpu_note,
    held,
    missing,
    of_one_protocol,
    points,
    span,
)
from longca.lab.claims.pairs import beside_each
from longca.lab.claims.parts import Observation, Part, of_methods

FROM = 2048  # tokens; at 1K the study's own authors saw SDPA ahead
# tokens and TFLOP/s: the number that is told of FULL
FULL_FROM = 8192
FULL_RATE = 600


class Fa3IsFastest(Claim):
    number = 1
    label = "FA3 is the fastest dense kernel on regular masks"
    sentence = (
        "Of the study's seven dense kernels none is faster forward than FA3 on any regular mask from 2K "
        "tokens, and FA3 reaches 600 TFLOP/s on FULL from 8K to 48K."
    )
    source = "Texts about the paper: its figure of forward rates at 8K, and the curves over length"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = (
        "One of the other six kernels is clearly faster on more than a quarter of its points, "
        "or FA3 stays below 600 on more than a quarter of those on FULL"
    )

    def judge(self, table):
        kernels = (*DENSE, "cudnn")
        asked = self._asked(table, kernels)
        lacking = missing(asked, self.gpus, kernel=DENSE, mask=REGULAR, heads=[GQA], seqlen=LENGTHS[1:])
        return decided_in_parts(*self._parts(asked, kernels), note=gpu_note(asked), missing=lacking)

    def judge_as_study(self, table):
        asked = self._asked(of_study(table), STUDY_DENSE)
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=STUDY_DENSE,
            mask=REGULAR,
            heads=[GQA],
            seqlen=LENGTHS[1:],
            direction=["fwd"],
        )
        parts = self._parts(asked, STUDY_DENSE)
        return decided_in_parts(*parts, stand_in("flashmask", "FlashMask"), missing=lacking)

    def _asked(self, table, kernels):
        return points(
            table,
            ok=False,
            kind="kernel",
            kernel=kernels,
            mask=REGULAR,
            direction="fwd",
            heads=(GQA, MHA),
            seqlen=lambda length: length >= FROM,
        )

    def _parts(self, asked, kernels):
        timed = [point for point in asked if point.ok]
        own = [point for point in timed if point.kernel == "fa3"]
        beside = {
            shown(other): compared
            for other, compared in beside_each(
                own, timed, [name for name in kernels if name != "fa3"]
            ).items()
        }
        yield from of_methods(
            "FA3 is first or level beside",
            {
                other: [pair.observed(pair.order != "less") for pair in compared]
                for other, compared in beside.items()
            },
            ratios={other: f"{span(pair.ratio for pair in compared)}×" for other, compared in beside.items()},
        )
        full = of_one_protocol(point for point in own if point.mask == "full" and point.seqlen >= FULL_FROM)
        rates = [
            Observation(
                f"fa3 {point.rate:.0f} TFLOP/s: {point.where}", point.rate >= FULL_RATE, point.cell_ids
            )
            for point in full
        ]
        yield Part(
            "600 TFLOP/s on FULL",
            f"{span([point.rate for point in full])} TFLOP/s on FULL from {format_length(FULL_FROM)}, "
            f"{FULL_RATE} or more at {held(rates)}"
            if rates
            else f"FULL is not measured from {format_length(FULL_FROM)}",
            rates,
        )
