"""The command `longca list`: the plug-ins that exist."""

import functools
from typing import Annotated, Any

import typer

from longca.core import KINDS, Registry, UserError, unknown
from longca.lab.cli.options import Json, line_width, only_given, print_json

MATRIX = "matrix"
OF_MATRIX = ("seqlen", "new_tokens", "heads", "head_dim", "dtype", "device")  # options of it alone
# many, and asked for by themselves: the overview counts them
MOST_NAMES_OF = "paper_figures", "claims", "figures"


def _plurals() -> list[str]:
    return [kind.plural for kind in KINDS.values()]


def command(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            help="masks, kernels, strategies, corpora, figures, paper_figures or claims; or matrix: "
            "which kernel runs which mask",
            show_default=False,
            autocompletion=lambda: [*_plurals(), MATRIX],
        ),
    ] = None,
    seqlen: Annotated[str, typer.Option("--seqlen", "-s", help="Of the matrix: tokens")] = "8K",
    new_tokens: Annotated[
        str | None,
        typer.Option(
            help="Of the matrix: queries, the last tokens of a longer context  [default: all tokens]",
            show_default=False,
        ),
    ] = None,
    heads: Annotated[str, typer.Option(help="Of the matrix: query and KV heads")] = "64:8",
    head_dim: Annotated[int, typer.Option(min=1, help="Of the matrix: size of one head")] = 128,
    dtype: Annotated[str, typer.Option(help="Of the matrix: bf16, fp16 or fp32")] = "bf16",
    device: Annotated[
        str | None,
        typer.Option(
            help="Of the matrix: all kernels as on cpu or cuda  [default: those of this machine]",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show all of each, with its file; of the matrix the reasons"),
    ] = False,
    as_json: Json = False,
) -> None:
    """List masks, kernels, strategies, corpora, figures and claims.

    Each has a line. Beside each kernel and strategy stands whether it can run here. Without a kind: an
    overview.
    """
    if kind == MATRIX:
        from longca.lab.cli.matrix import show_matrix

        show_matrix(
            seqlen,
            heads,
            head_dim,
            dtype,
            device,
            here=device_type(),
            reasons=verbose,
            as_json=as_json,
            new_tokens=new_tokens,
        )
        return
    given = only_given(context)
    # the values do not matter, but that they were given
    ignored = [name for name in OF_MATRIX if given(name, True)]
    if ignored:
        raise UserError(
            f"'--{ignored[0].replace('_', '-')}' is for the matrix of kernels and masks",
            todo=f"Leave it out, or ask for `longca list {MATRIX}`",
        )
    by_plural = {known.plural: known.name for known in KINDS.values()} | {
        known.name: known.name for known in KINDS.values()
    }
    if kind is not None and kind not in by_plural:
        raise unknown("kind", kind, [*_plurals(), MATRIX])
    kinds = [by_plural[kind]] if kind else list(KINDS)
    plugins = {
        KINDS[name].plural: [_facts(name, plugin) for plugin in sorted(Registry(name).load_all(), key=_place)]
        for name in kinds
    }
    if as_json:
        print_json(plugins)
    elif verbose:
        for plural, rows in plugins.items():
            _print_paragraphs(plural, rows)
    elif kind is None:
        _print_overview(plugins)
    else:
        ((plural, rows),) = plugins.items()
        _print_lines(plural, rows)


def _print_overview(plugins: dict[str, list[dict[str, Any]]]) -> None:
    """Number and names of each kind; of kernels and strategies first those that run here."""
    import textwrap

    width = max(map(len, plugins)) + 2

    def show(title: str, names: list[str]) -> None:
        if names:
            print(
                textwrap.fill(
                    ", ".join(names),
                    line_width(),
                    initial_indent=f"{title:<{width}}",
                    subsequent_indent=" " * width,
                )
            )

    print(
        textwrap.fill(", ".join(_count(plural, rows) for plural, rows in plugins.items()) + ".", line_width())
    )
    for plural, rows in plugins.items():
        if plural in MOST_NAMES_OF:
            continue
        print()
        show(plural, [row["name"] for row in rows if row.get("runs_here", True)])
        show("  not here", [row["name"] for row in rows if not row.get("runs_here", True)])
    print()
    print(
        textwrap.fill(
            "`longca list KIND` has a line for each; `longca list matrix` says which kernel runs which mask.",
            line_width(),
        )
    )


