"""Claim 22: documents under context parallelism."""

from longca.lab.claims.as_study import of_study, without_compat
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import STRATEGIES, gpu_note, missing, points, span
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import of_methods
from longca.lab.claims.schedules import GATHER, KERNEL, NAMES, RING, decides, lacking, not_here, reached

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
        "One strategy keeps more than two thirds of its rate under documents on more than a quarter of its "
        "points"
    )

    def judge(self, table):
        rows = without_compat(table)
        asked = points(rows, ok=False, kind="cp", strategy=STRATEGIES, mask=MASKS)
        compared = self._beside(asked)
        same = {"kernel": {point.kernel for point in asked}, "seqlen": {point.seqlen for point in asked}}
        alone = self._beside(points(rows, kind="kernel", mask=MASKS, **same))
        own = f"The kernels alone keep {span(pair.ratio for pair in alone)}× of it." if alone else ""
        return decided_in_parts(
            *self._parts(compared, {name: name for name in STRATEGIES}),
            note=f"{own} {gpu_note(asked)}".strip(),
            missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=MASKS, world=(2, 4)),
        )

    def judge_as_study(self, table):
        strategies = {"kind": "cp", "strategy": (RING, GATHER), "mask": MASKS}
        asked = points(of_study(table), ok=False, kernel=KERNEL, **strategies)
        compared = self._beside([point for point in asked if decides(point)])
        few = not compared
        if few:  # what there is: another kernel, other documents, fewer GPUs
            compared = self._beside(points(of_study(table, any_draw=True), **strategies))
        others = " and this project's documents"
        return decided_in_parts(
            *self._parts(compared, NAMES, few),
            *not_here("Ulysses", "USP", "LoongTrain"),
            part=f"{reached([pair.first for pair in compared])}{others}" if few and compared else "",
            missing=lacking(asked, "ulysses", "usp", "loongtrain", masks=MASKS),
        )

    def _parts(self, compared, strategies, few=False):
        own = {
            shown: [pair for pair in compared if pair.first.strategy == name]
            for name, shown in strategies.items()
        }
        return of_methods(
            "documents leave at most two thirds of the rate for",
            {
                name: [
                    pair.observed(pair.ratio <= MUCH, f"{pair.first.method} with documents", "without")
                    for pair in those
                ]
                for name, those in own.items()
            },
            ratios={name: f"{span(pair.ratio for pair in those)}×" for name, those in own.items()},
            is_open=few,
        )

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
