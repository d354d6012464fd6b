"""Claim 5: backward beside forward, of dense kernels."""

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import DENSE, GQA, LENGTHS, MHA, gpu_note, held, missing, pairs, points, span
from longca.store.text import number

DOCUMENTS = {"full": "full_document", "causal": "causal_document"}


class BackwardBelowForward(Claim):
    number = 5
    label = "Backward reaches fewer TFLOP/s than forward"
    sentence = ("Each dense kernel does fewer TFLOP/s backward than forward on FULL, CAUSAL and documents, and the share that backward "
                "reaches is lower on documents than on the whole sequence.")
    source = "Texts about the paper: its curves of both directions"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "Backward is level with forward on more than a quarter of the points, or keeps a larger share on documents"

    def judge(self, table):
        masks = [mask for both in DOCUMENTS.items() for mask in both]
        asked = points(table, ok=False, kind="kernel", kernel=DENSE, mask=masks, heads=(GQA, MHA))
        found = pairs([point for point in asked if point.direction == "bwd"],
                      [point for point in asked if point.direction == "fwd"], "direction")
        below = [pair.observed(pair.order == "less", f"{pair.first.kernel} backward", "forward") for pair in found]
        shares = {(pair.first.mask, self._setting(pair.first)): pair for pair in found}
        gaps = [self._gap(pair, shares[DOCUMENTS[mask], setting]) for (mask, setting), pair in shares.items()
                if mask in DOCUMENTS and (DOCUMENTS[mask], setting) in shares]
        finding = in_parts((f"backward is slower at {held(below)} ({span(pair.ratio for pair in found)}× forward)", below),
                           (f"documents widen the gap at {held(gaps)}", gaps))
        return decided(finding, below, gaps, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, kernel=DENSE, mask=masks, heads=[GQA], seqlen=LENGTHS, direction=("fwd", "bwd")))

    def _setting(self, point):
        return point.device, point.kernel, point.seqlen, point.heads, point.head_dim, point.dtype

    def _gap(self, whole, documents):
        text = (f"{whole.first.kernel} keeps {number(documents.ratio, 2)} of forward on {documents.first.where}, "
                f"{number(whole.ratio, 2)} on {whole.first.mask}")
        return Observation(text, whole.is_above(documents), documents.first.cell_ids + documents.second.cell_ids)
