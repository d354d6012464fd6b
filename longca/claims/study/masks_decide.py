"""Claim 6: one kernel over all masks."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided
from longca.claims.evidence import DENSE, GQA, HETEROGENEOUS, LENGTHS, MHA, REGULAR, gpu_note, held, missing, points, span
from longca.core.units import format_length
from longca.store.text import number

SEVERAL = 2.0  # best mask over worst: the weakest reading of "several times"
FEWEST_MASKS = 6  # the regular ones; fewer say little about masks


class MasksDecide(Claim):
    number = 6
    label = "One kernel's rate varies several times over masks"
    sentence = "At one length, the rate of one and the same kernel on its best mask is at least twice that on its worst."
    source = "Texts about the paper: its figure of forward rates at 8K, by mask"
    trust = "second-hand"
    gpus = "one GPU"
    overturned_by = "For more than a quarter of kernels and lengths all masks lie within a factor of two"

    def judge(self, table):
        masks = (*REGULAR, *HETEROGENEOUS)
        asked = points(table, ok=False, kind="kernel", kernel=DENSE, mask=masks, heads=(GQA, MHA), seqlen=LENGTHS)
        groups = defaultdict(list)
        for point in asked:
            if point.ok:
                groups[point.kernel, point.seqlen, point.direction, point.heads, point.device].append(point)
        ranked = [sorted(group, key=lambda one: one.rate) for group in groups.values() if len(group) >= FEWEST_MASKS]
        observed = [self._observed(group) for group in ranked]
        least: dict[str, list[float]] = defaultdict(list)
        for group in ranked:
            least[group[0].kernel].append(group[-1].rate / group[0].rate)
        told = ", ".join(f"{kernel} {span(values)}×" for kernel, values in sorted(least.items()))
        finding = (f"Best over worst mask is {number(SEVERAL, 2)}× or more at "
                   f"{held(observed, 'case')}: {told}")
        return decided(finding, observed, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, kernel=DENSE, mask=masks, heads=[GQA], seqlen=LENGTHS, direction=("fwd", "bwd")))

    def _observed(self, group):
        worst, best = group[0], group[-1]
        text = (f"{best.kernel} {format_length(best.seqlen)} {best.direction} {best.heads}: {number(best.rate)} on {best.mask}, "
                f"{number(worst.rate)} on {worst.mask} ({number(best.rate / worst.rate, 2)}×)")
        return Observation(text, best.rate >= SEVERAL * worst.rate, best.cell_ids + worst.cell_ids)
