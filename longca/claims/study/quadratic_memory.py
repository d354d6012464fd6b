"""Claim 4: memory of SDPA and of the naive kernel."""

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import HETEROGENEOUS, REGULAR, STUDY_BYTES, gpu_note, held, missing, points
from longca.core.units import format_length
from longca.store.text import format_bytes

NAMES = {"sdpa": "SDPA", "naive": "naive"}
KERNELS = tuple(NAMES)
MASKS = (*REGULAR[2:], *HETEROGENEOUS)  # SDPA gets no mask tensor for FULL and CAUSAL
FROM = 32768  # tokens: texts put the first failure at 16K to 32K, so that at 32K all must have failed


class QuadraticMemory(Claim):
    number = 4
    label = "SDPA and naive run out of memory under long masks"
    sentence = ("Under a mask, at 32K tokens and beyond, neither SDPA nor the naive kernel fits the 80 GB of the study's GPU, since both "
                "need memory of S².")
    source = "Texts about the paper, which disagree on the length"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "One of the two runs a masked sequence of 32K tokens in less than 80 GB"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, mask=MASKS)
        long = [point for point in asked if point.seqlen >= FROM and point.statuses & {"ok", "oom"}]
        judged = [kernel for kernel in KERNELS if any(point.kernel == kernel for point in long)]
        observed = {kernel: [self._observed(point) for point in long if point.kernel == kernel] for kernel in judged}
        needed = {kernel: self._needed(kernel, [point for point in asked if point.kernel == kernel]) for kernel in judged}
        finding = in_parts(*((f"{NAMES[kernel]} is beyond 80 GB from {format_length(FROM)} on at {held(those)}{needed[kernel]}", those)
                             for kernel, those in observed.items()))
        note = gpu_note(asked, "memory is compared with 80 GB, not with the GPU's own. SDPA here gets copies of the KV heads, which keeps "
                        "torch on fused paths; the study's call had GQA and a mask, which the torch of its time ran unfused")
        return decided(finding, [one for those in observed.values() for one in those], note=note,
                       part=f"{judged[0]} alone" if len(judged) == 1 else "",
                       missing=missing(asked, self.gpus, kernel=KERNELS, mask=MASKS, seqlen=(16384, FROM)))

    def _observed(self, point):
        needed = point.value("absolute_peak_bytes")
        amount = f"needs {format_bytes(needed)}" if point.ok else "runs out of memory"
        return Observation(f"{point.method} {amount}: {point.where}", not needed <= STUDY_BYTES, point.cell_ids)

    def _needed(self, kernel, found):
        """The memory of the longest sequence that ran, and how it grew from half of that."""
        most: dict[int, float] = {}
        for point in found:
            if point.ok:
                most[point.seqlen] = max(most.get(point.seqlen, 0), point.value("absolute_peak_bytes"))
        if not most:
            return ""
        length = max(most)
        growth = f", {most[length] / most[length // 2]:.1f}× that of {format_length(length // 2)}" if length // 2 in most else ""
        return f" and needs {format_bytes(most[length])} at {format_length(length)}{growth}"
