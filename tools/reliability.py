"""Writes docs/results/reliability.md: what accidents and large studies did to this project, from what their
programs have measured.

    python -m tools.reliability

`python -m tests.chaos --save`, the accidents on a cluster and `python -m benchmarks.store.load --save` write
one file each below reports/reliability, and then this page. Its numbers and findings are derived from these
files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longca.lab.store.text import number, plural
from tools.pages import ROOT, put

FOLDER = ROOT / "reports/reliability"
PAGE = ROOT / "docs/results/reliability.md"
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
VICTIMS = {
    "snakemake": "Snakemake",
    "runner": "runner (`longca run`)",
    "worker": "worker of kernels",
    "rank": "rank of context parallelism",
}
OTHERS = {
    "stop": "stop (SIGSTOP, later SIGCONT)",
    "full disk": "full disk, later room again",
    "clock": "jump of the clock",
    "folder deleted": "results deleted while a run writes them",
}
PLACES = {"chaos": "on one machine", "slurm": "on a cluster"}
TOO_LATE = "its victim had ended"  # note of an accident that did not take place
Data = Mapping[str, Any]


def save(name: str, data: Data) -> None:
    """Keep what a program has measured, and write the page anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    write()


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """The page with all that is measured in its places."""
    files = {name: FOLDER / f"{name}.json" for name in TABLES}
    measured = {
        name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()
    }
    for name, table in TABLES.items():
        text = put(text, name, table(measured[name]) if name in measured else "Not measured yet.")
    return put(text, "summary", summary(measured))


def summary(measured: Mapping[str, Data]) -> str:
    """The findings, in the first sentences of the page.

    Args:
        measured: by the name of its table.
    """
    accidents = _accidents({where: measured[name] for name, where in PLACES.items() if name in measured})
    if "load" in measured:
        accidents.append(_verdict_of_load(measured["load"]) + ".")
    return f"**{' '.join(accidents)}**" if accidents else "Nothing is measured yet."


def chaos(data: Data) -> str:
    """Accidents on one machine."""
    trials = data["trials"]
    happened = _happened(trials)
    kills = Counter((entry["victim"], entry["signal"]) for entry in happened if entry["what"] == "kill")
    rows = [
        [
            title,
            *(str(kills[victim, name]) for name in SIGNALS),
            str(sum(kills[victim, name] for name in SIGNALS)),
        ]
        for victim, title in VICTIMS.items()
    ]
    others = Counter(entry["what"] for entry in happened)
    rest = [
        [title, str(others[what]) if what not in data["skipped"] else f"left out: {data['skipped'][what]}"]
        for what, title in OTHERS.items()
    ]
    by_trial = [
        [
            str(trial["number"]),
            trial["way"],
            ", ".join(map(_short, _happened([trial]))),
            str(trial["num_starts"]),
            str(trial["num_repaired"]),
            number(trial["seconds"]),
            "; ".join(trial["found"]) or "nothing",
        ]
        for trial in trials
    ]
    again = (
        f"`python -m tests.chaos --kills {data['kills']} --seed {data['seed']} --trial N` runs one "
        f"trial again."
    )
    what = f"{plural(kills.total(), 'kill')} and {plural(len(happened) - kills.total(), 'other accident')}"
    return "\n\n".join(
        [
            f"**{_verdict(trials, what)}.**",
            f"{data['date']}, {data['machine']}, load {data['load']:g}; seed {data['seed']}, "
            f"{plural(len(trials), 'trial')} of "
            f"{plural(data['num_cells'], 'cell')} in {number(data['seconds'] / 60)} minutes. {again}",
            _table(["killed", *SIGNALS, "all"], rows),
            _table(["other accident", "times"], rest),
            _table(
                ["trial", "under", "accidents (seconds since its begin)", "starts", "repaired", "s", "found"],
                by_trial,
            ),
        ]
    )


def slurm(data: Data) -> str:
    """Accidents on a cluster."""
    accidents = _happened([data])
    happened = Counter(entry["what"] for entry in accidents)
    rows = [[what, str(count)] for what, count in sorted(happened.items())]
    said = ", ".join(f"{entry['what']} at {entry['at_s']:.0f} s" for entry in accidents)
    return "\n\n".join(
        [
            f"**{_verdict([data], plural(happened.total(), 'accident'))}.**",
            f"{data['date']}, {data['machine']}, two nodes of Slurm on it; seed {data['seed']}, "
            f"{data['num_starts']} starts of Snakemake in "
            f"{number(data['seconds'] / 60)} minutes: {said}.",
            _table(["accident", "times"], rows),
        ]
    )


