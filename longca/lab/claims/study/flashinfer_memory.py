"""Claim 14: memory of FlashInfer under small blocks."""

from collections import defaultdict

from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import GQA, MHA, gpu_note, held, missing, of, points
from longca.lab.claims.failures import lacks_memory
from longca.lab.claims.parts import Observation, Part
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
OTHER_FAILURES = (
    "More indices than 32 bits hold, and more q-blocks than its own buffer holds, are failures of its plan, "
    "and no lack of memory."
)


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
    overturned_by = (
        "At more than a quarter of lengths and numbers of heads FlashInfer runs all three densities in less "
        "than 80 GB"
    )

    def judge(self, table):
        longer = {"seqlen": lambda length: length >= FROM, "density": DENSITIES}
        asked = points(table, ok=False, **(WHERE | longer))
        note = gpu_note(asked, "memory is compared with 80 GB, not with the GPU's own")
        outcomes = [(point, lacks_memory(point)) for point in asked]
        return self._verdict(
            outcomes, missing(asked, self.gpus, **AXES), f"{note} Its wrapper's buffers are enlarged here."
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
        outcomes = [(point, None if self._exceeds_buffer(point) else lacks_memory(point)) for point in asked]
        return self._verdict(
            outcomes,
            lacking,
            "The study left the wrapper's buffers as they are; here they are enlarged, and a point that this "
            "release of FlashInfer could not run without says nothing of memory.",
        )

    def _verdict(self, outcomes, lacking, note):
        """A case is one length and number of heads. One density that lacks memory is what the sentence asks
        for; without one, a case is undecided until all three ran."""
        cases = defaultdict(list)
        for point, lacks in outcomes:
            cases[point.device, point.seqlen, point.heads].append((point, lacks))
        observed = [self._observed(case) for case in cases.values() if self._is_decided(case)]
        undecided = len(cases) - len(observed)
        known = [(point, lacks) for point, lacks in outcomes if lacks is not None]
        short = sum(lacks for _, lacks in known)
        others = len(outcomes) - len(known)
        needed = [point.value("absolute_peak_bytes") for point, lacks in known if not lacks]
        finding = (
            f"FlashInfer lacks memory at {of(short, len(known), 'point')}"
            f"{f' (the largest that ran needs {format_bytes(max(needed))})' if needed else ''}"
            f"{f'; {others} fail for another reason' if others else ''}; at some density in "
            f"{held(observed, 'case')}{f', {undecided} undecided' if undecided else ''}"
        )
        note = f"{note} {OTHER_FAILURES}".strip() if others else note
        part = Part("memory", finding, observed, undecided=undecided)
        return decided_in_parts(part, missing=lacking, note=note)

    def _is_decided(self, case):
        ran = {point.params["density"] for point, lacks in case if lacks is False}
        return any(lacks for _, lacks in case) or ran >= set(DENSITIES)

    def _observed(self, case):
        short = [point.params["density"] for point, lacks in case if lacks]
        most = format_bytes(max(point.value("absolute_peak_bytes") for point, _ in case))
        outcome = f"lacks memory at density {', '.join(short)}" if short else f"needs up to {most}"
        return Observation(
            f"flashinfer {outcome}: {case[0][0].size}",
            bool(short),
            tuple(cell_id for point, _ in case for cell_id in point.cell_ids),
        )

    def _exceeds_buffer(self, point):
        return point.num_kv_heads * (point.seqlen // BLOCK) > MOST_LISTS
