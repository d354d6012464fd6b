"""The words for leads, standings and tallies: made once, here, for pages, commands, claims and documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import floor
from typing import Any

from longca.ranking.lead import Lead
from longca.ranking.order import Standing
from longca.ranking.relation import WORDS
from longca.ranking.tally import Tally, WorstShare, num_open, num_played_off
from longca.store.text import number, percent, plural

NOT_PLAYED_OFF = "not played off"
MOST_NAMES = 4  # of methods in a sentence; of more their number is told
RateText = Callable[[float], str]


def share_text(share: float) -> str:
    """0.967 → "96 %". It is never rounded up: only the best has 100 %."""
    return f"{floor(100 * share + 1e-9)} %"


def ahead(ratio: float) -> str:
    """1.08 → "8.0 % faster than"; 3.1 → "3.10 times as fast as"."""
    return f"{percent(ratio - 1)} faster than" if ratio < 2 else f"{number(ratio)} times as fast as"


def names(methods: Sequence[str], most: int = MOST_NAMES) -> str:
    """ "fa3, fa4 and flex", or "fa3, fa4 and 5 others"."""
    if len(methods) > most:
        return f"{', '.join(methods[: most - 1])} and {plural(len(methods) - most + 1, 'other')}"
    return " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1]))) if methods else ""


def lead_text(lead: Lead, second: str) -> str:
    """ "8.0 % faster than fa4 (3.9 to 12 %)", or "not told apart from fa4 (0.4 % ahead; 3.7 % would tell)"."""
    if lead.is_tie:
        own = lead.below if lead.log_ratio > 0 else lead.above
        needed = percent(max(own, lead.log_resolution))
        return (
            f"not told apart from {second} ({percent(abs(lead.ratio - 1))} {'ahead' if lead.ratio >= 1 else 'behind'}, "
            f"more than {needed} would tell)"
        )
    if lead.ratio < 2:
        return f"{ahead(lead.ratio)} {second} ({percent(lead.low - 1)[:-2]} to {percent(lead.high - 1)})"
    return f"{ahead(lead.ratio)} {second}"


def field_text(case: Standing) -> str:
    """The number that ran, could not and were not asked: "first of 9; 3 could not; 1 was not asked"."""
    parts = [f"first of {len(case.entries)}"]
    if case.could_not:
        parts.append(f"{len(case.could_not)} could not")
    if case.not_asked:
        parts.append(f"{len(case.not_asked)} {'was' if len(case.not_asked) == 1 else 'were'} not asked")
    return "; ".join(parts)


def relation_text(case: Standing) -> str:
    """The basis of the comparison of the first two: "by a play-off", or "one device in two runs, not played off"."""
    if not case.relation:
        return ""
    return "by a play-off" if case.played_off else f"{WORDS[case.relation]}, {NOT_PLAYED_OFF}"


def verdict(case: Standing, rate_text: RateText) -> str:
    """The outcome of one case in a sentence or two.

    "band is the fastest of 12, by a play-off: 512 TFLOP/s, 8.0 % faster than fa4 (6.1 to 9.9 %)."
    "band leads 12: 512 TFLOP/s, 8.0 % faster than fa4 (4.1 to 12 %). Two devices of one model, not played off."
    "A tie of 2 in front: cudnn (601 TFLOP/s) and fa3; then flex at 84 %. Two devices of one model, not played off."
    """
    first, rate = case.first, rate_text(case.first.rate)
    if not case.is_compared:
        rest = f" {len(case.not_asked)} others were not asked." if len(case.not_asked) > 1 else ""
        return f"Only {first.method} ran: {rate}. There is nothing to compare it with.{rest}"
    assert case.second and case.lead
    basis = relation_text(case)
    if case.is_clear:
        lead = lead_text(case.lead, case.second.method)
        if case.played_off:
            return f"{first.method} is the fastest of {len(case.entries)}, {basis}: {rate}, {lead}."
        return f"{first.method} leads {len(case.entries)}: {rate}, {lead}. {basis[0].upper()}{basis[1:]}."
    tied = case.leaders[1:]
    rest = next((entry for entry in case.entries if entry.method not in case.leaders), None)
    after = f"; then {rest.method} at {share_text(rest.share)}" if rest else ""
    return (
        f"A tie of {len(case.leaders)} in front: {first.method} ({rate}) and {', '.join(tied)}{after}. "
        f"{basis[0].upper()}{basis[1:]}."
    )


def margin(case: Standing, place: int) -> str:
    """The words beside the method at that place of a case: "first", "leads", "tied", "1.20× slower"."""
    entry = case.entries[place - 1]
    if not case.is_compared:
        return "alone"
    if place == 1:
        return "tied" if not case.is_clear else "fastest" if case.played_off else "leads"
    return "tied with the first" if entry.is_tied else f"{number(1 / entry.share)}× slower"


def worst_text(worst: WorstShare) -> str:
    """ "91 %", or "91 % (24 % with 1 noisy)"."""
    if not worst.left_out:
        return share_text(worst.share)
    return f"{share_text(worst.share)} ({share_text(worst.lowest)} with {left_out_text(worst)})"


def left_out_text(worst: WorstShare) -> str:
    """ "1 noisy and 2 disturbed"; "" if nothing is left out."""
    return names([f"{count} {reason}" for reason, count in worst.left_out])


def counts_text(standings: Mapping[Any, Standing], thing: str = "mask", most: int = 3) -> str:
    """The leaders of many cases: "band leads on 9 of 13 masks, flex on 2; on 2 no method leads alone, each against 3 to 12 others".

    Only cases that two methods ran count. A tie in front counts for nobody. `thing` names a case: "mask", "case of mask and length".
    """
    compared = {key: case for key, case in standings.items() if case.is_compared}
    ran = sorted({case.first.method for case in standings.values()})
    if not ran:
        return "Nothing could be timed"
    if not compared:
        return f"Only {' and '.join(ran)} ran" if len(ran) < 3 else "No two methods ran the same cells"
    total, open_ones = len(compared), num_open(compared)
    played, verb = num_played_off(compared), "leads"
    if played == total:
        verb = "is fastest"
    clear = Counter(case.first.method for case in compared.values() if case.is_clear)
    first, *others = sorted(clear.items(), key=lambda item: (-item[1], item[0])) or [("", 0)]
    noun, of, rest = thing.partition(" of ")
    things = f"{noun}s{of}{rest}"
    against = rivals_text(compared)
    if not first[0]:
        return f"No method leads alone on {f'any of {total} {things}' if total > 1 else f'the one {thing}'}, {against}"
    where = (
        f"all {total} {things}"
        if first[1] == total > 1
        else f"the one {thing}"
        if total == 1
        else f"{first[1]} of {total} {things}"
    )
    sentence = f"{first[0]} {verb} on {where}" + "".join(
        f", {method} on {count}" for method, count in others[:most]
    )
    if open_ones:
        sentence += f"; on {open_ones} no method leads alone"
    best = max(case.lead.ratio for case in compared.values() if case.is_clear and case.lead)
    return f"{sentence}, {against}, by up to {number(best, 2)}×"


def rivals_text(compared: Mapping[Any, Standing]) -> str:
    """ "against 3 others", "against 4 to 13 others"."""
    numbers = [len(case.entries) - 1 for case in compared.values()]
    least, most = min(numbers), max(numbers)
    return f"against {most if least == most else f'{least} to {most}'} other{'s' if most > 1 else ''}"


def everywhere_text(found: Sequence[Tally], total: int, thing: str) -> str:
    """The method that loses least of those that have a number in all of `total` cases: "Of the 5 that run them all, band loses least: …"."""
    everywhere = sorted(
        (one for one in found if one.num_cases == total and one.worst),
        key=lambda one: (-_share(one), one.method),
    )
    missing = Counter(
        "not asked" if not one.num_could_not else "could not" for one in found if 0 < one.num_cases < total
    )
    rest = "; ".join(
        f"{count} {words}"
        for words, count in (
            ("could not run some", missing["could not"]),
            ("were not asked for some", missing["not asked"]),
        )
        if count
    )
    if not everywhere:
        return f"No {thing} has a number in all of them{f' ({rest})' if rest else ''}."
    best = everywhere[0]
    assert best.worst
    who = (
        f"Of the {len(everywhere)} that ran them all, {best.method} loses least"
        if len(everywhere) > 1
        else f"Only {best.method} ran them all"
    )
    return (
        f"{who}{f' ({rest})' if rest else ''}: at its worst it reaches {worst_text(best.worst)} of the best."
    )


def _share(tally: Tally) -> float:
    return tally.worst.share if tally.worst else 0.0
