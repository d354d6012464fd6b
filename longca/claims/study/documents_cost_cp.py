"""Claim 22: documents under context parallelism."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import STRATEGIES, gpu_note, held, missing, pairs, points, span

AGAIN = ("paper_style_ring", "paper_style_allgather")  # the study's own schedules, done again
WHOLE = {"full_document": "full", "causal_document": "causal"}
MUCH = 2 / 3  # of the rate without documents, at most
WORLDS = (2, 4)


class DocumentsCostCp(Claim):
    number = 22
    label = "Documents cost every strategy much of its rate"
    sentence = ("Under every strategy documents bring TFLOP/s per GPU down to two thirds or less of what FULL and CAUSAL reach without "
                "them, since ranks wait and pad.")
    source = "Texts about the paper: it names waiting and padding as the cost of documents"
    trust = "second-hand"
    gpus = "2–4 GPUs"
    overturned_by = "Strategies keep more than two thirds of their rate under documents on more than a quarter of the points"

    def judge(self, table):
        masks = (*WHOLE, *WHOLE.values())
        asked = points(table, ok=False, kind="cp", strategy=(*STRATEGIES, *AGAIN), mask=masks)
        found = self._beside(asked)
        alone = self._beside(points(table, kind="kernel", mask=masks, kernel={point.kernel for point in asked},
                                    seqlen={point.seqlen for point in asked}))
        observed = [pair.observed(pair.ratio <= MUCH, f"{pair.first.method} with documents", "without") for pair in found]
        parts = []
        for name, strategies in (("the five strategies", STRATEGIES), ("the study's schedules, done again,", AGAIN)):
            here = [(pair.ratio, one) for pair, one in zip(found, observed, strict=True) if pair.first.strategy in strategies]
            ratios, those = span(ratio for ratio, _ in here), [one for _, one in here]
            if here:
                parts.append((f"{name} keep {ratios}× their rate, two thirds or less at {held(those)}", those))
        if alone:
            parts.append((f"the kernels alone keep {span(pair.ratio for pair in alone)}×", []))
        finding = in_parts(*parts)
        return decided(finding, observed, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, strategy=STRATEGIES, mask=masks, world=WORLDS))

    def _beside(self, found):
        return [pair for documents, whole in WHOLE.items()
                for pair in pairs([point for point in found if point.mask == documents], [point for point in found if point.mask == whole],
                                  "mask")]
