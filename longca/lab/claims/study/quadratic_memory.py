"""Claim 4: memory of SDPA and of the naive kernel."""

from longca.core import format_length
from longca.lab.claims.as_study import of_study
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, notes, points
from longca.lab.claims.failures import lacks_memory
from longca.lab.claims.parts import Observation, Part
from longca.lab.store.text import format_bytes

KERNELS = ("naive", "sdpa")
MASKS = (*REGULAR[2:], *HETEROGENEOUS)  # SDPA gets no mask tensor for FULL and CAUSAL
FROM = 32768  # tokens: texts put the first failure at 16K to 32K, so that at 32K all must have failed
UNFUSED = "MATH path"  # in the notes of a call that torch does not fuse
ANY = (
    "Memory is compared with 80 GB, on any GPU that has as much, and with any documents. The torch of the "
    "study's time ran SDPA unfused where KV heads are shared beside a mask."
)


class QuadraticMemory(Claim):
    number = 4
    label = "SDPA and naive run out of memory under long masks"
    sentence = (
        "Under a mask, at 32K tokens and beyond, neither SDPA nor the naive kernel fits the 80 GB of the "
        "study's GPU, since both need memory of S²."
    )
    source = "Texts about the paper, which disagree on the length"
    trust = "second-hand"
    gpus = "one GPU"
    quantity = "memory"
    overturned_by = (
        "One of the two runs more than a quarter of its masked sequences of 32K tokens and beyond in less "
        "than 80 GB"
    )

    columns = ("notes",)

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, mask=MASKS)
        naive, sdpa = ([point for point in asked if point.kernel == kernel] for kernel in KERNELS)
        note = gpu_note(
            asked,
            "memory is compared with 80 GB, not with the GPU's own. SDPA here gets copies of the KV heads, "
            "which keeps torch on fused paths; the study's call had GQA and a mask, which the torch of its "
            "time ran unfused",
        )
        return decided_in_parts(
            self._part("naive", naive),
            self._part("SDPA", sdpa),
            note=note,
            missing=missing(asked, self.gpus, kernel=KERNELS, mask=MASKS, seqlen=(16384, FROM)),
        )

    def judge_as_study(self, table):
        rows = of_study(table, any_gpu=True, any_draw=True)
        asked = points(rows, ok=False, kind="kernel", kernel=KERNELS, mask=MASKS)
        naive, sdpa = ([point for point in asked if point.kernel == kernel] for kernel in KERNELS)
        shared = [point for point in sdpa if point.num_kv_heads < point.num_q_heads]
        own = [point for point in sdpa if point not in shared]
        unfused = self._unfused(shared, rows)
        lacking = missing(
            asked, self.gpus, study="as-study", kernel=KERNELS, mask=MASKS, seqlen=(16384, FROM)
        )
        return decided_in_parts(
            self._part("naive", naive),
            self._part("SDPA with KV heads of its own", own),
            self._shared(shared, unfused),
            missing=lacking,
            note=ANY if asked else "",
        )

    def _unfused(self, shared, rows):
        """The points whose call torch does not fuse. Where memory did not suffice, no note says so: such a
        point counts if torch fuses its mask at no length that ran, and at least one ran."""
        ran = [point for point in shared if point.ok]
        fused = {point.mask for point in ran if UNFUSED not in notes(rows, point)}
        never_fused = {point.mask for point in ran} - fused
        return [
            point
            for point in shared
            if (UNFUSED in notes(rows, point) if point.ok else point.mask in never_fused)
        ]

    def _shared(self, tried, unfused):
        name = "SDPA with shared KV heads"
        if tried and not unfused:
            return Part(
                name,
                f"{name} needs the torch of the study's time, since today's fuses it "
                f"({self._needed(tried).removeprefix(' and ')})",
            )
        return self._part(name, unfused)

    def _part(self, name, found):
        long = [(point, lacks_memory(point)) for point in found if point.seqlen >= FROM]
        observed = [self._observed(point, lacks) for point, lacks in long if lacks is not None]
        if not observed:
            return Part(name, f"{name} is not measured from {format_length(FROM)} on")
        return Part(
            name,
            f"{name} is beyond 80 GB from {format_length(FROM)} on at {held(observed)}{self._needed(found)}",
            observed,
        )

    def _observed(self, point, lacks):
        needed = point.value("absolute_peak_bytes")
        amount = f"needs {format_bytes(needed)}" if point.ok else "runs out of memory"
        return Observation(f"{point.name} {amount}: {point.where}", lacks, point.cell_ids)

    def _needed(self, observed):
        """The memory of the longest sequence that ran, and how it grew from half of that."""
        most: dict[int, float] = {}
        for point in observed:
            if point.ok:
                most[point.seqlen] = max(most.get(point.seqlen, 0), point.value("absolute_peak_bytes"))
        if not most:
            return ""
        length = max(most)
        growth = (
            f", {most[length] / most[length // 2]:.1f}× that of {format_length(length // 2)}"
            if length // 2 in most
            else ""
        )
        return f" and needs {format_bytes(most[length])} at {format_length(length)}{growth}"
