"""Claim 22: documents under context parallelism."""

from longca.lab.claims.as_study import of_study, without_compat
from longca.lab.claims.contract import Claim, decided, decided_in_parts
from longca.lab.claims.evidence import STRATEGIES, gpu_note, held, missing, points, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Part
from longca.lab.claims.schedules import GATHER, KERNEL, RING, decides, lacking, not_here, reached

WHOLE = {"full_document": "full", "causal_document": "causal"}
MASKS = (*WHOLE, *WHOLE.values())
MUCH = 2 / 3  # of the rate without documents, at most


class DocumentsCostCp(Claim):
    number = 22
    label = "Documents cost every strategy much of its rate"
    sentence = (
        "Under every strategy documents bring TFLOP/s per GPU down to two thirds or less of what FULL and "
        "CAUSAL reach without them, since ranks wait and pad."
    )
    source = "Texts about the paper: it names waiting and padding as the cost of documents"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    overturned_by = (
        "Strategies keep more than two thirds of their rate under documents on more than a quarter of the "
        "points"
    )

    def judge(self, table):
        rows = without_compat(table)
        asked = points(rows, ok=False, kind="cp", strategy=STRATEGIES, mask=MASKS)
        compared = self._beside(asked)
        same = {"kernel": {point.kernel for point in asked}, "seqlen": {point.seqlen for point in asked}}
        alone = self._beside(points(rows, kind="kernel", mask=MASKS, **same))
        observed = self._observed(compared)
        finding = f"The five strategies (ours) {self._kept(compared)}"
        if alone:
            finding += f"; the kernels alone keep {span(pair.ratio for pair in alone)}×"
        return decided(
            finding,
            observed,
            note=gpu_note(asked),
            missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=MASKS, world=(2, 4)),
        )

    def judge_as_study(self, table):
        strategies = {"kind": "cp", "strategy": (RING, GATHER), "mask": MASKS}
        asked = points(of_study(table), ok=False, kernel=KERNEL, **strategies)
        compared = self._beside([point for point in asked if decides(point)])
        few = not compared
        if few:  # what there is: another kernel, other documents, fewer GPUs
            compared = self._beside(points(of_study(table, any_draw=True), **strategies))
        finding = (
            f"the study's ring and all-gather {self._kept(compared)}"
            if compared
            else "the study's ring and all-gather are not measured under documents"
        )
        others = " and this project's documents"
        return decided_in_parts(
            Part("Ring P2P and All-Gather", finding, self._observed(compared), few),
            not_here("Ulysses", "USP", "LoongTrain"),
            part=f"{reached([pair.first for pair in compared])}{others}" if few and compared else "",
            missing=lacking(asked, "ulysses", "usp", "loongtrain", masks=MASKS),
        )

    def _kept(self, compared):
        ratios = span(pair.ratio for pair in compared)
        return f"keep {ratios}× their rate, two thirds or less at {held(self._observed(compared))}"

    def _observed(self, compared):
        return [
            pair.observed(pair.ratio <= MUCH, f"{pair.first.method} with documents", "without")
            for pair in compared
        ]

    def _beside(self, observed):
        return [
            pair
            for documents, whole in WHOLE.items()
            for pair in pairs(
                [point for point in observed if point.mask == documents],
                [point for point in observed if point.mask == whole],
                "mask",
            )
        ]
