"""The words for leads, standings and tallies: made once, here, for pages, commands, claims and documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import expm1, floor
from typing import Any

from longca.lab.ranking.lead import Lead
from longca.lab.ranking.order import Standing
from longca.lab.ranking.relation import words_of
from longca.lab.ranking.tally import Tally, WorstShare, num_open, num_played_off, tallies
from longca.lab.store.text import MOST_NAMES, names, number, percent, plural

NOT_PLAYED_OFF = "not played off"
ONE_WITH_RESTS = "only one of them with rests"
NOT_COMPARED = "measured {}, not compared"
WITH_RESTS = {True: "with rests", False: "without rests"}
LEAST_TOLD = 1e-3  # of a difference of rates
MOST_TIED = 7  # of methods that tie in a case
RateText = Callable[[float], str]


def share_text(share: float) -> str:
    """0.967 → "96 %". It is never rounded up: only the best has 100 %."""
    return f"{floor(100 * share + 1e-9)} %"


def place_text(share: float, place: int, is_tied: bool) -> str:
    """The share of a method, and whether it is not told apart from the first: "98 % tie"."""
    return share_text(share) + (" tie" if is_tied and place > 1 else "")


def ahead(ratio: float) -> str:
    """1.08 → "8.0 % faster than"; 3.1 → "3.10 times as fast as"."""
    return f"{_difference(ratio - 1)} faster than" if ratio < 2 else f"{number(ratio)} times as fast as"


def _difference(share: float) -> str:
    """0.0213 → "2.1 %"; 0.00007 → "under 0.1 %", since no two measurements agree so well that further digits
    tell anything."""
    return "under 0.1 %" if 0 < share < LEAST_TOLD else percent(share)


def was(count: int) -> str:
    return "was" if count == 1 else "were"


def lead_text(lead: Lead, second: str) -> str:
    """ "8.0 % faster than fa4 (3.9 to 12 %)", or "tied with fa4 (0.40 % ahead; 3.7 % would tell them
    apart)"."""
    if lead.is_tie:
        needed = max(lead.below if lead.log_ratio > 0 else lead.above, lead.log_resolution)
        side = "ahead" if lead.log_ratio >= 0 else "behind"
        apart = f"{_difference(expm1(abs(lead.log_ratio)))} {side}"
        mixed = f"; {ONE_WITH_RESTS}" if lead.resolution.is_mixed else ""
        return f"tied with {second} ({apart}; {percent(expm1(needed))} would tell them apart{mixed})"
    if 1 <= lead.ratio < 2:
        low = "0" if 0 <= lead.low - 1 < LEAST_TOLD else percent(lead.low - 1)[:-2]
        return f"{ahead(lead.ratio)} {second} ({low} to {percent(lead.high - 1)})"
    return f"{ahead(lead.ratio)} {second}"


def field_text(case: Standing) -> str:
    """The number that ran, could not and were not asked: "first of 9; 3 could not; 1 was not asked"."""
    parts = [f"first of {len(case.entries)}"]
    if case.could_not:
        parts.append(f"{len(case.could_not)} could not")
    if case.not_asked:
        parts.append(f"{len(case.not_asked)} {was(len(case.not_asked))} not asked")
    if case.other_protocol:
        parts.append(other_protocol_text(case))
    if case.is_mixed:
        parts.append(protocols_text(case.num_rested, case.num_cases))
    return "; ".join(parts)


def other_protocol_text(case: Standing) -> str:
    """ "2 were measured without rests, not compared"; "" if no method was."""
    count = len(case.other_protocol)
    return f"{count} {was(count)} {not_compared_text(case)}" if count else ""


def not_compared_text(case: Standing) -> str:
    """The reason why methods of the other protocol have no place: "measured without rests, not compared"."""
    # of a mean over both protocols a method may be left out by either
    return NOT_COMPARED.format("by another protocol in some" if case.is_mixed else WITH_RESTS[not case.rests])


def protocols_text(num_rested: int, total: int, thing: str = "case") -> str:
    """ "7 of 24 cases were measured by the protocol with rests"; "" if all are of one protocol."""
    return (
        f"{num_rested:,} of {plural(total, thing)} {was(num_rested)} measured by the protocol with rests"
        if 0 < num_rested < total
        else ""
    )


def protocols_of(standings: Mapping[Any, Standing]) -> str:
    """`protocols_text` of many cases."""
    cases = standings.values()
    return protocols_text(sum(case.num_rested for case in cases), sum(case.num_cases for case in cases))


def relation_text(case: Standing) -> str:
    """The way the first two were measured: "a play-off", "one device in two runs"; "" without a second."""
    if not case.lead:
        return ""
    if case.played_off:
        return "a play-off"
    mixed = f", {ONE_WITH_RESTS}" if case.lead.resolution.is_mixed else ""
    return f"{words_of(case.lead.relation, case.lead.rests)}{mixed}"


