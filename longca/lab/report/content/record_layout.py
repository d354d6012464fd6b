"""The layout of records on a page: the columns and filters of their table, and templates of their details, of
the tips of points, and of the command that measures one again. The scripts fill and place them.

A template such as "{q1}–{q3} ms[ of {all}]" is filled with the texts of a record
(`longca.lab.report.content.record_texts`). A part in brackets is left out if one of its texts is empty; the whole
template, if one outside of brackets is.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from longca.lab.store.text import NONE

if TYPE_CHECKING:
    from longca.lab.report.series import Unit

COMMAND = (
    "longca run {study} {run_as} -m {mask} -s {seqlen}[ --new-tokens {new}][ -w {ranks}] -d {direction} "
    "--seed {seed} --force"
)
SAMPLED = "Samples in the order measured: {sample_low} to {sample_high} ms"
COUNTED = (
    "{chosen} of {here} records[ here, {all} in all]. Open a cell for its samples, clocks, machine, code and "
    "command."
)
NOTICES = {  # what the page says of addresses and buttons
    "nothing": "The address asks for '#{asked}', which this page does not have.",
    "nearest": "The address asks for {asked}; this page does not have it and shows the nearest.",
    "combination": "this combination",
    "record": "There is no record '{asked}' on this page: the link is of other records, or it is incomplete.",
    "records": "The address asks for records with {asked}; there are none on this page.",
    "copied": "Copied",
    "not_copied": "Copy it by hand",
}
PICK = {  # the choice of methods to compare
    "count": " {count} of {all}",
    "all": "All methods",
    "drop": "Compare without {method}",
    "none": "None of the chosen methods is in this figure.",
    "note": "Shares, ranks and sentences are of all methods.",
}
BLANKS = {  # of figures, in tips
    "panel": "Without a mark here:",
    "method": "{method}: {why}",
    "key": "Without a mark in (listed below the figure):",
    "count": "{count} of the panels: {why}",
}
SEARCHED = (  # the texts that the table's search looks into
    "anchor",
    "study",
    "kind",
    "method",
    "mask",
    "mask_label",
    "heads",
    "dtype",
    "direction",
    "device",
    "status",
    "reason",
    "notes",
    "log",
    "mask_params",
    "corpus",
    "drawn",
    "mask_digest",
    "error_tensor",
    "memory_source",
    "costs",
    "clock_event_reasons",
    "hostname",
    "torch",
    "git_sha",
    "method_version",
    "run_id",
    "started_at",
)


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of records."""

    title: str
    text: str
    """template"""
    kind: str = ""
    """"cell", "method", "mask" or "status" for those that are more than a text"""
    order: str = ""
    """the numbers by which it is sorted; "" for its text"""
    number: bool = False
    high: bool = False
    """the first click on its head sorts high values to the top"""
    timed: bool = False
    """only records with status ok have it; the others have their reason in its place"""
    optional: str = ""
    """left out if the records have only one of these values"""


