"""Claim 3: the kernels that run heterogeneous masks."""

from longca.lab.claims.as_study import FORMS, stand_in
from longca.lab.claims.contract import Claim, Observation, Part, decided_in_parts
from longca.lab.claims.evidence import GQA, HETEROGENEOUS, gpu_note, held, missing, of, points
from longca.lab.claims.regular import is_heterogeneous
from longca.lab.store.text import number

CANNOT = ("fa2", "fa3", "cudnn_graph", "cudnn")
CAN = ("flex", "sdpa", "naive", "flashmask")
NEWER = "cudnn_flex"  # cuDNN's own flexible attention, which the study did not have
ANY = "The masks that a kernel takes depend on no GPU, on no draw of documents, and on no defect of the call."


class HeterogeneousSupport(Claim):
    number = 3
    label = "FA2, FA3 and cuDNN run no heterogeneous mask"
    sentence = (
        "FA2, FA3 and cuDNN run none of the six heterogeneous masks; FlexAttention, FlashMask, SDPA and the "
        "naive kernel run all of them."
    )
    source = "Texts about the paper: its table of kernels and masks; its code agrees"
    trust = "second-hand"
    gpus = "one GPU"
    quantity = "support"
    overturned_by = (
        "FA2, FA3 or cuDNN gives a right result on such a mask where it is not a regular one, "
        "or one of the others refuses one"
    )

    def judge(self, table):
        asked = self._asked(table, (*CANNOT, *CAN))
        newer = [point.ok for point in self._asked(table, (NEWER,))]
        runs = of(sum(newer), len(newer), "point")
        newer_text = f"cuDNN's newer `{NEWER}`, which the study did not have, runs {runs}." if newer else ""
        note = (
            f"{newer_text} {gpu_note(asked, 'the masks that a kernel takes do not depend on that')}".strip()
        )
        lacking = missing(
            asked, self.gpus, kernel=(*CANNOT, *CAN), mask=HETEROGENEOUS, heads=[GQA], seqlen=(8192,)
        )
        return decided_in_parts(*self._parts(asked), missing=lacking, note=note)

    def judge_as_study(self, table):
        kernels = [kernel for kernel in (*CANNOT, *CAN) if kernel in FORMS]
        asked = self._asked(table, kernels)
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=kernels,
            mask=HETEROGENEOUS,
            heads=[GQA],
            seqlen=(8192,),
        )
        return decided_in_parts(
            *self._parts(asked),
            stand_in("flashmask", "FlashMask"),
            missing=lacking,
            note=ANY if asked else "",
        )

    def _asked(self, table, kernels):
        tried = points(table, ok=False, kind="kernel", kernel=kernels, mask=HETEROGENEOUS)
        return [point for point in tried if is_heterogeneous(point)]

    def _parts(self, asked):
        answered = [point for point in asked if point.statuses & {"ok", "unsupported"}]
        no = [
            Observation(
                f"{point.name} runs {point.where}, {number(point.value('density'), 2)} of it visible",
                not point.ok,
                point.cell_ids,
            )
            for point in answered
            if point.kernel in CANNOT
        ]
        yes = [
            Observation(f"{point.name} refuses {point.where}", point.ok, point.cell_ids)
            for point in answered
            if point.kernel in CAN
        ]
        yield Part("FA2, FA3 and cuDNN", f"FA2, FA3 and cuDNN refuse {held(no)}", no)
        names = (
            ", ".join(dict.fromkeys(point.name for point in answered if point.kernel in CAN)) or "the others"
        )
        yield Part("the others", f"{names} run {held(yes)}", yes)
