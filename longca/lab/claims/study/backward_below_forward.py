"""Claim 5: backward beside forward, of dense kernels."""

from collections import defaultdict

from longca.lab.claims.as_study import STUDY_DENSE, of_study, stand_in
from longca.lab.claims.contract import Claim, Observation, Part, decided_in_parts
from longca.lab.claims.evidence import DENSE, GQA, MHA, gpu_note, held, points, span
from longca.lab.claims.gaps import missing_dense
from longca.lab.claims.pairs import pairs
from longca.lab.store.text import number

DOCUMENTS = {"full": "full_document", "causal": "causal_document"}
MASKS = tuple(mask for both in DOCUMENTS.items() for mask in both)


class BackwardBelowForward(Claim):
    number = 5
    label = "Backward reaches fewer TFLOP/s than forward"
    sentence = (
        "Each dense kernel does fewer TFLOP/s backward than forward on FULL, CAUSAL and documents, and the "
        "share that backward reaches is lower on documents than on the whole sequence."
    )
    source = "Texts about the paper: its curves of both directions"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = (
        "Backward is level with forward on more than a quarter of the points, or keeps a larger "
        "share on documents"
    )

    def judge(self, table):
        asked = self._asked(table, DENSE)
        return decided_in_parts(
            *self._parts(asked),
            note=gpu_note(asked),
            missing=missing_dense(asked, self.gpus, "", DENSE, MASKS),
        )

    def judge_as_study(self, table):
        asked = self._asked(of_study(table), STUDY_DENSE)
        return decided_in_parts(
            *self._parts(asked),
            stand_in("flashmask", "FlashMask"),
            missing=missing_dense(asked, self.gpus, "as-study", STUDY_DENSE, MASKS),
        )

    def _asked(self, table, kernels):
        return points(table, ok=False, kind="kernel", kernel=kernels, mask=MASKS, heads=(GQA, MHA))

    def _parts(self, asked):
        compared = pairs(
            [point for point in asked if point.direction == "bwd"],
            [point for point in asked if point.direction == "fwd"],
            "direction",
        )
        below = [
            pair.observed(pair.order == "less", f"{pair.first.name} backward", "forward") for pair in compared
        ]
        shares = {(pair.first.mask, self._setting(pair.first)): pair for pair in compared}
        by_kernel: dict[str, list[Observation]] = defaultdict(list)
        for (mask, setting), pair in shares.items():
            if mask in DOCUMENTS and (DOCUMENTS[mask], setting) in shares:
                by_kernel[pair.first.name].append(self._gap(pair, shares[DOCUMENTS[mask], setting]))
        gaps = [gap for kernel in by_kernel.values() for gap in kernel]
        kernels = ", ".join(
            f"{name} {sum(gap.holds for gap in by_kernel[name])}/{len(by_kernel[name])}"
            for name in sorted(by_kernel)
        )
        yield Part(
            "backward below forward",
            f"backward is slower at {held(below)} ({span(pair.ratio for pair in compared)}× forward)",
            below,
        )
        widened = f"documents widen the gap at {held(gaps)}" + (f" ({kernels})" if len(by_kernel) > 1 else "")
        yield Part("a wider gap on documents", widened, gaps)

    def _setting(self, point):
        return point.device, point.kernel, point.seqlen, point.heads, point.head_dim, point.dtype

    def _gap(self, whole, documents):
        text = (
            f"{whole.first.name} keeps {number(documents.ratio, 2)} of forward on {documents.first.where}, "
            f"{number(whole.ratio, 2)} on {whole.first.mask}"
        )
        return Observation(
            text, whole.is_above(documents), documents.first.cell_ids + documents.second.cell_ids
        )
