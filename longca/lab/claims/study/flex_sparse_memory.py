"""Claim 13: memory of FlexAttention under block-sparse masks."""

from longca.core import format_length
from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.evidence import GQA, MHA, gpu_note, held, missing, notes, points
from longca.lab.claims.failures import lacks_memory
from longca.lab.claims.parts import Observation
from longca.lab.store.text import format_bytes

FROM = 32768  # tokens: the study's shortest
MASKS = ("block_sparse_uniform", "block_sparse_variable")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
# in the notes of the released call, where torch had no memory for it: any other error is no evidence
NO_MASK = "no block mask (OutOfMemoryError)"
ANY = (
    "A block mask that torch has no memory for on a larger GPU does not fit the study's. The sentence is "
    "about the mask; what the released code does without it is no evidence."
)


class FlexSparseMemory(Claim):
    number = 13
    label = "FlexAttention runs out of memory block-sparse"
    sentence = (
        "From 32K tokens FlexAttention does not fit the study's GPU under block-sparse masks, since "
        "its mask needs memory of S²."
    )
    source = "Reviews of the paper and texts about it; its code builds the mask eagerly"
    trust = "second-hand"
    gpus = "one GPU"
    quantity = "memory"
    overturned_by = (
        "FlexAttention has memory for its block mask, and runs in less than 80 GB, on more than a quarter of "
        "the points"
    )
    columns = ("notes",)

    def judge(self, table):
        asked = self._asked(table)
        observed = [
            self._observed(point, lacks) for point in asked if (lacks := lacks_memory(point)) is not None
        ]
        note = gpu_note(
            asked,
            "memory is compared with 80 GB. The block mask here is built from blocks, never from S² pairs, "
            "so that the claim is about how a mask is built and not about the kernel",
        )
        longest = max(
            (point for point in asked if point.ok),
            key=lambda point: (point.seqlen, point.value("absolute_peak_bytes")),
            default=None,
        )
        most = ""
        if longest:
            needed = format_bytes(longest.value("absolute_peak_bytes"))
            most = f"; at {format_length(longest.seqlen)} it needs up to {needed}"
        finding = f"FlexAttention lacks memory at {held(observed)}{most}"
        return decided(finding, observed, note=note, missing=self._lacking(asked, ""))

    def judge_as_study(self, table):
        rows = of_study(table, any_gpu=True)
        asked = self._asked(rows)
        outcomes = [(point, NO_MASK in notes(rows, point), lacks_memory(point)) for point in asked]
        observed = [
            self._observed(point, lacks or no_mask, no_mask)
            for point, no_mask, lacks in outcomes
            if no_mask or lacks is not None
        ]
        finding = f"FlexAttention lacks memory for its block mask at {held(observed)}"
        without = [point.value("absolute_peak_bytes") for point, no_mask, _ in outcomes if no_mask]
        if without:
            finding += f", and computes all scores instead, in up to {format_bytes(max(without))}"
        note = ANY if observed else ""
        return decided(finding, observed, note=note, missing=self._lacking(asked, "as-study"))

    def _asked(self, table):
        return points(
            table, ok=False, kind="kernel", kernel="flex", mask=MASKS, seqlen=lambda length: length >= FROM
        )

    def _lacking(self, asked, study):
        return missing(
            asked,
            self.gpus,
            study=study,
            kernel=["flex"],
            mask=MASKS,
            heads=(GQA, MHA),
            seqlen=LENGTHS,
            direction=("fwd", "bwd"),
        )

    def _observed(self, point, lacks, no_mask=False):
        what = (
            "has no memory for its block mask"
            if no_mask
            else f"needs {format_bytes(point.value('absolute_peak_bytes'))}"
            if point.ok
            else "runs out of memory"
        )
        return Observation(f"flex {what}: {point.where}", lacks, point.cell_ids)
