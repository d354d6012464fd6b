"""Claim 5: backward beside forward, of dense kernels."""

from longca.lab.claims.as_study import STUDY_DENSE, of_study, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import DENSE, GQA, MHA, gpu_note, points
from longca.lab.claims.gaps import missing_dense
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import Observation, of_methods
from longca.lab.store.text import number

DOCUMENTS = {"full_document": "full", "causal_document": "causal"}
MASKS = (*DOCUMENTS, *DOCUMENTS.values())


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
        "One kernel's backward is level with its forward on more than a quarter of its points, or keeps as "
        "large a share on documents"
    )

    def judge(self, table):
        asked = self._asked(table, DENSE)
        return decided_in_parts(
            *self._parts(asked, DENSE),
            note=gpu_note(asked),
            missing=missing_dense(asked, self.gpus, "", DENSE, MASKS),
        )

    def judge_as_study(self, table):
        asked = self._asked(of_study(table), STUDY_DENSE)
        return decided_in_parts(
            *self._parts(asked, STUDY_DENSE),
            stand_in("flashmask", "FlashMask"),
            missing=missing_dense(asked, self.gpus, "as-study", STUDY_DENSE, MASKS),
        )

    def _asked(self, table, kernels):
        return points(table, ok=False, kind="kernel", kernel=kernels, mask=MASKS, heads=(GQA, MHA))

    def _parts(self, asked, kernels):
        """Two parts for each kernel: some are slower backward, or lose by documents, where others are not."""
        below = {shown(kernel): [] for kernel in kernels}
        wider = {shown(kernel): [] for kernel in kernels}
        compared = pairs(
            [point for point in asked if point.direction == "bwd"],
            [point for point in asked if point.direction == "fwd"],
            "direction",
        )
        whole = {
            (pair.first.mask, self._setting(pair.first)): pair
            for pair in compared
            if pair.first.mask in DOCUMENTS.values()
        }
        for pair in compared:
            name = pair.first.name
            below[name].append(pair.observed(pair.order == "less", f"{name} backward", "forward"))
            beside = whole.get((DOCUMENTS.get(pair.first.mask, ""), self._setting(pair.first)))
            if beside is not None:
                wider[name].append(self._gap(beside, pair))
        return [*of_methods("backward is slower at", below), *of_methods("documents widen the gap at", wider)]

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