def _count(plural: str, rows: list[dict[str, Any]]) -> str:
    """ "27 kernels (9 run here)"."""
    here = [row["runs_here"] for row in rows if "runs_here" in row]
    return f"{len(rows)} {plural.replace('_', ' ')}" + (f" ({sum(here)} run here)" if here else "")


def _print_lines(plural: str, rows: list[dict[str, Any]]) -> None:
    """One line a plug-in, cut at the terminal's width: what it is, and why it cannot run here."""
    print(f"{_count(plural, rows)}. `-v` shows all of each, with its file.")
    width = max((len(row["name"]) for row in rows), default=0) + 2
    for row in rows:
        number = f"{row['no.'] or '':>3} " if "no." in row else ""
        text = row.get("visible iff") or row.get("summary") or row.get("label", "")
        head = f"{number}{row['name']:<{width}}"
        if row.get("runs_here", True):
            print(_cut(f"{head}{text}", line_width()))
            continue
        line = f"{head}{text}; not here: {row['reason']}"
        mark = "; not here"
        print(
            line if len(line) <= line_width() else f"{_cut(f'{head}{text}', line_width() - len(mark))}{mark}"
        )


def _print_paragraphs(plural: str, rows: list[dict[str, Any]]) -> None:
    """All of each plug-in: its name, then a line for each fact, wrapped between words."""
    import textwrap

    print(f"{_count(plural, rows)}.")
    for row in rows:
        print(f"\n{row['name']}")
        for fact, value in row.items():
            if fact == "name" or value in (None, ""):
                continue
            text = ("no", "yes")[value] if isinstance(value, bool) else value
            print(
                textwrap.fill(
                    f"{fact.replace('_', ' ')}: {text}",
                    line_width(),
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )


def _cut(line: str, width: int) -> str:
    """The line, cut after a word where it is too long."""
    if len(line) <= width:
        return line
    start = line[: width - 1]
    whole = start.rpartition(" ")[0].rstrip(" :;,")
    return f"{whole if len(whole) > 2 * width / 3 else start}…"


def _place(plugin: Any) -> tuple[float, str]:
    """Sort key: plug-ins with a number first, by that number, then the others by name."""
    number = getattr(plugin, "number", None)
    return (float("inf") if number is None else number), plugin.name


def _facts(kind: str, plugin: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": plugin.name}
    if kind == "mask":
        facts |= {
            "no.": plugin.number,
            "family": plugin.family,
            "visible iff": plugin.definition,
            "parameters": _parameters(plugin),
        }
    elif kind == "kernel":
        facts |= {"label": plugin.label, "family": plugin.family, "summary": plugin.summary, **_here(plugin)}
    elif kind == "strategy":
        facts |= {
            "label": plugin.label,
            "summary": plugin.summary,
            "parameters": _parameters(plugin),
            **_here(plugin),
        }
    elif kind == "corpus":
        facts |= {"label": plugin.label, "summary": plugin.summary}
    elif kind in ("figure", "paper_figure"):
        facts |= {"label": plugin.label} | {"section": plugin.section, "caption": plugin.caption}
    elif kind == "claim":
        facts |= {"no.": plugin.number, "label": plugin.label, "needs": plugin.gpus}
    return facts | {"file": str(plugin.path)}


def _here(plugin: Any) -> dict[str, Any]:
    """`runs_here`, and the reason if it does not."""
    reason = plugin.available(device_type())
    return {"runs_here": reason is None, "reason": reason}


def _parameters(plugin: Any) -> str:
    """Parameters with their defaults; without one where it is off, or where the plug-in chooses by itself."""
    params = {name: value for name, value in plugin.Params().model_dump().items() if value is not False}
    return ", ".join(name if value is None else f"{name}={value}" for name, value in params.items())


@functools.cache
def device_type() -> str:
    """ "cuda" if this machine has an NVIDIA GPU that its driver shows, else "cpu"; without importing
    torch."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return "cuda" if pynvml.nvmlDeviceGetCount() else "cpu"
    except Exception:  # no library, no driver, no device: whatever NVML says, there is no GPU to use
        return "cpu"
