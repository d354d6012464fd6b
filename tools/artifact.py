"""The generated parts of the Artifact Appendix: sizes, data with their licences, and the study's claims one
by one.

    python -m tools.artifact

Verdicts, findings and GPU minutes follow from the committed records, commands from the cells behind each
verdict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from longca.lab.advice.many_gpus import CLAIMS as PREDICTED
from longca.lab.archive.packing import BundleFile, pack
from longca.lab.claims import OPEN, STUDY_GPU, Claim, Verdict, Verdicts, all_claims, judged
from longca.lab.claims.evidence import COLUMNS
from longca.lab.claims.gaps import run_command
from longca.lab.ranking import Resolutions
from longca.lab.store.load import committed, load_columns
from longca.lab.store.table import derived
from longca.lab.store.text import number, plural, short_device
from longca.lab.studies import Selection, load_study
from longca.lab.studies.checkout import git
from tools.pages import ROOT, write_blocks

if TYPE_CHECKING:
    import pandas as pd

PAGE = ROOT / "docs/artifact-appendix.md"
GUIDE = ROOT / "docs/guide/artifact.md"
PATHS = {"one GPU": "2", "2–4 GPUs": "3, in small with 2–4 GPUs", "several nodes": "3"}
"""the path of the guide on which a claim is decided, by the hardware that it needs"""
COST = (
    "cell_id",
    "device",
    "seconds",
    "world",
    "study",
    "kernel",
    "strategy",
    "mask",
    "seqlen",
    "direction",
    "status",
)
HEADS = ("num_q_heads", "num_kv_heads")
MB = 1e6
MOST = 3  # gaps of an open claim that are written out


@dataclass(frozen=True)
class Remeasured:
    """The command that measures the cells behind the verdict on a claim again."""

    command: str
    num_behind: int
    """cells of this study behind the verdict"""
    num_selected: int
    """cells that the command measures"""
    gpu_minutes: float
    """of the records of the cells behind the verdict"""


def sizes() -> dict[str, int]:
    """Bytes of the repository's files, by part, and of the archives of a release that has these records."""
    tracked = {
        path: (ROOT / path).stat().st_size
        for path in (git(ROOT, "ls-files") or "").splitlines()
        if (ROOT / path).is_file()
    }
    parts = {
        "all files of the repository, without its history": "",
        "of these, reports: records and pages": "reports/",
        "of these, tests": "tests/",
        "of these, the package": "longca/",
    }
    records = {
        path: BundleFile(ROOT / path)
        for path in tracked
        if re.match(r"reports/(?!paper).*\.(parquet|csv|json|txt)$", path)
    }
    return {
        **{
            name: sum(size for path, size in tracked.items() if path.startswith(start))
            for name, start in parts.items()
        },
        "records of a release, unpacked": sum(file.num_bytes for file in records.values()),
        "records of a release, packed": len(pack(records, "records", 0)),
    }


def sizes_table() -> str:
    rows = [f"| {name} | {size / MB:.0f} MB |" for name, size in sizes().items()]
    return "\n".join(["| what | size |", "|---|---|", *rows])


