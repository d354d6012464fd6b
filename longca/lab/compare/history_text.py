"""Histories in words: the sentence first, then a few lines for each, with a figure of characters."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from math import exp, log

from longca.lab.compare.history import Histories, MethodHistory, Version
from longca.lab.compare.label import ratio_text
from longca.lab.compare.tables import Described, TableOfText
from longca.lab.compare.verdict import unknown_text
from longca.lab.ranking.sentences import WITH_RESTS, lead_text
from longca.lab.report.series import DIRECTIONS
from longca.lab.store.text import number, percent, plural, short_device

LEAST_SPAN = log(1.05)  # of the figure, to both sides of the first version
FIGURE = 17  # characters
LEAST_TEXT = 16  # characters of the software, on a terminal that is too narrow for all
NO_BREAK = "\u00a0"  # keeps a version on the line of its name
MOST_NAMED = 3  # methods in the sentence's parts
ORDERS = {"faster": "faster", "slower": "slower", "same": "not told apart"}


class HistoryNames:
    """Names of histories: method and direction, with the GPU and the protocol where several occur."""

    def __init__(self, entries: Sequence[MethodHistory]) -> None:
        self._devices = {entry.device for entry in entries}
        self._protocols = {entry.rests for entry in entries}

    def of(self, entry: MethodHistory) -> str:
        """ "fa3 forward", or "fa3 forward on H100, with rests"."""
        device = f" on {short_device(entry.device)}" if len(self._devices) > 1 else ""
        protocol = f", {_protocol(entry)}" if len(self._protocols) > 1 else ""
        return f"{entry.method} {DIRECTIONS[entry.direction]}{device}{protocol}"


def conclusion(histories: Histories) -> str:
    """The whole in one sentence: the last version of each method beside its first."""
    entries = histories.attention
    if not entries:
        return "No method has two versions that timed the same cell."
    names = HistoryNames(entries)
    if len({entry.method for entry in entries}) == 1 and len(entries) <= MOST_NAMED:
        parts = [_change(histories, entry, names.of(entry)) for entry in entries]
        return f"{'; '.join(parts)}."
    parts = []
    for order, word in ORDERS.items():
        chosen = [entry for entry in entries if entry.last.order(histories.rule) == order]
        if not chosen:
            continue
        most = max(chosen, key=lambda entry: abs(entry.last.lead.log_ratio) if entry.last.lead else 0.0)
        extreme = f" (most: {names.of(most)}, {_ratio(most.last)})" if order != "same" else ""
        parts.append(
            f"{word}{' than the first' if not parts and order != 'same' else ''} in {len(chosen):,}{extreme}"
        )
    total = f"{len(entries):,} {'history' if len(entries) == 1 else 'histories'}"
    return f"Of {total} (a method in one direction) the last version is {', '.join(parts)}."


def _change(histories: Histories, entry: MethodHistory, name: str) -> str:
    """ "fa3 forward: B is 4.1 % faster than A (2.0 to 6.2 %), over 46 cells"."""
    lead = entry.last.lead
    first = entry.versions[0].letter
    assert lead is not None
    cells = plural(entry.num_cells, "cell")
    if entry.last.order(histories.rule) == "same" and not lead.is_tie:
        tolerated = percent(histories.rule.tolerance)
        return f"{name}: {entry.last.letter} is within {tolerated} of {first}, over {cells}"
    if entry.last.is_open:
        return f"{name}: {entry.last.letter} is {_ratio(entry.last)} {first}, not told apart, over {cells}"
    slower = lead.ratio < 1 and not lead.is_tie
    if slower:
        between = f"{percent(1 - lead.high)[:-2]} to {percent(1 - lead.low)}"
        text = f"{percent(1 - lead.ratio)} slower than {first} ({between})"
    else:
        text = lead_text(lead, first)
    return f"{name}: {entry.last.letter} is {text}, over {cells}"


def history_lines(histories: Histories, sides: Sequence[Described]) -> list[str]:
    """Facts before the histories: the sources, the controls, and what has no history."""
    entries = histories.attention
    texts = [f"{letter}: {side.text}" for letter, side in zip(histories.letters, sides, strict=True)]
    scope = dict.fromkeys(
        ", ".join(filter(None, (short_device(entry.device), _protocol(entry)))) for entry in entries
    )
    if entries:
        texts.append(
            f"each beside its first version, geometric mean over the cells that all its versions share; "
            f"on {'; on '.join(scope)}. GPUs and protocols are never put together"
        )
    known = [version.lead.resolution for entry in entries for version in entry.versions if version.lead]
    foreign = Counter(resolution.borrowed_by for resolution in known if resolution.is_foreign)
    distinct = {
        (resolution.device, resolution.percent): resolution
        for resolution in reversed(known)
        if not resolution.is_foreign
    }
    texts += [
        unknown_text(plural(count, "version"), what, histories.rule)
        for what, count in sorted(foreign.items())
    ]
    texts += [
        f"two times of one cell are the same within {resolution}"
        for resolution in reversed(distinct.values())
    ]
    if histories.controls:
        names = HistoryNames(histories.controls)
        parts = [
            " ".join(
                (names.of(entry), ", ".join(f"{each.letter} {_ratio(each)}" for each in entry.versions[1:]))
            )
            for entry in histories.controls
        ]
        texts.append(
            f"controls, over the first: {'; '.join(parts)}: this is the difference of the machines themselves"
        )
    texts += [
        f"without a history, {plural(count, 'method')} and direction{'' if count == 1 else 's'}: {why}"
        for why, count in histories.alone.items()
    ]
    return texts


def history_blocks(histories: Histories, width: int) -> list[str]:
    """A few lines for each history: rate, rate relative to the first version with its interval, and a figure
    of characters.

    Args:
        width: columns of the terminal.
    """
    names = HistoryNames(histories.attention)
    span = figure_span(histories.attention)
    blocks = []
    for entry in histories.attention:
        lines = [textwrap.fill(title(entry, names), width, subsequent_indent="  ")]
        for version in entry.versions:
            rate = number(version.tflops) if version.tflops is not None else ""
            head = f"  {version.letter:<3}{rate:>7}  {interval_text(version):<23}{drawn(version, span)}  "
            text = textwrap.fill(
                ", ".join(part.replace(" ", NO_BREAK) for part in version_text(entry, version).split(", ")),
                max(width, len(head) + LEAST_TEXT),
                initial_indent=head,
                subsequent_indent=" " * len(head),
                break_on_hyphens=False,
            )
            lines.append(text.replace(NO_BREAK, " "))
        blocks.append("\n".join(lines))
    return blocks


def history_table(histories: Histories) -> TableOfText:
    """All histories as one table, a row for each version."""
    names = HistoryNames(histories.attention)
    return TableOfText(
        "Versions",
        ("method", "version", "software", "cells", "TFLOP/s per device", "to the first"),
        [
            (
                names.of(entry),
                version.letter,
                version_text(entry, version),
                f"{entry.num_cells:,}",
                number(version.tflops),
                interval_text(version),
            )
            for entry in histories.attention
            for version in entry.versions
        ],
    )


def title(entry: MethodHistory, names: HistoryNames) -> str:
    """ "fa3 forward: 46 cells, TFLOP/s per device; 3 more were not timed in all versions"."""
    unit = ", TFLOP/s per device" if entry.versions[0].tflops is not None else ""
    more = f"; {entry.num_unshared:,} more not timed in all versions" if entry.num_unshared else ""
    left_out = f"; no cell in common with {' and '.join(entry.left_out)}" if entry.left_out else ""
    return f"{names.of(entry)}: {plural(entry.num_cells, 'cell')}{unit}{more}{left_out}"


def version_text(entry: MethodHistory, version: Version) -> str:
    """The versions in which it differs from the others: "torch 2.11.0, triton 3.6.0"."""
    own = dict(version.software)
    changed = [f"{name} {own[name]}" if name in own else f"no {name}" for name in entry.changing]
    if not version.software:
        return "software not known"
    if changed:
        return ", ".join(changed)
    if len({each.commits for each in entry.versions}) == 1:
        return "the same software"
    commits = version.commits
    return f"longca {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits of longca"


def interval_text(version: Version) -> str:
    """ "1.04× (1.02 to 1.07)"; "first" for the first version."""
    if version.lead is None:
        return "first"
    if version.bounds is None:
        return f"{_ratio(version)} (too few repeats)"
    low, high = version.bounds
    return f"{_ratio(version)} ({number(low)} to {number(high)})"


def figure_span(entries: Sequence[MethodHistory]) -> float:
    """The largest logarithm of a ratio that the figure shows."""
    leads = [version.lead for entry in entries for version in entry.versions if version.lead]
    bounds = [bound for entry in entries for version in entry.versions for bound in version.bounds or ()]
    return max([LEAST_SPAN, *(abs(log(bound)) for bound in (*bounds, *(lead.ratio for lead in leads)))])


def drawn(version: Version, span: float) -> str:
    """The interval as a line of characters, the rate as a dot, and the first version's as a bar."""
    middle = FIGURE // 2
    signs = [" "] * FIGURE

    def column(log_ratio: float) -> int:
        return middle + round(middle * log_ratio / span)

    lead = version.lead
    if version.bounds:
        low, high = map(log, version.bounds)
        for place in range(column(low), column(high) + 1):
            signs[place] = "─"
    signs[middle] = "│" if signs[middle] == " " else "┼"
    signs[column(lead.log_ratio if lead else 0.0)] = "●"
    return "".join(signs)


def span_text(span: float) -> str:
    """The figure's scale in words."""
    low = ratio_text(exp(-span))
    high = ratio_text(exp(span))
    return f"Figures are from {low} to {high} of the first version, logarithmic."


def _ratio(version: Version) -> str:
    return ratio_text(version.lead.ratio) if version.lead else ratio_text(1.0)


def _protocol(entry: MethodHistory) -> str:
    return "" if entry.rests is None else WITH_RESTS[entry.rests]
