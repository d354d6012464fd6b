"""Options that several commands share, and their output as tables and JSON."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.core import Registry, escaped, parse
from longca.core.reading import project_root
from longca.lab.studies import Config, Selection, Study, check_new_tokens, load_config, load_study
from longca.lab.studies.checkout import home_of_results, studies_folder

if TYPE_CHECKING:
    from rich.console import Console


def _studies() -> list[str]:
    return sorted(path.stem for path in studies_folder().glob("*.yaml"))


def _names(kind: str) -> Any:
    return lambda: Registry(kind).names()


StudyName = Annotated[
    str | None,
    typer.Argument(
        help="Name in config/studies, or a YAML file [default: the configured one]",
        autocompletion=_studies,
        show_default=False,
    ),
]
Results = Annotated[Path | None, typer.Option(help="Folder of results", show_default=False)]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait", min=0, help="Seconds to wait for another run on the device, before it ends with exit code 2"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
KernelFilter = Annotated[
    str,
    typer.Option(
        "--kernel", "-k", help="Only these kernels: 'sdpa,fl*', '!naive'", autocompletion=_names("kernel")
    ),
]
StrategyFilter = Annotated[
    str,
    typer.Option(
        "--strategy",
        "-c",
        help="Only these strategies, perhaps with a kernel: 'usp,ring_p2p+fa3'; '!*' for kernels alone",
        autocompletion=_names("strategy"),
    ),
]
MaskFilter = Annotated[
    str, typer.Option("--mask", "-m", help="Only these masks: 'causal*'", autocompletion=_names("mask"))
]
DirectionFilter = Annotated[str, typer.Option("--direction", "-d", help="fwd or bwd")]
SeqlenFilter = Annotated[str, typer.Option("--seqlen", "-s", help="Only these lengths: '8K', '1K..8K'")]
NewTokensFilter = Annotated[
    str,
    typer.Option("--new-tokens", help="Only cells with so many new tokens after a context: '1K', '1K..16K'"),
]
NewTokens = Annotated[
    str | None,
    typer.Option(
        help="Queries, which are the last tokens of a longer context: 1K  [default: all tokens]",
        show_default=False,
    ),
]
HeadsFilter = Annotated[str, typer.Option("--heads", help="Only these head counts: '64:8', '64:8,64:64'")]
WorldFilter = Annotated[str, typer.Option("--world", "-w", help="Only these numbers of ranks")]
SeedFilter = Annotated[str, typer.Option("--seed", help="Only these seeds: '0', '0..2'")]


def mask_choice(text: str) -> str | dict[str, dict[str, Any]]:
    """A mask as studies have it, from "causal" or "sliding_window:window=512,…". Raises UserError."""
    from longca.core import UserError

    name, colon, given = text.partition(":")
    if not colon:
        return name
    pairs = [pair.partition("=") for pair in given.split(",")]
    if not all(key.strip() and equals and value.strip() for key, equals, value in pairs):
        raise UserError(
            f"'{text}' is no mask with parameters",
            todo="Write NAME:KEY=VALUE,KEY=VALUE, such as sliding_window:window=512",
        )
    return {name: {key.strip(): _scalar(value.strip()) for key, _, value in pairs}}


def only_given(context: typer.Context) -> Callable[[str, Any], Any]:
    """A function of a parameter's name and a value: the value, or None if its option was left out."""
    # the name of the enumeration differs among versions of click
    not_given = {
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") in ("DEFAULT", "DEFAULT_MAP")
    }
    return lambda name, value: None if name in not_given else value


def check_one_mask(argument: str | None, option: str) -> None:
    """Refuse an argument and an option that name two masks. Raises UserError."""
    from longca.core import Registry, UserError

    if argument and argument != option and argument.partition(":")[0] in Registry("mask").names():
        raise UserError(f"Two masks are given, {argument!r} and {option!r}", todo="Name one")


def check_call(seqlen: str, heads: str, head_dim: int, dtype: str, new_tokens: str | None = None) -> None:
    """Refuse a call in the words of the options; those of a study would name its keys. Raises UserError."""
    from longca.core import (
        DTYPE_BYTES,
        MOST_HEADS,
        MOST_TOKENS,
        UserError,
        check_name,
        parse_heads,
        parse_length,
    )

    check_name("dtype", dtype, DTYPE_BYTES)
    try:
        num_tokens = parse_length(seqlen)
        num_heads = parse_heads(heads)
        if new_tokens is not None:
            check_new_tokens(parse_length(new_tokens), num_tokens)
    except ValueError as error:
        raise UserError(str(error)) from None
    for what, number, most in (
        ("tokens", num_tokens, MOST_TOKENS),
        ("heads", max(num_heads), MOST_HEADS),
        ("as its head dim", head_dim, MOST_HEADS),
    ):
        if not 1 <= number <= most:
            raise UserError(
                f"A call cannot have {number} {what}", todo=f"Give a whole number from 1 to {most}"
            )


