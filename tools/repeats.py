"""Writes longca/lab/ranking/repeats.json, the differences that repeats of identical cells show, and the table
of docs/design/ranking.md.

    python -m tools.repeats

Repeats are cells of attention that several of the committed studies measured, on devices of one model, with
the same kernel: records of `band` before its present kernels are left out. Records of the present protocol,
with a rest of the GPU after each call, are in folders of their own, which nothing else reads. The table says
how many of these pairs each rule calls different, the present one and those that the project had before, and
the same for pairs that were held out: resolutions are made from one half of the cells, and the other half is
judged by them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, expm1, log
from statistics import fmean, median, quantiles
from typing import Any

from longca.lab.ranking import RELATIONS, WORDS, Relation, RepeatPair, Resolution, Resolutions, is_told_apart
from longca.lab.ranking.repeats import share_told_apart
from longca.lab.ranking.resolution import FILE, LEAST_PAIRS, upper_quantile
from longca.lab.store.text import percent
from tools.pages import ROOT, put

PAGE = ROOT / "docs/design/ranking.md"
FOLDERS = ("reports/h100", "reports/h200", "reports/h100/rested", "reports/h200/rested")
PROTOCOLS = {False: "without", True: "with"}  # rests after each call
LEAST_OF_DEVICES = 3  # pairs of two devices, from which their mean says what they have in common
FOLDS = 2
DURATIONS_MS = (0.3, 3.0, 30.0)
Rule = Callable[[RepeatPair], bool]
Group = tuple[str, Relation, bool]
"""model of device, relation, with rests"""


def pairs() -> list[RepeatPair]:
    """The repeats among the committed records."""
    from longca.lab.ranking.table import pairs_of

    return pairs_of(_rows(), any_version=True)


def _rows() -> Any:
    """The committed records that are ranked, as a derived table."""
    from longca.lab.ranking.table import COLUMNS
    from longca.lab.store.load import load_columns
    from longca.lab.store.table import RANKED_BY, is_ranked
    from longca.predict import ran_earlier
    from longca.predict.earlier import EARLIER_RECORDS

    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.parquet"))]
    table, problems = load_columns(files, [*dict.fromkeys((*COLUMNS, *RANKED_BY, "git_sha"))])
    assert not problems and EARLIER_RECORDS
    usual = [
        is_ranked(of_study) for _, of_study in table.groupby("study")
    ]  # in its own study each row counts
    keep = table.index.isin([row for rows in usual for row in rows.index[rows]])
    earlier = [ran_earlier(kernel, sha) for kernel, sha in zip(table.kernel, table.git_sha, strict=True)]
    return table[keep & ~_array(earlier)]


def change_by_rests() -> str:
    """Sentences about the cells with records of both protocols: by how much these differ."""
    from longca.lab.ranking.table import measurements

    rows = _rows()
    rates: dict[tuple[str, str], dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in measurements(rows):
        if record and not record.playoff:
            rates[record.device, record.cell_id][record.rests].append(record.rate)
    changes: dict[str, list[float]] = defaultdict(list)
    for (device, _), of_cell in rates.items():
        if len(of_cell) == len(PROTOCOLS):
            changes[device].append(log(median(of_cell[True]) / median(of_cell[False])))
    sentences = []
    for device, logs in sorted(changes.items()):
        limit = Resolutions.known().of(device, "model").log_ratio
        beyond = sum(abs(value) > limit for value in logs) / len(logs)
        sentences.append(
            f"On {short_name(device)}s rates with rests are higher by {percent(expm1(median(logs)))} in the "
            f"median of {len(logs)} cells; in {percent(beyond)} of them the two\nprotocols differ by more "
            "than the resolution without rests."
        )
    return "\n".join(sentences)


def content(measured: Sequence[RepeatPair]) -> dict[str, Any]:
    """The whole file."""
    return {
        "made_by": "python -m tools.repeats",
        "records": [f"{folder}/*.parquet" for folder in FOLDERS if (ROOT / folder).is_dir()],
        "resolutions": judged(measured).as_json(),
    }


def judged(measured: Sequence[RepeatPair]) -> Resolutions:
    """The resolutions, with the numbers of pairs that they call different."""
    known = resolutions(measured)
    held_out = _held_out(measured)
    members = _groups(measured)
    return Resolutions(
        tuple(
            replace(
                entry,
                num_apart=sum(is_told_apart(pair, known) for pair in members[_key(entry)]),
                num_apart_held_out=sum(held_out[id(pair)] for pair in members[_key(entry)]),
            )
            for entry in known.entries
        )
    )


def _groups(measured: Sequence[RepeatPair]) -> dict[Group, list[RepeatPair]]:
    """The pairs of each group, in the order of the table: calls without rests before those with."""
    groups: dict[Group, list[RepeatPair]] = defaultdict(list)
    for pair in measured:
        groups[pair.first.device, pair.relation, pair.rests].append(pair)
    order = sorted(groups, key=lambda key: (key[0], RELATIONS.index(key[1]), key[2]))
    return {key: groups[key] for key in order}


def _key(entry: Resolution) -> Group:
    return entry.device, entry.relation, entry.rests


def resolutions(measured: Sequence[RepeatPair]) -> Resolutions:
    """The resolution of each model of device, relation and protocol that has enough pairs.

    Few pairs give a bound only. Where that is above the resolution of a wider relation it says nothing, and
    is left out: what two devices measure alike, one measures alike as well.
    """
    entries = [
        Resolution(
            device,
            relation,
            round(upper_quantile([pair.log_ratio for pair in members]), 6),
            len(members),
            round(common_share(members), 3) if relation == "model" else 1.0,
            rests=rests,
        )
        for (device, relation, rests), members in _groups(measured).items()
        if len(members) >= LEAST_PAIRS
    ]
    return Resolutions(
        tuple(entry for entry in entries if not any(_says_more(other, entry) for other in entries))
    )


def _says_more(other: Resolution, entry: Resolution) -> bool:
    """The other is of a farther relation, and yet not wider."""
    return (
        (entry.device, entry.rests) == (other.device, other.rests)
        and RELATIONS.index(entry.relation) < RELATIONS.index(other.relation)
        and entry.log_ratio >= other.log_ratio
    )


def common_share(members: Sequence[RepeatPair]) -> float:
    """The share of the variance of log ratios that pairs of the same two devices have in common (one-way
    analysis of variance).

    Ratios beyond the 95th percentile count as if they were there: single delays would hide what devices have
    in common.
    """
    limit = upper_quantile([pair.log_ratio for pair in members])
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair in members:
        first, other = sorted((pair.first, pair.second), key=lambda side: side.unit)
        groups[first.unit, other.unit].append(max(-limit, min(limit, log(first.rate / other.rate))))
    kept = [values for values in groups.values() if len(values) >= LEAST_OF_DEVICES]
    total = sum(map(len, kept))
    if len(kept) < 2:
        return 1.0
    within = sum(sum((value - fmean(values)) ** 2 for value in values) for values in kept) / (
        total - len(kept)
    )
    size = (total - sum(len(values) ** 2 for values in kept) / total) / (len(kept) - 1)
    # means are compared with 0: a device that is always slower says nothing of a method
    between = max(sum(len(values) * fmean(values) ** 2 for values in kept) / len(kept) - within, 0.0) / size
    return between / (between + within) if between + within else 1.0


def finding(measured: Sequence[RepeatPair]) -> str:
    """The first paragraph of the page."""
    known = judged(measured)
    held_out = _held_out(measured)
    groups = _groups(measured)
    sentences = []
    for rests, words in ((False, "calls without rests of the GPU"), (True, "calls with a rest after each")):
        entries = [entry for entry in known.entries if (entry.relation, entry.rests) == ("model", rests)]
        if not entries:
            continue
        limits = " and ".join(f"{entry.percent} on {short_name(entry.device)}s" for entry in entries)
        cells = [
            [pair for relation in RELATIONS[1:] for pair in groups.get((entry.device, relation, rests), ())]
            for entry in entries
        ]
        before, now, other = (
            " and ".join(_share(members, rule) for members in cells)
            for rule in (_page, lambda pair: is_told_apart(pair, known), lambda pair: held_out[id(pair)])
        )
        sentences.append(
            f"- 95 of 100 such repeats (A/A) of {words}, on two GPUs of one model, differ by at most\n"
            f"  {limits}. The rule that pages had before called {before} of all repeats different. "
            f"This\n  rule calls {now} of them different, and {other} of those that were held out when the "
            "limits were made."
        )
    return (
        "**Two kernels are told apart only if their medians differ by more than repeats of identical cells "
        "do.**\n\n" + "\n".join(sentences)
    )


def table(measured: Sequence[RepeatPair]) -> str:
    """The table of the page: a row for each model, relation and protocol, a column for each rule."""
    held_out = _held_out(measured)
    known = resolutions(measured)
    rules: dict[str, Rule] = {
        "page": _page,
        "claims": _claims,
        "`compare`": _compare,
        "3 %": _fastest,
        "now": lambda pair: is_told_apart(pair, known),
        "held out": lambda pair: held_out[id(pair)],
    }
    heads = ("GPU", "repeats on", "rests", "pairs", "median", "95th percentile", "a tie up to", "in common")
    heads += (*rules,)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (device, relation, rests), members in _groups(measured).items():
        resolution = known.of(device, relation, rests)
        ratios = [pair.log_ratio for pair in members]
        cells = (
            short_name(device),
            WORDS[relation],
            PROTOCOLS[rests],
            str(len(members)),
            percent(expm1(median(ratios))),
            percent(expm1(_percentile(ratios))),
            f"{resolution.percent}{' (borrowed)' if resolution.borrowed_by else ''}",
            percent(resolution.common),
            *(_share(members, rule) for rule in rules.values()),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def durations(measured: Sequence[RepeatPair]) -> str:
    """The same by the duration of a call: all relations and models together."""
    known = resolutions(measured)
    heads = ("call of", "pairs without rests", "95th percentile", "called different")
    heads += ("pairs with rests", *heads[2:])
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    limits = (0.0, *DURATIONS_MS, float("inf"))
    for low, high in pairwise(limits):
        of_class = [pair for pair in measured if low <= median(pair.first.times_ms) < high]
        words = f"{low:g} to {high:g} ms"
        if not low:
            words = f"less than {high:g} ms"
        elif high == limits[-1]:
            words = f"{low:g} ms and more"
        cells = [words]
        for rests in PROTOCOLS:
            members = [pair for pair in of_class if pair.rests == rests]
            ratios = [pair.log_ratio for pair in members]
            cells.append(str(len(members)))
            cells.append(percent(expm1(_percentile(ratios))) if members else "–")
            cells.append(_share(members, lambda pair: is_told_apart(pair, known)) if members else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def short_name(device: str) -> str:
    """ "H100" for "NVIDIA H100 80GB HBM3"."""
    return device.removeprefix("NVIDIA ").split()[0]


def _held_out(measured: Sequence[RepeatPair]) -> dict[int, bool]:
    """Pair → whether it is called different by resolutions that were made without its cell's half."""
    verdicts: dict[int, bool] = {}
    for fold in range(FOLDS):
        known = resolutions([pair for pair in measured if _fold(pair) != fold])
        verdicts |= {id(pair): is_told_apart(pair, known) for pair in measured if _fold(pair) == fold}
    return verdicts


