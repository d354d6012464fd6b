"""Claim 14: memory of FlashInfer under small blocks."""

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided
from longca.lab.claims.evidence import GQA, MHA, STUDY_BYTES, gpu_note, missing, of, points
from longca.lab.claims.parts import Observation
from longca.lab.claims.refusals import is_too_large
from longca.lab.store.text import format_bytes

BLOCK = 64  # tokens: the study's smaller block
FROM = 65536  # twice its shortest sequence
LENGTHS = tuple(1024 * length for length in (64, 96, 128))
DENSITIES = ("0.2", "0.5", "0.8")  # the study's
# q-blocks of all KV heads: the size of a buffer in FlashInfer's wrapper, which the study left as it is
MOST_LISTS = 32768
AXES = {"density": DENSITIES, "heads": (GQA, MHA), "seqlen": LENGTHS}
WHERE = {
    "kind": "kernel",
    "kernel": "flashinfer",
    "mask": "block_sparse_uniform",
    "direction": "fwd",
    "block": BLOCK,
}
NO_MEMORY = "out of memory"
TOO_LARGE = "more indices than 32 bits hold"
TOO_MANY_LISTS = "more q-blocks than its own buffer holds"


class FlashinferMemory(Claim):
    number = 14
    label = "FlashInfer runs out of memory at small blocks"
    sentence = (
        "On blocks of 64 at 64K tokens and beyond FlashInfer runs out of the study's 80 GB at some density "
        "of .2, .5 and .8."
    )
    source = "Texts about the paper; its tables end early for FlashInfer"
    trust = "second-hand"
    gpus = "one GPU"
    quantity = "memory"
    overturned_by = "FlashInfer runs all these lengths and densities in less than 80 GB"

    def judge(self, table):
        longer = {"seqlen": lambda length: length >= FROM, "density": DENSITIES}
        asked = points(table, ok=False, **(WHERE | longer))
        note = gpu_note(asked, "memory is compared with 80 GB, not with the GPU's own")
        return self._verdict(
            asked, missing(asked, self.gpus, **AXES), note, "Its wrapper's buffers are enlarged here."
        )

    def judge_as_study(self, table):
        asked = points(of_study(table), ok=False, **WHERE, **AXES)
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=["flashinfer"],
            mask=["block_sparse_uniform"],
            block=[str(BLOCK)],
            direction=["fwd"],
            **AXES,
        )
        return self._verdict(
            asked,
            lacking,
            "The study left the wrapper's buffers as they are; here they are enlarged, and a point that this "
            "release of FlashInfer could not run without counts as failing.",
            fixed_buffers=True,
        )

    def _verdict(self, asked, lacking, *notes, fixed_buffers=False):
        """A failure of any kind counts, and one of them is enough."""
        outcomes = [(point, self._failure(point, fixed_buffers)) for point in asked]
        outcomes = [(point, failure) for point, failure in outcomes if failure or point.ok]
        failures = [failure for _, failure in outcomes if failure]
        needed = [point.value("absolute_peak_bytes") for point, failure in outcomes if not failure]
        observed = [self._observed(point, failure, bool(failures)) for point, failure in outcomes]
        causes = ", ".join(f"{failures.count(cause)} by {cause}" for cause in dict.fromkeys(failures))
        finding = (
            f"FlashInfer fails at {of(len(failures), len(outcomes), 'point')}"
            f"{f' ({causes})' if failures else ''}"
            f"{f'; the largest that ran needs {format_bytes(max(needed))}' if needed else ''}"
        )
        cause = (
            "Failures of its plan count as much as those of memory." if set(failures) - {NO_MEMORY} else ""
        )
        return decided(
            finding,
            observed,
            is_open=lacking.absent > 0 and not failures,
            missing=lacking,
            note=" ".join(filter(None, (*notes, cause))),
        )

    def _observed(self, point, failure, holds):
        outcome = (
            f"fails by {failure}" if failure else f"needs {format_bytes(point.value('absolute_peak_bytes'))}"
        )
        return Observation(f"flashinfer {outcome}: {point.where}", holds, point.cell_ids)

    def _failure(self, point, fixed_buffers):
        """The cause in words; "" where the point runs, or where its refusal is no failure."""
        if "oom" in point.statuses or point.value("absolute_peak_bytes") > STUDY_BYTES:
            return NO_MEMORY
        if is_too_large(point):
            return TOO_LARGE
        if fixed_buffers and point.num_kv_heads * (point.seqlen // BLOCK) > MOST_LISTS:
            return TOO_MANY_LISTS
        return f"an error ({point.cells[0].reason})" if "error" in point.statuses else ""