def _scalar(text: str) -> Any:
    """true, false, a whole number, a number or text, whichever it is first."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def selection(
    kernel: str,
    strategy: str,
    mask: str,
    direction: str,
    seqlen: str,
    world: str = "",
    seed: str = "",
    heads: str = "",
    new_tokens: str = "",
) -> Selection:
    filters = {
        "kernel": kernel,
        "strategy": strategy,
        "mask": mask,
        "direction": direction,
        "seqlen": seqlen,
        "world": world,
        "seed": seed,
        "heads": heads,
        "new_tokens": new_tokens,
    }
    return parse(Selection, filters, "Options")


def open_study(name: str | None, **overrides: Any) -> tuple[Config, Study, Path]:
    """Load (settings, study, the study's folder of results)."""
    config = load_config({"study": name, **overrides})
    study = load_study(config.study)
    return config, study, config.results / study.name


def announce_results(folder: Path, asked: Path | None) -> None:
    """Say on stderr where results go, where nobody has said so and the working folder is no project."""
    if asked is None and (project_root() != Path() or home_of_results() != Path()):
        import sys

        print(f"Results go to {folder.resolve()}", file=sys.stderr)


def print_json(data: Any) -> None:
    import json

    from longca.lab.cli.terminal import escaped_json

    print(escaped_json(json.dumps(data, indent=2, ensure_ascii=False, default=str)))


def line_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    import shutil

    return shutil.get_terminal_size().columns


def print_text(text: str, style: str = "") -> None:
    """Print a paragraph, wrapped to the terminal."""
    _console().print(escaped(text), style=style or None)


def _console() -> "Console":
    """The writer that wraps and styles text; it must be given escaped text. A name may hold brackets, so
    there is no markup."""
    from rich.console import Console

    from longca.lab.cli.terminal import styled_output

    return Console(file=styled_output(), markup=False, emoji=False, highlight=False)


def show_step(step: str, *, logged: bool = True) -> None:
    """Say on stderr what is done now; on a terminal in one line, which the next step replaces and ""
    clears.

    Args:
        logged: also where stderr is no terminal. Steps that a user's mistake may end are not, so that an
            error is one line.
    """
    import sys

    if sys.stderr.isatty():
        width = line_width() - 1
        print(f"\r{escaped(step):<{width}.{width}}", end="\r", file=sys.stderr, flush=True)
    elif step and logged:
        print(escaped(step), file=sys.stderr, flush=True)


def print_filled(text: str) -> None:
    """Print a line, wrapped to the terminal between words. Paths and commands stay whole, so that they can be
    copied."""
    import textwrap

    print(textwrap.fill(text, line_width(), break_long_words=False, break_on_hyphens=False))


def print_command(text: str, command: str) -> None:
    """Print a text and a command after it, which stays whole: in a line of its own where both are too
    long."""
    gap = " " if len(f"{text} {command}") <= line_width() else "\n  "
    print(f"{text}{gap}{command}")


def print_table(title: str, columns: list[str], rows: list[list[Any]], caption: str = "") -> None:
    """Print a table that fits the terminal: numbers on the right, text on the left, long text wrapped. The
    shortest columns stay whole, so that no number is broken; a heading of several words may take a line for
    each of them."""
    from rich import box
    from rich.table import Table

    console = _console()
    texts = [
        [
            "" if value is None else f"{value:,}" if isinstance(value, int) else escaped(str(value))
            for value in row
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    headings = columns
    gaps = len(columns) - 1
    is_tight = sum(widths) + _GAP * gaps + _EDGES > console.width
    gap = _TIGHT_GAP if is_tight else _GAP
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=is_tight)
    if sum(widths) + gap * gaps + _EDGES > console.width:
        rest = [max(map(len, column), default=0) for column in zip(*texts, strict=True)] or [0] * len(columns)
        headings = [
            "\n".join(name.split()) if len(name) > width else name
            for name, width in zip(columns, rest, strict=True)
        ]
        widths = [max(width, *map(len, name.split("\n"))) for name, width in zip(headings, rest, strict=True)]
    whole = _whole_columns(widths, console.width, gap)
    for index, column in enumerate(headings):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(
            escaped(column),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=index == 0 or index in whole,
        )
    for row in texts:
        table.add_row(*row)
    if title:
        console.print(escaped(title), style="bold")
    console.print(table)
    if caption:
        console.print(escaped(caption), style="italic")


_GAP = 3  # between the columns of a table
_TIGHT_GAP = 2  # where the table is too wide otherwise
_EDGES = 2  # left and right of it


def _whole_columns(widths: list[int], room: int, gap: int) -> set[int]:
    """The columns that need not be wrapped, the narrowest first, with room left for the others."""
    whole: set[int] = set()
    least = 10  # of a column that is wrapped
    for index in sorted(range(len(widths)), key=widths.__getitem__):
        rest = sum(
            min(least, width) for other, width in enumerate(widths) if other not in whole and other != index
        )
        if (
            sum(widths[other] for other in whole) + widths[index] + rest + gap * (len(widths) - 1) + _EDGES
            <= room
        ):
            whole.add(index)
    return whole
