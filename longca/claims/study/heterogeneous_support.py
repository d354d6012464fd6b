"""Claim 3: the kernels that run heterogeneous masks."""

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import GQA, HETEROGENEOUS, gpu_note, held, missing, points, span
from longca.core.units import format_length
from longca.store.text import number

CANNOT = ("fa2", "fa3", "cudnn", "cudnn_graph")
CAN = ("flex", "flashmask", "sdpa", "naive")


class HeterogeneousSupport(Claim):
    number = 3
    label = "FA2, FA3 and cuDNN run no heterogeneous mask"
    sentence = ("FA2, FA3 and cuDNN run none of the six heterogeneous masks; FlexAttention, FlashMask, SDPA and the naive kernel run all "
                "of them.")
    source = "Texts about the paper: its table of kernels and masks; its code agrees"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FA2, FA3 or cuDNN gives a right result on such a mask where it is not a regular one, or one of the others refuses one"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=(*CANNOT, *CAN), mask=HETEROGENEOUS)
        told = [point for point in asked if point.statuses & {"ok", "unsupported"}]
        no = [Observation(f"{point.method} runs {point.where}, {number(point.value('density'), 2)} of it visible", not point.ok,
                          point.cell_ids) for point in told if point.kernel in CANNOT]
        yes = [Observation(f"{point.method} refuses {point.where}", point.ok, point.cell_ids) for point in told if point.kernel in CAN]
        run = sorted({point.seqlen for point in told if point.kernel in CANNOT and point.ok})
        masks = sorted({point.mask for point in told if point.kernel in CANNOT and point.ok})
        where = f", and run {' and '.join(masks)} at {span(run, format_length)}" if run else ""
        finding = in_parts((f"FA2, FA3 and cuDNN refuse {held(no)}{where}", no), (f"the other four run {held(yes)}", yes))
        regular = "A mask whose blocks or windows reach over the whole sequence is a regular one there. " if run else ""
        return decided(finding, no, yes, note=regular + gpu_note(told, "the masks that a kernel takes do not depend on that"),
                       missing=missing(asked, self.gpus, kernel=(*CANNOT, *CAN), mask=HETEROGENEOUS, heads=[GQA], seqlen=(8192,)))
