"""Claim 13: memory of FlexAttention under block-sparse masks."""

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import GQA, MHA, STUDY_BYTES, gpu_note, held, missing, points
from longca.core.units import format_length
from longca.store.text import format_bytes

FROM = 32768  # tokens: the study's shortest
MASKS = ("block_sparse_uniform", "block_sparse_variable")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's


class FlexSparseMemory(Claim):
    number = 13
    label = "FlexAttention runs out of memory block-sparse"
    sentence = "From 32K tokens FlexAttention does not fit the study's GPU under block-sparse masks, since its mask needs memory of S²."
    source = "Reviews of the paper and texts about it; its code builds the mask eagerly"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FlexAttention runs block-sparse masks at these lengths in less than 80 GB"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel="flex", mask=MASKS, seqlen=lambda length: length >= FROM)
        told = [point for point in asked if point.statuses & {"ok", "oom"}]
        observed = [self._observed(point) for point in told]
        longest = max((point for point in told if point.ok), key=lambda one: (one.seqlen, one.value("absolute_peak_bytes")), default=None)
        most = (f"; at {format_length(longest.seqlen)} it needs up to {format_bytes(longest.value('absolute_peak_bytes'))}"
                if longest else "")
        finding = f"FlexAttention lacks memory at {held(observed)}{most}"
        note = gpu_note(told, "memory is compared with 80 GB. The block mask here is built from blocks, never from S² pairs, so that the "
                        "claim is about how a mask is built and not about the kernel")
        return decided(finding, observed, note=note,
                       missing=missing(asked, self.gpus, mask=MASKS, heads=(GQA, MHA), seqlen=LENGTHS, direction=("fwd", "bwd")))

    def _observed(self, point):
        needed = point.value("absolute_peak_bytes")
        return Observation(f"flex {f'needs {format_bytes(needed)}' if point.ok else 'runs out of memory'}: {point.where}",
                           not needed <= STUDY_BYTES, point.cell_ids)