def data_table() -> str:
    """The data of others in the repository, with their licences as the files state them."""
    rows = []
    for path in sorted((ROOT / "longca").rglob("data/corpora/*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if {"label", "source", "licence"} <= content.keys():
            rows.append(
                f"| lengths of documents: {content['label']} | {_linked(content['source'])} | "
                f"{content['licence']} |"
            )
    for path in sorted((ROOT / "longca").rglob("published/data/*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows.append(f"| published rates: {content['title']} | <{content['url']}> | numbers, cited |")
    return "\n".join(["| data | source | licence |", "|---|---|---|", *rows])


def needed_table() -> str:
    """The cells that each claim asks for as the study has it, by the claim's own code: all that it misses
    without any record."""
    nothing = derived([])
    rows = []
    for claim in all_claims():
        missing = claim.judge_as_study(nothing).missing
        texts = "<br>".join(re.sub(r" \(needs [^:()]*(: [^()]*)?\)$", "", text) for text in missing)
        path = PATHS["several nodes" if "to 96 H100s" in " ".join(missing) else claim.gpus]
        rows.append(f"| {claim.number} | {claim.label} | {texts} | {path} |")
    return "\n".join(["| claim | in short | cells that it asks for | path |", "|---|---|---|---|", *rows])


def claims_text() -> str:
    """One section for each claim."""
    return "\n\n".join(_section(claim, verdicts) for claim, verdicts in _judged())


def tolerances() -> str:
    """The difference of two times of one cell that means nothing, as the tie rule knows it."""
    known = Resolutions.known()
    lines = [
        f"| {short_device(entry.device)} | {entry.relation} | {'yes' if entry.rests else 'no'} | "
        f"{entry.percent} | {entry.num_pairs:,} |"
        for entry in known.entries
    ]
    return "\n".join(
        ["| GPU | two times of | with rests | within | pairs |", "|---|---|---|---|---|", *lines]
    )


@cache
def _judged() -> list[tuple[Claim, Verdicts]]:
    claims = all_claims()
    names = dict.fromkeys((*COLUMNS, *(name for claim in claims for name in claim.columns)))
    table, _ = load_columns(committed(), tuple(names))
    return list(zip(claims, judged(claims, table), strict=True))


@cache
def _cells() -> pd.DataFrame:
    """The cells' own records, with what they cost."""
    table, _ = load_columns(committed(), (*COST, *HEADS))
    table["gpu"] = table.device.map(short_device)
    return table


def _section(claim: Claim, verdicts: Verdicts) -> str:
    study = verdicts.as_study
    repaired = verdicts.repaired
    rows = [
        ("needs", claim.gpus),
        ("judge", f"`longca claims {claim.number}`: from the committed records, seconds, no GPU"),
        ("measure", "<br>".join(_measure(claim, verdicts))),
        ("expected, as the study has it", _expected(study)),
        (
            "expected, with repaired code",
            "<br>".join(_expected(verdict) for verdict in (repaired, *repaired.elsewhere)),
        ),
        ("tolerance", _tolerance(claim)),
        ("another result is", claim.overturned_by),
    ]
    table = "\n".join(f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in rows)
    return f"### {claim.number}. {claim.label}\n\n{claim.sentence}\n\n| | |\n|---|---|\n{table}"


def _expected(verdict: Verdict) -> str:
    return f"**{verdict.status}.** {verdict.finding}"


def _tolerance(claim: Claim) -> str:
    """The tolerance: a result within it counts as the expected one."""
    counted = {
        "memory": "bytes of memory are equal with the same torch and kernels, on a GPU with as much memory",
        "bytes": "counted bytes are equal",
        "support": "what runs and what is refused is equal with the same packages",
        "error": "errors are equal where kernels are deterministic, since inputs follow from the seed",
    }
    known = Resolutions.known()
    other = "two devices of one model"
    device = next(device for device in {entry.device for entry in known.entries} if STUDY_GPU in device)
    plain, rested = (known.of(device, "model", rests).percent for rests in (False, True))
    times = (
        f"two times of one cell differ by up to {plain} on {other} ({short_device(device)}), with rests by "
        f"{rested}; ratios of two of them likewise"
    )
    texts = [times] if "time" in claim.quantity else []
    texts += [counted[name] for name in claim.quantity.split(" and ") if name in counted]
    return f"the word in bold is the same; {'; '.join(texts)}"


def _measure(claim: Claim, verdicts: Verdicts) -> list[str]:
    lines = [
        f"`{again.command}`: {plural(again.num_behind, 'cell')} behind the verdict took "
        f"{number(again.gpu_minutes, 2)} GPU "
        f"minutes on {verdicts.repaired.gpu or 'GPUs'}; the command selects {again.num_selected:,}"
        for again in remeasured(verdicts)
    ]
    if OPEN in (verdicts.as_study.status, verdicts.repaired.status):
        missing = dict.fromkeys((*verdicts.as_study.missing, *verdicts.repaired.missing))
        lines += [f"not measured: {text}" for text in list(missing)[:MOST]]
        if claim.number in PREDICTED:
            lines.append(
                f"`longca claims {claim.number} --predicted` says what is predicted for 8 to 96 GPUs"
            )
    return lines


def remeasured(verdicts: Verdicts) -> list[Remeasured]:
    """The commands for the cells behind both verdicts, one for each study, as its records on the deciding GPU
    have them."""
    gpu = verdicts.repaired.gpu or STUDY_GPU
    behind = {*verdicts.as_study.cell_ids, *verdicts.repaired.cell_ids}
    table = _cells()
    rows = table.loc[table.cell_id.isin(behind) & (table.gpu == gpu)].drop_duplicates("cell_id")
    return [_again(str(study), members) for study, members in rows.groupby("study", sort=True)]


def _again(study: str, rows: pd.DataFrame) -> Remeasured:
    axes: dict[str, list[Any]] = {
        name: sorted(set(rows[name]) - {""}) for name in ("kernel", "strategy", "mask", "seqlen", "direction")
    }
    axes["heads"] = [
        f"{queries}:{keys}"
        for queries, keys in sorted(set(zip(rows.num_q_heads, rows.num_kv_heads, strict=True)))
    ]
    axes["world"] = sorted(set(rows.world) - {1})
    chosen = Selection(**{name: ",".join(map(str, values)) for name, values in axes.items() if values})
    cells = load_study(study).known_cells
    minutes = float((rows.seconds * rows.world).sum()) / 60
    return Remeasured(run_command(study, axes, as_named=True), len(rows), len(chosen.apply(cells)), minutes)


def _linked(text: str) -> str:
    return re.sub(r"https://[^\s:,]+", r"<\g<0>>", text)


def blocks() -> Iterable[tuple[str, str]]:
    """Name and content of each generated part."""
    yield "sizes", sizes_table()
    yield "data", data_table()
    yield "tolerances", tolerances()
    yield "claims", claims_text()


def main() -> None:
    write_blocks(PAGE, **dict(blocks()))
    write_blocks(GUIDE, needed=needed_table())
    print(PAGE.relative_to(ROOT), GUIDE.relative_to(ROOT))


if __name__ == "__main__":
    main()
