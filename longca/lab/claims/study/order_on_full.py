"""Claim 2: the order of kernels on FULL."""

from longca.lab.claims.as_study import of_study, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import GQA, MHA, gpu_note, missing, points, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import of_methods

SEQLEN = 8192  # tokens: of the study's figure
THIRD = ("fa2", "flex", "flashmask")  # the study does not order these
CUDNN = ("cudnn_graph", "cudnn")  # by itself, as in the study, and inside torch
HEADS = (GQA, MHA)  # the only settings that the sentence leaves to choose
WHERE = {"kind": "kernel", "mask": "full", "seqlen": SEQLEN, "direction": "fwd", "heads": HEADS}


class OrderOnFull(Claim):
    number = 2
    label = "On FULL at 8K: FA3, then cuDNN, then the others"
    sentence = (
        "Forward on FULL at 8K tokens FA3 is faster than cuDNN, and cuDNN faster than FA2, "
        "FlexAttention and FlashMask."
    )
    source = "Texts about the paper: its figure of forward rates at 8K"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = (
        "With either number of KV heads cuDNN reaches FA3's rate, or one of FA2, FlexAttention and FlashMask "
        "reaches cuDNN's"
    )

    def judge(self, table):
        asked = points(table, ok=False, **WHERE)
        lacking = missing(asked, self.gpus, kernel=("fa3", *CUDNN, *THIRD), heads=HEADS)
        note = f"{gpu_note(asked)} {self._middle(asked, CUDNN)}".strip()
        return decided_in_parts(*self._parts(asked, CUDNN, THIRD), missing=lacking, note=note)

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, **WHERE)
        kernels = ("fa3", CUDNN[0], *THIRD[:2])
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=kernels,
            mask=["full"],
            seqlen=[SEQLEN],
            direction=["fwd"],
            heads=HEADS,
        )
        return decided_in_parts(
            *self._parts(asked, CUDNN[:1], THIRD[:2]),
            stand_in("flashmask", "FlashMask"),
            missing=lacking,
            note=self._middle(asked, CUDNN[:1]),
        )

    def _middle(self, asked, of_cudnn):
        sdpa, cudnn = ([point for point in asked if point.kernel in names] for names in (("sdpa",), of_cudnn))
        ratios = span(pair.ratio for pair in pairs(sdpa, cudnn, "kernel"))
        return "" if ratios == "–" else f"SDPA, which the study sees in the middle, is at {ratios}× cuDNN."

    def _parts(self, asked, of_cudnn, others):
        named = {
            name: [point for point in asked if point.kernel == name] for name in ("fa3", *of_cudnn, *others)
        }
        return [
            part
            for first, seconds in (("fa3", of_cudnn), *((cudnn, others) for cudnn in of_cudnn))
            for part in self._above(named, first, seconds)
        ]

    def _above(self, named, first, seconds):
        beside = {shown(second): pairs(named[first], named[second], "kernel") for second in seconds}
        return of_methods(
            f"forward {first} is faster than",
            {
                second: [pair.observed(pair.order == "more") for pair in compared]
                for second, compared in beside.items()
            },
            ratios={
                second: f"{span(pair.ratio for pair in compared)}×" for second, compared in beside.items()
            },
            asked=len(HEADS),
        )