def verdict(case: Standing, rate_text: RateText) -> str:
    """The outcome of one case in a sentence or two.

    "band is the fastest of 12, by a play-off: 512 TFLOP/s, 8.0 % faster than fa4 (6.1 to 9.9 %)."
    "band is first of 12: 512 TFLOP/s, 8.0 % faster than fa4 (4.1 to 12 %). One device in two runs, not played
    off."
    "A tie of 2 in front: cudnn (601 TFLOP/s) and fa3; then flex at 84 %. One device in one run, not played
    off."
    """
    first = case.first
    rate = rate_text(case.first.rate)
    if not case.is_compared:
        rest = f" {len(case.not_asked)} others were not asked." if len(case.not_asked) > 1 else ""
        apart = other_protocol_text(case)
        if apart:
            return (
                f"Only {first.method} was measured {WITH_RESTS[case.rests]}: {rate}. There is nothing to "
                f"compare it with: {apart}.{rest}"
            )
        return f"Only {first.method} ran: {rate}. There is nothing to compare it with.{rest}"
    assert case.second and case.lead
    basis = f"{relation_text(case).capitalize()}, {NOT_PLAYED_OFF}."
    # else a method that did not play, and whose own time is shorter, seems to be misplaced
    rates = [entry.rate for entry in case.entries]
    order = ", whose players come first" if rates != sorted(rates, reverse=True) else ""
    if case.is_clear:
        lead = lead_text(case.lead, case.second.method)
        if case.played_off:
            return (
                f"{first.method} is the fastest of {len(case.entries)}, by a play-off{order}: {rate}, {lead}."
            )
        return f"{first.method} is first of {len(case.entries)}: {rate}, {lead}. {basis}"
    tied = [
        f"{entry.method}{' (samples scatter)' if entry.scatters else ''}"
        for entry in case.entries
        if entry.is_tied
    ]
    rest = next((entry for entry in case.entries if entry.method not in case.leaders), None)
    after = f"; then {rest.method} at {share_text(rest.share)}" if rest else ""
    leaders = names([f"{first.method} ({rate})", *tied], MOST_TIED)
    return (
        f"A tie of {len(case.leaders)} in front: {leaders}{after}. "
        f"{f'By a play-off{order}.' if case.played_off else basis}"
    )


def margin(case: Standing, rank: int) -> str:
    """The words beside the method at that place of a case: "fastest", "leads", "tied", "1.20× slower"."""
    entry = case.entries[rank - 1]
    if not case.is_compared:
        return "alone"
    if rank == 1:
        return "tied" if not case.is_clear else "fastest" if case.played_off else "leads"
    if entry.is_tied:
        return "tied: samples scatter" if entry.scatters else "tied with the first"
    return f"{number(1 / entry.share)}× slower"


def worst_text(worst: WorstShare) -> str:
    """ "91 %", or "91 % (24 % with 1 noisy)"."""
    if not worst.left_out:
        return share_text(worst.share)
    return f"{share_text(worst.share)} ({share_text(worst.lowest)} with {left_out_text(worst)})"


def left_out_text(worst: WorstShare) -> str:
    """ "1 noisy and 2 disturbed"; "" if nothing is left out."""
    return names([f"{count} {reason}" for reason, count in worst.left_out])


def counts_text(standings: Mapping[Any, Standing], thing: str = "mask", most: int = 3) -> str:
    """`leads_text` and `basis_text` in one sentence: "band leads on 9 of 13 masks, flex on 2; on 2 no method
    leads alone, against 3 to 12 others, by up to 1.4×"."""
    return ", ".join(filter(None, (leads_text(standings, thing, most), basis_text(standings))))


def leads_text(standings: Mapping[Any, Standing], thing: str = "mask", most: int = 3) -> str:
    """The leaders of many cases: "band leads on 9 of 13 masks, flex on 2; on 2 no method leads alone".

    Only cases that two methods ran count. A tie in front counts for nobody. `thing` names a case: "mask",
    "case of mask and length".
    """
    compared = {key: case for key, case in standings.items() if case.is_compared}
    ran = sorted({case.first.method for case in standings.values()})
    if not ran:
        return "Nothing could be timed"
    if not compared:
        return f"Only {' and '.join(ran)} ran" if len(ran) < 3 else "No two methods ran the same cells"
    total = len(compared)
    open_ones = num_open(compared)
    verb = "is fastest" if num_played_off(compared) == total else "leads"
    clear = Counter(case.first.method for case in compared.values() if case.is_clear)
    first, *others = sorted(clear.items(), key=lambda item: (-item[1], item[0])) or [("", 0)]
    noun, of, rest = thing.partition(" of ")
    things = f"{noun}s{of}{rest}"
    if not first[0]:
        every = f"any of {total} {things}" if total > 1 else f"the one {thing}"
        return f"No method leads alone on {every}"
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
    return sentence + (f"; on {open_ones} no method leads alone" if open_ones else "")


