"""Claim 13: memory of FlexAttention under block-sparse masks."""

from longca.core import format_length
from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.evidence import GQA, MHA, STUDY_BYTES, gpu_note, held, missing, notes, points
from longca.lab.claims.parts import Observation
from longca.lab.store.text import format_bytes

FROM = 32768  # tokens: the study's shortest
MASKS = ("block_sparse_uniform", "block_sparse_variable")
LENGTHS = tuple(1024 * length for length in (32, 64, 96, 128))  # the study's
NO_MASK = "no block mask"  # in the notes of the released call, where torch had no memory for it
ANY = (
    "A block mask that does not fit a larger GPU does not fit the study's. The released code then computes "
    "all scores, which fits."
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
    overturned_by = "FlexAttention runs block-sparse masks at these lengths in less than 80 GB"
    columns = ("notes",)

    def judge(self, table):
        asked = self._asked(table)
        decided = [point for point in asked if point.statuses & {"ok", "oom"}]
        note = gpu_note(
            decided,
            "memory is compared with 80 GB. The block mask here is built from blocks, never from S² pairs, "
            "so that the claim is about how a mask is built and not about the kernel",
        )
        return self._decided(asked, [self._observed(point, "") for point in decided], note, "")

    def judge_as_study(self, table):
        rows = of_study(table, any_gpu=True)
        asked = self._asked(rows)
        observed = [
            self._observed(point, notes(rows, point)) for point in asked if point.statuses & {"ok", "oom"}
        ]
        return self._decided(asked, observed, ANY if observed else "", "as-study")

    def _asked(self, table):
        return points(
            table, ok=False, kind="kernel", kernel="flex", mask=MASKS, seqlen=lambda length: length >= FROM
        )

    def _decided(self, asked, observed, note, study):
        ran = [point for point in asked if point.ok]
        longest = max(ran, key=lambda point: (point.seqlen, point.value("absolute_peak_bytes")), default=None)
        most = ""
        if longest and not study:
            needed = format_bytes(longest.value("absolute_peak_bytes"))
            most = f"; at {format_length(longest.seqlen)} it needs up to {needed}"
        lacking = missing(
            asked,
            self.gpus,
            study=study,
            kernel=["flex"],
            mask=MASKS,
            heads=(GQA, MHA),
            seqlen=LENGTHS,
            direction=("fwd", "bwd"),
        )
        finding = (
            f"FlexAttention lacks memory{' for its block mask' if study else ''} at {held(observed)}{most}"
        )
        return decided(finding, observed, note=note, missing=lacking)

    def _observed(self, point, reasons):
        needed = point.value("absolute_peak_bytes")
        what = (
            "runs out of memory"
            if not point.ok
            else "has no memory for its block mask"
            if NO_MASK in reasons
            else f"needs {format_bytes(needed)}"
        )
        return Observation(
            f"flex {what}: {point.where}", NO_MASK in reasons or not needed <= STUDY_BYTES, point.cell_ids
        )