def load(data: Data) -> str:
    """A study of many records."""
    rows = [
        [
            f"`longca {entry['command']}`",
            entry["what"],
            number(entry["seconds"]),
            number(entry["cpu_s"]),
            number(entry["mib"] / 1024, 2),
            _limit(entry),
        ]
        for entry in data["commands"]
    ]
    missed = [entry for entry in data["commands"] if not _keeps(entry)]
    waited = [f"`{entry['command']}`" for entry in missed if _keeps({**entry, "seconds": entry["cpu_s"]})]
    return "\n\n".join(
        [
            f"**{_verdict_of_load(data)}; the page has {number(data['page_bytes'] / 1e6)} MB.**",
            f"{data['date']}, {data['machine']}, load {data['load']:g} when it began. The records have "
            f"{number(data['bytes'] / 1e6)} MB."
            + (
                f" Its own CPU seconds are within the limit of {', '.join(waited)}: there it waited for "
                f"others."
                if waited
                else ""
            ),
            _table(["command", "", "s", "CPU s", "GiB", "limit"], rows),
        ]
    )


TABLES: dict[str, Callable[[Data], str]] = {"chaos": chaos, "slurm": slurm, "load": load}


def _verdict(trials: Sequence[Data], what: str) -> str:
    bad = sum(bool(trial["found"]) for trial in trials)
    if bad:
        return f"After {what}, {plural(bad, 'trial')} of {len(trials)} did not end as an undisturbed run does"
    return (
        f"After {what}, all cells were those of an undisturbed run: none was lost or measured twice, and no "
        f"process, lock or temporary "
        "file was left"
    )


def _happened(trials: Sequence[Data]) -> list[Data]:
    """Accidents that took place."""
    return [entry for trial in trials for entry in trial["accidents"] if entry.get("note") != TOO_LATE]


def _accidents(data: Mapping[str, Data]) -> list[str]:
    """Sentences about accidents: one for each place where something was wrong, then one for all places where
    nothing was.

    Args:
        data: by where the accidents took place.
    """
    texts = []
    good = []
    for where, of_place in data.items():
        trials = of_place.get("trials", [of_place])
        count = len(_happened(trials))
        bad = sum(len(trial["found"]) for trial in trials)
        if bad:
            texts.append(
                f"After {plural(count, 'accident')} {where}, {plural(bad, 'thing')} "
                f"{'was' if bad == 1 else 'were'} not as it "
                "should be: see below."
            )
        else:
            good.append(f"{count if good else plural(count, 'accident')} {where}")
    return texts + (
        [f"After {' and '.join(good)}, no finished cell was lost or changed, and nothing was left behind."]
        if good
        else []
    )


def _verdict_of_load(data: Data) -> str:
    missed = [_miss(entry) for entry in data["commands"] if not _keeps(entry)]
    count = plural(data["num_records"], "record")
    return (
        f"With {count}, limits are missed by {', '.join(missed)}"
        if missed
        else f"With {count}, every command keeps its limits"
    )


def _short(accident: Data) -> str:
    words = " ".join(
        filter(None, (accident["what"], accident["victim"], accident["signal"].removeprefix("SIG")))
    )
    return f"{words.removeprefix('kill ')} {accident['at_s']:.0f}"


def _keeps(entry: Data) -> bool:
    return (entry["limit_s"] is None or entry["seconds"] <= entry["limit_s"]) and (
        entry["limit_gib"] is None or entry["mib"] <= 1024 * entry["limit_gib"]
    )


def _miss(entry: Data) -> str:
    """The command, and by how much it missed its limits."""
    over = (
        [f"{number(entry['seconds'])} s of {entry['limit_s']:g}"]
        if entry["limit_s"] is not None and entry["seconds"] > entry["limit_s"]
        else []
    )
    if entry["limit_gib"] is not None and entry["mib"] > 1024 * entry["limit_gib"]:
        over.append(f"{number(entry['mib'] / 1024, 2)} GiB of {entry['limit_gib']:g}")
    return f"`{entry['command']}` ({' and '.join(over)})"


def _limit(entry: Data) -> str:
    limits = [
        *([] if entry["limit_s"] is None else [f"{entry['limit_s']:g} s"]),
        *([] if entry["limit_gib"] is None else [f"{entry['limit_gib']:g} GiB"]),
    ]
    return f"{' and '.join(limits)}, {'kept' if _keeps(entry) else 'missed'}" if limits else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    write()
