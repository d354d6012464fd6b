"""The command `longca claims`: the study's claims, judged by records."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.cli.options import Json, Results, print_json
from longca.cli.records import columns_of_runs

if TYPE_CHECKING:
    from longca.claims.contract import Claim, Verdict

WIDTH, VERDICT = 80, 12  # columns of a terminal, and of them for the verdict
MOST_SHOWN = 12  # of exceptions and of records; `--json` has all


def command(
    runs: Annotated[list[str] | None, typer.Argument(
        metavar="[RUN]...", show_default=False,
        help="A study, a folder of results, or files of records (.parquet, .json) [default: the records that come with the project]; a "
             "number alone shows that claim")] = None,
    number: Annotated[int | None, typer.Option("--number", "-n", help="Show this claim whole", show_default=False)] = None,
    predicted: Annotated[bool, typer.Option("--predicted", help="Show what is predicted for 8 to 96 H100s, where a claim needs many "
                                            "GPUs; none of it counts as measured")] = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Judge the study's claims by records.

    Says which hold, which do not, and what is missing. A claim that does not hold is no error: the exit code is 0.
    """
    import textwrap

    from longca.claims.by_gpu import judged
    from longca.claims.contract import all_claims, summary
    from longca.claims.evidence import COLUMNS
    from longca.core.errors import UserError

    if predicted:
        _predicted({int(run) for run in runs or [] if _is_number(run)} | ({number} if number is not None else set()), as_json)
        return
    sources = [run for run in runs or [] if not _is_number(run)]
    wanted = {int(run) for run in runs or [] if _is_number(run)} | ({number} if number is not None else set())
    claims = all_claims()
    strange = sorted(wanted - {claim.number for claim in claims})
    if strange:
        raise UserError(f"There is no claim '{strange[0]}'", why=f"they have the numbers 1 to {claims[-1].number}",
                        todo="`longca list claims` shows all")
    asked = [claim for claim in claims if not wanted or claim.number in wanted]
    columns = dict.fromkeys((*COLUMNS, *(name for claim in asked for name in claim.columns)))
    table, problems = columns_of_runs(sources, results, tuple(columns))
    verdicts = list(zip(asked, judged(asked, table), strict=True))
    if as_json:
        print_json({"summary": summary(verdict for _, verdict in verdicts), "claims": [_facts(*both) for both in verdicts],
                    "problems": [vars(problem) for problem in problems]})
        return
    for problem in problems:
        print(f"skipped {problem}")
    if wanted:
        print("\n\n".join(_whole(claim, verdict) for claim, verdict in verdicts))
    else:
        print(textwrap.fill(summary(verdict for _, verdict in verdicts), WIDTH))
        print("", *(_row(claim, verdict) for claim, verdict in verdicts), sep="\n")


def _predicted(wanted: set[int], as_json: bool) -> None:
    """Predicted verdicts; exit code 2 where a claim has none."""
    import textwrap

    from longca.advice.many_gpus import CLAIMS, setting, verdicts
    from longca.core.errors import UserError

    strange = sorted(wanted - set(CLAIMS))
    if strange:
        raise UserError(f"Nothing is predicted of claim '{strange[0]}'", todo=f"Claims {', '.join(map(str, CLAIMS))} need several nodes "
                        "and hang on times: take these")
    found = [one for number, one in sorted(verdicts().items()) if not wanted or number in wanted]
    if as_json:
        print_json({"setting": setting(), "claims": [{"number": one.claim.number, "label": one.claim.label, "predicted": True}
                                                     | vars(one.verdict) | {"text": one.text} for one in found]})
        return
    print(textwrap.fill(f"Predicted, not measured: {setting()}.", WIDTH))
    for one in found:
        print()
        print(textwrap.fill(f"{one.claim.number}. {one.claim.sentence}", WIDTH, subsequent_indent="    "))
        print(textwrap.fill(one.text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))


def _is_number(run: str) -> bool:
    return run.isdecimal() and len(run) < 10


def _row(claim: "Claim", verdict: "Verdict") -> str:
    """Number, verdict and finding, wrapped to 80 columns."""
    import textwrap
    from itertools import zip_longest

    left, right = textwrap.wrap(verdict.status, VERDICT), textwrap.wrap(_finding(verdict), WIDTH - VERDICT - 6, break_on_hyphens=False)
    lines = zip_longest([str(claim.number)], left, right, fillvalue="")
    return "\n".join(f"{number:>2}  {status:{VERDICT}}  {finding}".rstrip() for number, status, finding in lines)


def _finding(verdict: "Verdict") -> str:
    """The finding, and the part of the claim that it is about; then the verdicts of other GPUs."""
    own = f"{verdict.finding} [{verdict.part}]" if verdict.part else verdict.finding
    return ". ".join((own, *verdict.told_elsewhere))


def _facts(claim: "Claim", verdict: "Verdict") -> dict[str, Any]:
    from dataclasses import asdict

    about = ("number", "name", "label", "sentence", "source", "trust", "gpus", "overturned_by")
    return {name: getattr(claim, name) for name in about} | asdict(verdict)


def _whole(claim: "Claim", verdict: "Verdict") -> str:
    """All that is known of one claim, as a few paragraphs."""
    import textwrap

    parts = [("Claim", claim.sentence), ("Source", f"{claim.source} ({claim.trust})"), ("Verdict", verdict.status),
             ("Judged", verdict.part), ("Finding", verdict.finding), ("Note", verdict.note),
             *(("Elsewhere", text) for text in verdict.told_elsewhere),
             *_list("Against it" if verdict.status != "open" else "Against so far", verdict.exceptions), *_list("Missing", verdict.missing),
             ("Overturned by", claim.overturned_by), ("Evidence", _evidence(verdict))]
    lines = [f"{claim.number}. {claim.label}"]
    lines += [textwrap.fill(text, WIDTH, initial_indent=f"{name:15}", subsequent_indent=" " * 15, break_on_hyphens=False)
              for name, text in parts if text]
    return "\n".join(lines)


def _list(name: str, texts: tuple[str, ...]) -> list[tuple[str, str]]:
    shown = [*texts[:MOST_SHOWN], *([f"and {len(texts) - MOST_SHOWN} more, which --json names"] if len(texts) > MOST_SHOWN else [])]
    return [(name if index == 0 else "", text) for index, text in enumerate(shown)]


def _evidence(verdict: "Verdict") -> str:
    from longca.store.text import plural

    shown = ", ".join(verdict.cell_ids[:MOST_SHOWN // 3])
    more = len(verdict.cell_ids) - MOST_SHOWN // 3
    rest = f" and {more} more, which --json names" if more > 0 else ""
    return f"{plural(len(verdict.cell_ids), 'cell')}: {shown}{rest}" if shown else "none"
