"""The command `longca claims`: the study's claims, judged by records."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.lab.cli.options import Json, Results, print_json
from longca.lab.cli.records import columns_of_runs

if TYPE_CHECKING:
    from longca.lab.claims import Claim, Verdict, Verdicts

WIDTH = 80  # columns of a terminal
MOST_SHOWN = 12  # of exceptions and of records; `--json` has all


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            show_default=False,
            help="A study, a folder of results, or files of records (.parquet, .json) [default: the records that come with the project]; a "  # noqa: E501
            "number alone shows that claim, several show these",
        ),
    ] = None,
    number: Annotated[
        list[int] | None,
        typer.Option("--number", "-n", help="Show this claim whole; may be repeated", show_default=False),
    ] = None,
    predicted: Annotated[
        bool,
        typer.Option(
            "--predicted",
            help="Show what is predicted for 8 to 96 H100s, where a claim needs many "
            "GPUs; none of it counts as measured",
        ),
    ] = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Judge the study's claims by records.

    Each has two verdicts: as the study has it, and with repaired code and today's kernels. Says which hold,
    which do not, and what is missing. A claim that does not hold is no error: the exit code is 0.
    """
    from longca.core import UserError
    from longca.lab.claims import MEANINGS, READINGS, STUDY, all_claims, judged, summary
    from longca.lab.claims.evidence import COLUMNS

    wanted = {int(run) for run in runs or [] if _is_number(run)} | set(number or ())
    if predicted:
        _predicted(wanted, as_json)
        return
    sources = [run for run in runs or [] if not _is_number(run)]
    claims = all_claims()
    strange = sorted(wanted - {claim.number for claim in claims})
    if strange:
        raise UserError(
            f"There is no claim '{strange[0]}'",
            why=f"they have the numbers 1 to {claims[-1].number}",
            todo="`longca list claims` shows all",
        )
    asked = [claim for claim in claims if not wanted or claim.number in wanted]
    columns = dict.fromkeys((*COLUMNS, *(name for claim in asked for name in claim.columns)))
    table, problems = columns_of_runs(sources, results, tuple(columns))
    all_verdicts = list(zip(asked, judged(asked, table), strict=True))
    if as_json:
        print_json(
            {
                "summary": summary(verdicts for _, verdicts in all_verdicts),
                "study": STUDY,
                "readings": READINGS,
                "meanings": MEANINGS,
                "claims": [_facts(*both) for both in all_verdicts],
                "problems": [vars(problem) for problem in problems],
            }
        )
        return
    for problem in problems:
        print(f"skipped {problem}")
    if wanted:
        # each takes a page or two: what comes after the first is said at the top
        counted = [_paragraph(f"{summary(verdicts for _, verdicts in all_verdicts)}.")] * (len(wanted) > 1)
        print("\n\n".join([*counted, *(_whole(claim, verdicts) for claim, verdicts in all_verdicts)]))
        return
    defined = [
        _sentence("; ".join(f"{word}: {meaning}" for word, meaning in words.items()))
        for words in (READINGS, MEANINGS)
    ]
    known = (
        f"The study: {STUDY}. Its claims are known from texts about it, since its own tables are not at hand."
    )
    print(
        *(_paragraph(text) for text in (summary(verdict for _, verdict in all_verdicts), known, *defined)),
        sep="\n",
    )
    for claim, verdicts in all_verdicts:
        print("", *_rows(claim, verdicts), sep="\n")


def _predicted(wanted: set[int], as_json: bool) -> None:
    """Predicted verdicts; exit code 2 where a claim has none."""
    import textwrap

    from longca.core import UserError
    from longca.lab.advice.many_gpus import CLAIMS, setting, verdicts

    strange = sorted(wanted - set(CLAIMS))
    if strange:
        raise UserError(
            f"Nothing is predicted of claim '{strange[0]}'",
            todo=f"Claims {', '.join(map(str, CLAIMS))} need several nodes and hang on times: take these",
        )
    predicted = [verdict for number, verdict in sorted(verdicts().items()) if not wanted or number in wanted]
    if as_json:
        print_json(
            {
                "setting": setting(),
                "claims": [
                    {"number": verdict.claim.number, "label": verdict.claim.label, "predicted": True}
                    | vars(verdict.verdict)
                    | {"text": verdict.text}
                    for verdict in predicted
                ],
            }
        )
        return
    print(textwrap.fill(f"Predicted, not measured: {setting()}.", WIDTH))
    for verdict in predicted:
        print()
        print(
            textwrap.fill(
                f"{verdict.claim.number}. {verdict.claim.sentence}", WIDTH, subsequent_indent="    "
            )
        )
        print(
            textwrap.fill(
                verdict.text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
            )
        )


