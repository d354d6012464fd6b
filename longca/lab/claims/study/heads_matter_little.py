"""Claim 12: KV heads that several query heads share."""

from longca.lab.claims.as_study import FORMS, of_study, shown, stand_in
from longca.lab.claims.contract import Claim, decided_in_parts
from longca.lab.claims.evidence import DENSE, GQA, MHA, gpu_note, missing, points
from longca.lab.claims.pairs import pairs
from longca.lab.claims.parts import of_methods
from longca.lab.store.text import percent

KERNELS = (*DENSE, "vsa", "vsa_triton", "fa2_sparse", "flashinfer")  # the study's
ONLY_MHA = ("vsa", "vsa_triton")  # these take no shared KV heads
LITTLE = 0.1  # of the rate


class HeadsMatterLittle(Claim):
    number = 12
    label = "GQA changes rates little and saves memory"
    sentence = (
        "With 64 query heads, 8 KV heads instead of 64 change a kernel's rate by less than a tenth, "
        "and save memory."
    )
    source = "Texts about the paper: its tables of both head counts"
    trust = "second-hand"
    gpus = "one GPU"
    quantity = "time and memory"
    overturned_by = (
        "On more than a quarter of one kernel's points rates differ by a tenth or more, or GQA saves no "
        "memory"
    )

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, heads=(GQA, MHA))
        lacking = missing(
            asked, self.gpus, kernel=KERNELS, heads=(GQA, MHA), seqlen=(32768,), direction=("fwd",)
        )
        return decided_in_parts(*self._parts(asked, KERNELS), note=gpu_note(asked), missing=lacking)

    def judge_as_study(self, table):
        kernels = [kernel for kernel in FORMS if kernel not in ONLY_MHA]
        asked = points(of_study(table), ok=False, kind="kernel", kernel=kernels, heads=(GQA, MHA))
        lacking = missing(
            asked,
            self.gpus,
            study="as-study",
            kernel=kernels,
            heads=(GQA, MHA),
            seqlen=(32768,),
            direction=("fwd",),
        )
        return decided_in_parts(
            *self._parts(asked, kernels),
            stand_in("flashmask", "FlashMask"),
            stand_in("fa2_sparse", "FA2-Sparse"),
            missing=lacking,
        )

    def _parts(self, asked, kernels):
        """Two parts for each kernel."""
        little = {shown(kernel): [] for kernel in kernels}
        less = {name: [] for name in little}
        few, many = ([point for point in asked if point.heads == heads] for heads in (GQA, MHA))
        for pair in pairs(few, many, "heads"):
            name = pair.first.name
            little[name].append(pair.observed(abs(pair.ratio - 1) <= LITTLE, f"{name} {GQA}", MHA))
        for pair in pairs(few, many, "heads", column="absolute_peak_bytes"):
            name = pair.first.name
            less[name].append(pair.observed(pair.ratio < 1, f"{name} {GQA} bytes", MHA))
        return [
            *of_methods(f"rates are within {percent(LITTLE)} at", little),
            *of_methods("memory is less at", less),
        ]
