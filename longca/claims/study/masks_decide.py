"""Claim 6: one kernel over all masks."""

from collections import defaultdict

from longca.claims.contract import Claim, Observation, decided, in_parts, status_of
from longca.claims.evidence import (
    DENSE,
    GQA,
    HETEROGENEOUS,
    LENGTHS,
    MHA,
    REGULAR,
    gpu_note,
    held,
    missing,
    of_one_protocol,
    points,
    span,
)
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
        ranked = [sorted(group, key=lambda one: one.rate) for group in map(of_one_protocol, groups.values()) if len(group) >= FEWEST_MASKS]
        observed = [self._observed(group) for group in ranked]
        kernels: dict[str, list[tuple[float, Observation]]] = defaultdict(list)
        for group, one in zip(ranked, observed, strict=True):
            kernels[group[0].kernel].append((group[-1].rate / group[0].rate, one))
        alike: dict[str, list[str]] = defaultdict(list)  # verdict → its kernels: those that differ over masks, and those that do not
        for kernel, those in sorted(kernels.items()):
            alike[status_of([one for _, one in those])].append(kernel)
        return decided(in_parts(*(self._part(names, kernels) for names in alike.values())), observed, note=gpu_note(asked),
                       missing=missing(asked, self.gpus, kernel=DENSE, mask=masks, heads=[GQA], seqlen=LENGTHS, direction=("fwd", "bwd")))

    def _part(self, names, kernels):
        those = [one for name in names for _, one in kernels[name]]
        ratios = ", ".join(f"{name} {span(ratio for ratio, _ in kernels[name])}×" for name in names)
        return f"masks differ by {number(SEVERAL, 2)}× or more at {held(those, 'case')} ({ratios})", those

    def _observed(self, group):
        worst, best = group[0], group[-1]
        text = (f"{best.kernel} {best.size}: {number(best.rate)} on {best.mask}, "
                f"{number(worst.rate)} on {worst.mask} ({number(best.rate / worst.rate, 2)}×)")
        return Observation(text, best.rate >= SEVERAL * worst.rate, best.cell_ids + worst.cell_ids)
