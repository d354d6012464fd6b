"""Claim 3: the kernels that run heterogeneous masks."""

from longca.lab.claims.as_study import FORMS, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import GQA, HETEROGENEOUS, gpu_note, missing, of, points
from longca.lab.claims.parts import Observation, of_methods
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
        "On more than a quarter of its points FA2, FA3 or cuDNN gives a right result on such a mask where it "
        "is not a regular one, or one of the others refuses one"
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
        return decided_in_parts(*self._parts(asked, (*CANNOT, *CAN)), missing=lacking, note=note)

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
            *self._parts(asked, kernels),
            stand_in("flashmask", "FlashMask"),
            missing=lacking,
            note=ANY if asked else "",
        )

    def _asked(self, table, kernels):
        tried = points(table, ok=False, kind="kernel", kernel=kernels, mask=HETEROGENEOUS)
        return [point for point in tried if is_heterogeneous(point)]

    def _parts(self, asked, kernels):
        answered = [point for point in asked if point.statuses & {"ok", "unsupported"}]
        of_kernel = {name: [point for point in answered if point.kernel == name] for name in kernels}
        refuse = {
            shown(name): [
                Observation(
                    f"{point.name} runs {point.where}, {number(point.value('density'), 2)} of it visible",
                    not point.ok,
                    point.cell_ids,
                )
                for point in own
            ]
            for name, own in of_kernel.items()
            if name in CANNOT
        }
        run = {
            shown(name): [
                Observation(f"{point.name} refuses {point.where}", point.ok, point.cell_ids) for point in own
            ]
            for name, own in of_kernel.items()
            if name in CAN
        }
        return [*of_methods("refused by", refuse), *of_methods("run by", run)]