def _is_number(run: str) -> bool:
    return run.isdecimal() and len(run) < 10


def _rows(claim: "Claim", verdicts: "Verdicts") -> list[str]:
    """The claim with its number, beside its two verdicts, then what they rest on; wrapped to 80 columns."""
    from longca.lab.claims import AS_STUDY, REPAIRED

    first = verdicts.as_study
    repaired = verdicts.repaired
    judged = f" [{first.part}]" if first.part else ""
    by_gpu = ", ".join(
        f"{verdict.status} on {verdict.gpu}" if verdict.gpu else verdict.status
        for verdict in (repaired, *repaired.elsewhere)
    )
    texts = [
        f"{_sentence(AS_STUDY)[:-1]}: {first.status}. {_sentence(first.finding + judged)}",
        f"{_sentence(REPAIRED)[:-1]}: {by_gpu}.",
        f"Source: {claim.source_text}.",
    ]
    head = f"{claim.number:>2}  {first.status.upper()}, repaired {repaired.status.upper()}: "
    return [_paragraph(claim.sentence, head, 4), *(_paragraph(text, " " * 4, 4) for text in texts)]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _paragraph(text: str, initial: str = "", indent: int = 0) -> str:
    import textwrap

    return textwrap.fill(
        text, WIDTH, initial_indent=initial, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def _facts(claim: "Claim", verdicts: "Verdicts") -> dict[str, Any]:
    from dataclasses import asdict

    about = ("number", "name", "label", "sentence", "source", "trust", "gpus", "overturned_by")
    return {name: getattr(claim, name) for name in about} | asdict(verdicts)


def _whole(claim: "Claim", verdicts: "Verdicts") -> str:
    """All that is known of one claim, as a few paragraphs."""
    from longca.lab.claims import STUDY

    parts = [
        ("Claim", claim.sentence),
        ("Source", f"{claim.source_text}, {STUDY}"),
        ("Overturned by", claim.overturned_by),
    ]
    lines = [f"{claim.number}. {claim.label}", *_labelled(parts)]
    for name, verdict in verdicts.named:
        lines += ["", f"{_sentence(name)[:-1]}:", *_labelled(_of_verdict(verdict))]
    return "\n".join(lines)


def _of_verdict(verdict: "Verdict") -> "list[tuple[str, str]]":
    """Labels and texts of one verdict."""
    from longca.lab.claims import MEANINGS, OPEN

    against = "Against it" if verdict.status != OPEN else "Against so far"
    parts = [f"{part.name}: {part.status}. {part.finding}" for part in verdict.parts]
    return [
        ("Verdict", f"{verdict.status} ({MEANINGS[verdict.status]})"),
        ("Judged", verdict.part),
        ("Finding", verdict.finding),
        *_list("Parts", tuple(parts)),
        ("Note", verdict.note),
        *(("Elsewhere", text) for text in verdict.told_elsewhere),
        *_list(against, verdict.exceptions),
        *_list("Missing", verdict.missing),
        ("Evidence", _evidence(verdict)),
    ]


def _labelled(parts: "list[tuple[str, str]]") -> list[str]:
    return [_paragraph(text, f"{name:15}", 15) for name, text in parts if text]


def _list(name: str, texts: tuple[str, ...]) -> list[tuple[str, str]]:
    shown = [
        *texts[:MOST_SHOWN],
        *([f"and {len(texts) - MOST_SHOWN} more, which --json names"] if len(texts) > MOST_SHOWN else []),
    ]
    return [(name if index == 0 else "", text) for index, text in enumerate(shown)]


def _evidence(verdict: "Verdict") -> str:
    from longca.lab.store.text import plural

    shown = ", ".join(verdict.cell_ids[: MOST_SHOWN // 3])
    more = len(verdict.cell_ids) - MOST_SHOWN // 3
    rest = f" and {more} more, which --json names" if more > 0 else ""
    return f"{plural(len(verdict.cell_ids), 'cell')}: {shown}{rest}" if shown else "none"