TABLE = (
    TableColumn("Cell", "{anchor}", "cell"),
    TableColumn("Method", "{method}", "method"),
    TableColumn("Ranks", "{world}", number=True, optional="world"),
    TableColumn("Mask", "{mask_label}", "mask"),
    TableColumn("Length", "{seqlen}", order="seqlen_order", number=True),
    TableColumn("New", "{new_or_all}", order="new_order", number=True, optional="new_or_all"),
    TableColumn("Heads", "{heads}", optional="heads"),
    TableColumn("D", "{head_dim}", number=True, optional="head_dim"),
    TableColumn("Type", "{dtype}", optional="dtype"),
    TableColumn("Device", "{device}", optional="device"),
    TableColumn("Seed", "{seed}", number=True, optional="seed"),
    TableColumn("Dir.", "{direction}"),
    TableColumn("Status", "{status}", "status", order="status_order"),
    TableColumn("RATE", "{rate}", order="rate_order", number=True, high=True, timed=True),
    TableColumn("Median ms", "{ms}", order="ms_order", number=True, timed=True),
    TableColumn(
        "% ceiling",
        "{ceiling}",
        order="ceiling_order",
        number=True,
        high=True,
        timed=True,
        optional="ceiling",
    ),
    TableColumn("IQR", "{iqr}[{arrow}]", order="iqr_order", number=True, timed=True),
    TableColumn("n", "{n}", number=True, timed=True),
    TableColumn("Memory", "{memory}", order="memory_order", number=True, timed=True),
    TableColumn("Error/budget", "{ratio}", order="ratio_order", number=True, high=True),
)
DETAILS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Cell",
        (
            ("id", "{cell_id}"),
            ("mask", "{mask_label}"),
            ("parameters", "{mask_params}"),
            ("drawn", "{drawn}"),
            ("corpus", "{corpus}"),
            ("new tokens", "{new} queries, the last of {seqlen} tokens"),
            ("heads", "{heads}, D {head_dim}, {dtype}"),
            ("density", "{density}"),
            ("FLOP", "{flops}"),
            ("nominal FLOP", "{nominal_flops}"),
            ("mask digest", "{mask_digest}"),
        ),
    ),
    (
        "Time",
        (
            ("median", "{ms} ms"),
            ("quartiles", "{q1}–{q3} ms"),
            ("per device", "{rate} UNIT[ ({low}–{high})]"),
            ("of the ceiling", "{ceiling_percent} % of a matrix product's {ceiling_rate} UNIT"),
            ("of the maker's peak", "{peak_percent} %"),
            ("by nominal FLOP", "{nominal_rate} UNIT"),
            ("copied", "{gb_per_s} GB/s"),
            ("made to last", "{nominal_ms} ms"),
            ("on the host", "{enqueue_ms} ms a call"),
            ("mean over ranks", "{mean_ranks} ms"),
            ("95 % interval", "{ms_low}–{ms_high} ms, ±{precision} %"),
            ("drift", "{drift_words}[, by {drift_percent} %]"),
            ("cycles", "{mega_cycles} million"),
            ("rests", "busy for at most {duty} % of the time"),
            (
                "samples",
                "{n}[ after {warm_ups}[ in {warm_seconds} s[{steady}]], {timer}, ended by {stopped}]",
            ),
        ),
    ),
    (
        "Result",
        (
            ("status", "{status}"),
            ("reason", "{reason}"),
            ("notes", "{notes}"),
            ("compared with", "{error_reference}, {error_scope}"),
            ("worst tensor", "{error_tensor}: {error} of {error_budget} allowed"),
        ),
    ),
    (
        "Memory and costs",
        (
            ("peak of a call", "{memory}"),
            ("absolute peak", "{absolute_memory}"),
            ("counted", "{memory_source}"),
            ("costs", "{costs}"),
        ),
    ),
    (
        "Ranks",
        (
            ("slowest rank", "rank {slowest_rank}, {straggler} % above the median rank"),
            ("of the kernel alone", "{single} % of {single_rate} UNIT"),
            ("moved by a rank", "{moved}[; by the formula {formula}]"),
            ("above its shards", "{above_shards}"),
            ("permuting", "{permute_ms} ms"),
            ("machines", "{machines}"),
        ),
    ),
    (
        "State of the GPU",
        (
            ("SM clock", "{sm_clock} MHz"),
            ("held back by", "{clock_event_reasons}"),
            ("power", "{power} W"),
            ("temperature", "{temperature} °C"),
        ),
    ),
    (
        "Where and when",
        (
            ("device", "{device}"),
            ("host", "{hostname}"),
            ("torch", "{torch}"),
            ("CUDA", "{cuda}"),
            ("commit", "{git_sha}"),
            ("method", "{method_version}"),
            ("run", "{run_id}"),
            ("started", "{started_at}"),
            ("took", "{seconds} s"),
        ),
    ),
)
_WHERE = (
    "{method}\n{mask_label}, {seqlen}[, {new} new tokens], {heads} heads, {direction_word}[, {ranks} ranks]\n"
)
TIP = {  # of a point, by whether it has a time
    "timed": _WHERE + "[{rate} UNIT[ ({low}–{high})], ]{ms} ms\nn = {n}[{over}][, IQR {iqr}]"
    "[\nerror [of {error_tensor} ]{ratio} of its budget[, memory {memory}[, {absolute_memory} in all]]]"
    "[\n{published}][{rest}]",
    "other": _WHERE + "{status}[: {reason}][{rest}]",
}


@dataclass(frozen=True)
class Filter:
    """A list of boxes above the table of records, and a part of its address."""

    name: str
    label: str
    column: str
    """the texts to choose from"""
    order: str = ""
    """the numbers by which they are sorted; "" for the order of records"""


FILTERS = (
    Filter("kind", "Kind", "kind"),
    Filter("method", "Method", "method"),
    Filter("mask", "Mask", "mask_label"),
    Filter("seqlen", "Length", "seqlen", "seqlen_order"),
    Filter("new", "New tokens", "new_or_all", "new_order"),
    Filter("heads", "Heads", "heads"),
    Filter("world", "Ranks", "world", "world"),
    Filter("direction", "Direction", "direction"),
    Filter("seed", "Seed", "seed", "seed"),
    Filter("status", "Status", "status", "status_order"),
)


def layout(texts: Mapping[str, Sequence[Any]], unit: Unit) -> dict[str, Any]:
    """The columns, the filters and their options, and the templates of a page's records.

    Args:
        texts: `table_texts` of the records.
    """
    columns = [
        asdict(replace(column, title=unit.name if column.title == "RATE" else column.title))
        for column in TABLE
        if not column.optional or len(set(texts[column.optional])) > 1
    ]
    filters = []
    for entry in FILTERS:
        options = list(dict.fromkeys(texts[entry.column]))
        if entry.order:
            orders = dict(zip(texts[entry.column], map(int, texts[entry.order]), strict=True))
            options.sort(key=orders.__getitem__)
        # one that all records share is no choice, but an address may name it
        filters.append(
            {
                "name": entry.name,
                "label": entry.label,
                "column": entry.column,
                "options": options,
                "is_choice": len(options) > 1,
            }
        )
    return {"columns": columns, "filters": filters, **templates(unit)}


def templates(unit: Unit) -> dict[str, Any]:
    """The templates of tips, of details and of the command, with the page's unit."""
    groups = [
        [title, [[name, text.replace("UNIT", unit.name)] for name, text in entries]]
        for title, entries in DETAILS
    ]
    tips = {name: text.replace("UNIT", unit.name) for name, text in TIP.items()}
    return {
        "details": groups,
        "tips": tips,
        "command": COMMAND,
        "searched": SEARCHED,
        "counted": COUNTED,
        "sampled": SAMPLED,
        "none": NONE,
        "unit": unit.name,
        "notices": NOTICES,
        "blanks": BLANKS,
    }