def _fold(pair: RepeatPair) -> int:
    return int(pair.first.cell_id[:4], 16) % FOLDS


def _quartiles(values: Any) -> tuple[float, float, float]:
    """(at the third quartile of the times, at their median, at the first) of calls a second."""
    low, middle, high = quantiles(values.times_ms, n=4, method="inclusive")
    return 1 / high, 1 / middle, 1 / low


def _page(pair: RepeatPair) -> bool:
    """Apart by more than the mean of both interquartile ranges: the rule that pages had."""
    behind, ahead = sorted(map(_quartiles, (pair.first, pair.second)), key=lambda rates: rates[1])
    return 2 * (ahead[1] - behind[1]) > ahead[2] - ahead[0] + behind[2] - behind[0]


def _claims(pair: RepeatPair) -> bool:
    return _apart(pair, 0.025)


def _compare(pair: RepeatPair) -> bool:
    return _apart(pair, 0.03)


def _apart(pair: RepeatPair, tolerance: float) -> bool:
    """Apart by more than the tolerance, and quartiles do not meet."""
    behind, ahead = sorted(map(_quartiles, (pair.first, pair.second)), key=lambda rates: rates[1])
    return ahead[1] / behind[1] > 1 + tolerance and behind[2] < ahead[0]


def _fastest(pair: RepeatPair) -> bool:
    return exp(pair.log_ratio) > 1.03


def _share(members: Sequence[RepeatPair], rule: Rule) -> str:
    apart, count = share_told_apart(members, rule)
    return percent(apart / count)


def _percentile(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _array(values: Sequence[bool]) -> Any:
    import numpy as np

    return np.array(values, bool)


def text(measured: Sequence[RepeatPair]) -> str:
    return json.dumps(content(measured), indent=1) + "\n"


def page(measured: Sequence[RepeatPair], before: str) -> str:
    """The page with its parts made anew."""
    for name, content in (
        ("finding", finding(measured)),
        ("repeats", table(measured)),
        ("durations", durations(measured)),
        ("rests", change_by_rests()),
    ):
        before = put(before, name, content)
    return before


def main() -> None:
    measured = pairs()
    FILE.write_text(text(measured), encoding="utf-8")
    PAGE.write_text(page(measured, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
