"""The commands `longca data`: corpora, their documents and a study's masks."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from longca.lab.cli.options import Json, StudyName, open_study, print_filled, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Corpora: document lengths, built-in or from your own files.")
Out = Annotated[Path | None, typer.Option(help="File to write instead of printing", show_default=False)]


@app.command("list")
def list_corpora(as_json: Json = False) -> None:
    """List corpora with their sizes."""
    from longca.core import Registry

    rows = [
        {
            "name": corpus.name,
            "documents": corpus.num_documents,
            "mean length": round(corpus.mean_length),
            "summary": corpus.summary,
        }
        for corpus in Registry("corpus").load_all()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(f"{len(rows)} corpora", list(rows[0]), [list(row.values()) for row in rows])


@app.command()
def show(
    name: str,
    seqlen: Annotated[str, typer.Option("--seqlen", "-s", help="Length to draw at")] = "8K",
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Seed of the draw")] = 0,
    as_json: Json = False,
) -> None:
    """Show a corpus and one draw of its documents."""
    from longca.core import MOST_TOKENS, Registry, UserError, parse_length
    from longca.data import sample_documents

    corpus = Registry("corpus").load(name)
    try:
        num_tokens = parse_length(seqlen)
    except ValueError as error:
        raise UserError(str(error)) from None
    if num_tokens > MOST_TOKENS:
        raise UserError(f"{num_tokens} tokens are too many", todo=f"Give at most {MOST_TOKENS}")
    lengths = sample_documents(name, num_tokens, seed=seed).tolist()
    if as_json:
        print_json(
            {
                "name": name,
                "num_documents": corpus.num_documents,
                "mean_length": corpus.mean_length,
                "drawn": lengths,
            }
        )
        return
    print_filled(f"{corpus.label}: {corpus.summary}")
    print_filled(f"{corpus.num_documents:,} documents, {corpus.mean_length:,.0f} tokens each on average")
    print_filled(
        f"{num_tokens:,} tokens with seed {seed}: {len(lengths)} documents, the longest of {max(lengths):,} "
        f"tokens"
    )
    print_filled(" ".join(str(length) for length in lengths))


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="Name of the new corpus")],
    files: Annotated[list[str], typer.Argument(help="Files, folders or globs: .jsonl, .txt, .parquet")],
    field: Annotated[
        str, typer.Option(help="Field of JSONL or column of Parquet that holds the text")
    ] = "text",
    separator: Annotated[
        str | None, typer.Option(help="What divides documents in a text file", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json; without it, lengths are bytes", show_default=False)
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to write it", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a corpus of that name")] = False,
) -> None:
    """Make a corpus from your own documents."""
    from longca.data import build_corpus

    print(
        build_corpus(
            name, files, field=field, separator=separator, tokenizer=tokenizer, folder=folder, force=force
        )
    )


@app.command()
def sample(study: StudyName = None, out: Out = None) -> None:
    """Draw the documents of a study's masks."""
    from longca.lab.studies import sample_table

    _, chosen, _ = open_study(study)
    _write(sample_table(chosen.cells()), out)


@app.command()
def masks(study: StudyName = None, out: Out = None) -> None:
    """Build a study's masks: what was drawn, area, digest and the time it took."""
    from longca.lab.studies import mask_table

    _, chosen, _ = open_study(study)
    _write(mask_table(chosen.cells()), out)


def _write(rows: list[dict[str, Any]], out: Path | None) -> None:
    if out is None:
        print_json(rows)
        return
    from longca.lab.store import replace_file

    replace_file(out, json.dumps(rows, indent=1).encode() + b"\n")
    print(f"{len(rows)} rows → {out}")