def basis_text(standings: Mapping[Any, Standing]) -> str:
    """The rivals of the leaders, the largest lead, and the protocols: "against 3 to 12 others, by up to 1.4×;
    2 of 13 cases were measured by the protocol with rests"; "" if no two methods ran the same."""
    compared = {key: case for key, case in standings.items() if case.is_compared}
    if not compared:
        return ""
    leads = [case.lead.ratio for case in compared.values() if case.is_clear and case.lead]
    lead = f", by up to {number(max(leads), 2)}×" if leads else ""
    protocols = protocols_of(compared)
    return f"{rivals_text(compared)}{lead}" + (f"; {protocols}" if protocols else "")


def rivals_text(compared: Mapping[Any, Standing]) -> str:
    """ "against 3 others", "against 4 to 13 others"."""
    numbers = [len(case.entries) - 1 for case in compared.values()]
    least = min(numbers)
    most = max(numbers)
    return f"against {most if least == most else f'{least} to {most}'} other{'s' if most > 1 else ''}"


def finding_text(standings: Mapping[Any, Standing], thing: str = "kernel", covered: str = "") -> str:
    """The end of a sentence about many cases, and a second sentence.

    "band leads alone in 9 of 24 cases (12 masks, forward and backward), fa3 in 3; in 12 no kernel leads
    alone. No case was played off. Of the 7 that ran them all (6 could not run some), band loses least: …"

    Args:
        thing: what is ranked, in the singular.
        covered: the cases that were compared, in words.
    """
    compared = {key: case for key, case in standings.items() if case.is_compared}
    things = "strategies" if thing == "strategy" else f"{thing}s"
    if not compared:
        return f"no two {things} ran the same: there is nothing to compare."
    total = len(compared)
    played = num_played_off(compared)
    num_ties = num_open(compared)
    verb, none = ("is the fastest", "is") if played == total else ("leads alone", "leads alone")
    counts = Counter(case.first.method for case in compared.values() if case.is_clear)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    by = " by a play-off" if played == total else ""
    cases = f"{plural(total, 'case')}{by}{f' ({covered})' if covered else ''}"
    if not ordered:
        opening = f"no {thing} {verb} in {f'any of {cases}' if total > 1 else f'the {cases}'}"
    else:
        (first, count), *others = ordered
        opening = f"{first} {verb} in {f'all {cases}' if count == total else f'{count} of {cases}'}"
        opening += "".join(f", {method} in {number_of}" for method, number_of in others[: MOST_NAMES - 1])
        rest = len(others) - MOST_NAMES + 1
        opening += (
            f", {plural(rest, 'other')} in {sum(value for _, value in others[MOST_NAMES - 1 :])}"
            if rest > 0
            else ""
        )
        opening += f"; in {num_ties} no {thing} {none}" if num_ties else ""
    if played != total:
        opening += f". {f'{played} of them {was(played)}' if played else 'No case was'} played off"
        opening += _won_text(compared) if played else ""
    protocols = protocols_of(compared)
    opening += f". {protocols}" if protocols else ""
    if ordered and ordered[0][1] == total:
        return f"{opening}."
    return f"{opening}. {everywhere_text(tallies(compared), total, thing)}"


def _won_text(standings: Mapping[Any, Standing]) -> str:
    """The outcomes of the cases that were played off: ": band won 3, fa3 won 1, 3 ended in a tie"."""
    played = [case for case in standings.values() if case.played_off]
    won = Counter(case.winner for case in played if case.winner)
    ties = len(played) - won.total()
    ordered = sorted(won.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{method} won {count}" for method, count in ordered[:MOST_NAMES]]
    rest = sum(count for _, count in ordered[MOST_NAMES:])
    parts += [f"others won {rest}"] if rest else []
    parts += [f"{ties} ended in a tie"] if ties else []
    return f": {', '.join(parts)}"


def everywhere_text(tallies: Sequence[Tally], total: int, thing: str) -> str:
    """The method that loses least of those that have a number in all of `total` cases: "Of the 5 that run
    them all, band loses least: …"."""
    everywhere = sorted(
        (tally for tally in tallies if tally.num_cases == total and tally.worst),
        key=lambda tally: (-_share(tally), tally.method),
    )
    missing = Counter(
        "could not" if tally.num_could_not else "not asked" if tally.num_not_asked else "not compared"
        for tally in tallies
        if tally.num_cases < total and (tally.num_cases or tally.num_other_protocol)
    )
    not_asked = missing["not asked"]
    apart = missing["not compared"]
    parts = [f"{missing['could not']} could not run some"] if missing["could not"] else []
    parts += [f"{not_asked} {was(not_asked)} not asked for some"] if not_asked else []
    parts += [f"{apart} {was(apart)} measured by another protocol in some"] if apart else []
    rest = "; ".join(parts)
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
