"""Claim 12: KV heads that several query heads share."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import DENSE, GQA, MHA, gpu_note, held, missing, pairs, points, span
from longca.store.text import percent

KERNELS = (*DENSE, "vsa", "vsa_triton", "fa2_sparse", "flashinfer")  # the study's
LITTLE = 0.1  # of the rate


class HeadsMatterLittle(Claim):
    number = 12
    label = "GQA changes rates little and saves memory"
    sentence = "With 64 query heads, 8 KV heads instead of 64 change a kernel's rate by less than a tenth, and save memory."
    source = "Texts about the paper: its tables of both head counts"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "On more than a quarter of the points rates differ by a tenth or more, or GQA saves no memory"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", kernel=KERNELS, heads=(GQA, MHA))
        few, many = ([point for point in asked if point.heads == heads] for heads in (GQA, MHA))
        rates, memory = pairs(few, many, "heads"), pairs(few, many, "heads", column="absolute_peak_bytes")
        little = [pair.observed(abs(pair.ratio - 1) <= LITTLE, f"{pair.first.method} {GQA}", MHA) for pair in rates]
        less = [pair.observed(pair.ratio < 1, f"{pair.first.method} {GQA} bytes", MHA) for pair in memory]
        ratios = span(pair.ratio for pair in rates)
        finding = in_parts((f"rates with 8 KV heads are at {ratios}× those with 64, within {percent(LITTLE)} at {held(little)}", little),
                           (f"memory is less at {held(less)}", less))
        return decided(finding, little, less, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, kernel=KERNELS, heads=(GQA, MHA), seqlen=(32768,), direction=("fwd",)))
