"""Claim 2: the order of kernels on FULL."""

from longca.claims.contract import Claim, decided, in_parts
from longca.claims.evidence import GQA, MHA, gpu_note, missing, pairs, points, span

SEQLEN = 8192  # tokens: of the study's figure
THIRD = ("fa2", "flex", "flashmask")  # the study does not order these
CUDNN = ("cudnn", "cudnn_graph")  # inside torch, and by itself


class OrderOnFull(Claim):
    number = 2
    label = "On FULL at 8K: FA3, then cuDNN, then the others"
    sentence = "Forward on FULL at 8K tokens FA3 is faster than cuDNN, and cuDNN faster than FA2, FlexAttention and FlashMask."
    source = "Texts about the paper: its figure of forward rates at 8K"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "cuDNN reaches FA3's rate, or one of FA2, FlexAttention and FlashMask reaches cuDNN's"

    def judge(self, table):
        asked = points(table, ok=False, kind="kernel", mask="full", seqlen=SEQLEN, direction="fwd", heads=(GQA, MHA))
        named = {name: [point for point in asked if point.kernel == name] for name in ("fa3", *CUDNN, *THIRD, "sdpa")}
        best = [pair for cudnn in CUDNN for pair in pairs(named["fa3"], named[cudnn], "kernel")]
        others = [pair for cudnn in CUDNN for name in THIRD for pair in pairs(named[cudnn], named[name], "kernel")]
        sdpa = [pair for cudnn in CUDNN for pair in pairs(named["sdpa"], named[cudnn], "kernel")]
        middle = [(f"SDPA, which the study sees in the middle, is at {span(pair.ratio for pair in sdpa)}× cuDNN", ())] if sdpa else []
        third = ", ".join(name for name in THIRD if any(pair.second.kernel == name for pair in others))
        above, below = ([pair.observed(pair.order == "more") for pair in those] for those in (best, others))
        finding = in_parts((f"FA3 is at {span(pair.ratio for pair in best)}× cuDNN", above),
                           (f"cuDNN at {span(pair.ratio for pair in others)}× {third or 'the others'}", below), *middle)
        return decided(finding, above, below,
                       missing=missing(asked, self.gpus, kernel=("fa3", "cudnn", *THIRD), heads=(GQA, MHA)),
                       note=f"{gpu_note(asked)} FlashMask is this project's Triton operator, not Paddle's kernel.".strip())
