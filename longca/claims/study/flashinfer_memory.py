"""Claim 14: memory of FlashInfer under small blocks."""

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import GQA, MHA, STUDY_BYTES, gpu_note, missing, of, points
from longca.store.text import format_bytes

BLOCK, FROM = 64, 65536  # tokens: the study's smaller block, and twice its shortest sequence
LENGTHS = tuple(1024 * length for length in (64, 96, 128))
DENSITIES = ("0.2", "0.5", "0.8")  # the study's


class FlashinferMemory(Claim):
    number = 14
    label = "FlashInfer runs out of memory at small blocks"
    sentence = "On blocks of 64 at 64K tokens and beyond FlashInfer runs out of the study's 80 GB at some density of .2, .5 and .8."
    source = "Texts about the paper; its tables end early for FlashInfer"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "FlashInfer runs all these lengths and densities in less than 80 GB"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel="flashinfer", mask="block_sparse_uniform", direction="fwd", block=BLOCK,
                       seqlen=lambda length: length >= FROM)
        told = [point for point in asked if point.statuses & {"ok", "oom", "error"}]
        lacking = missing(asked, self.gpus, density=DENSITIES, heads=(GQA, MHA), seqlen=LENGTHS)
        failed = [point for point in told if "oom" in point.statuses or point.value("absolute_peak_bytes") > STUDY_BYTES]
        others = [point for point in told if "error" in point.statuses]
        ran = [point.value("absolute_peak_bytes") for point in told if point.ok]
        observed = [Observation(f"flashinfer {self._what(point)}: {point.where}", bool(failed), point.cell_ids) for point in told]
        finding = (f"FlashInfer lacks memory at {of(len(failed), len(told), 'point')}"
                   f"{f'; the largest that ran needs {format_bytes(max(ran))}' if ran else ''}"
                   f"{f'; {len(others)} failed otherwise' if others else ''}")
        note = gpu_note(told, "memory is compared with 80 GB, not with the GPU's own")
        return decided(finding, observed, is_open=lacking.absent > 0 and not failed, missing=lacking, note=note)

    def _what(self, point):
        if point.ok:
            return f"needs {format_bytes(point.value('absolute_peak_bytes'))}"
        return "runs out of memory" if "oom" in point.statuses else f"fails ({point.cells[0].reason})"
