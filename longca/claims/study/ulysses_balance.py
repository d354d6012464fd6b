"""Claim 17: balance and scale of Ulysses."""

from longca.claims.contract import Claim, Observation, decided, in_parts
from longca.claims.evidence import HETEROGENEOUS, REGULAR, gpu_note, held, missing, points, reach
from longca.store.text import number

BALANCED = 2.0  # %: what the slowest rank takes longer than the median rank; timers and clocks alone make about one
WORLDS = (8, 16, 32, 64, 96)


class UlyssesBalance(Claim):
    number = 17
    label = "Ulysses balances perfectly; heads cap its scale"
    sentence = ("Under Ulysses the slowest rank takes at most 2 % longer than the median rank, whatever the mask, and more ranks than "
                "query heads are refused.")
    source = "Texts about the paper and its code: 64 heads, so that 64 GPUs are the most"
    trust = "second-hand"
    gpus = "several nodes"
    overturned_by = "A rank is later than 2 % on more than a quarter of the points, or Ulysses runs on more ranks than heads"

    def judge(self, table):
        asked = points(table, ok=False, kind="cp", strategy="ulysses", mask=(*REGULAR, *HETEROGENEOUS))
        timed = [(point, point.value("straggler_percent")) for point in asked if point.ok]
        even = [Observation(f"{point.method} {number(value, 2)} % later: {point.where}", value <= BALANCED, point.cell_ids)
                for point, value in timed if value == value]
        beyond = [point for point in asked if point.world > point.num_q_heads]
        capped = [Observation(f"{point.method} runs {point.where}", not point.ok, point.cell_ids) for point in beyond]
        latest = max((value for _, value in timed if value == value), default=float("nan"))
        scale = f"more ranks than heads are refused at {held(capped)}" if capped else "more ranks than heads were not tried"
        if any(not one.holds for one in capped):
            scale += ", since ranks without heads only take part in the exchange"
        late = f"the slowest rank is at most {number(latest, 2)} % later, within {number(BALANCED, 2)} % at {held(even)}"
        finding = in_parts((late, even), (scale, capped))
        note = "The exchange at the end lets fast ranks wait, so that equal times show no more than that no rank was late. "
        return decided(finding, even, capped, part="" if capped else f"the balance, {reach(asked)}",
                       missing=missing(asked, self.gpus, mask=("full", "full_document"), world=WORLDS),
                       note=note + gpu_note(asked))
