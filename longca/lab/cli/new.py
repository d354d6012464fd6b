"""The command `longca new`: a whole plug-in to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, print_filled, print_json

TEMPLATES = ("kernel", "mask", "strategy", "figure")
WHAT = {
    "kernel": "attention in plain torch",
    "mask": "a causal window and the first tokens",
    "strategy": "a gather of the keys that each rank needs",
    "figure": "time against length",
    "function": "attention in plain torch, as a function",
}
TESTS = "python -m pytest"  # of contracts: a checkout has them
NEXT = {  # the next commands, with what they answer
    "kernel": (
        ("longca bench {file}", "right? how fast, beside others?"),
        ("python -m pytest tests/kernels/test_contract_kernels.py -k {name}", "all masks and layouts"),
    ),
    "function": (
        ("longca bench {file}", "right? how fast, beside others?"),
        ("longca bench {file} -m full -m causal_document -d both", "other masks, and backward"),
    ),
    "mask": (
        ("longca list matrix", "which kernels run it?"),
        ("python -m pytest tests/masks/test_contract_masks.py -k {name}", "disjoint, decided by its seed"),
    ),
    "strategy": (
        ("python -m pytest tests/cp/test_strategies.py -k {name}", "right under all masks, on up to 4 ranks"),
    ),
    "figure": (
        ("python -m pytest tests/lab/report/test_figures.py -k {name}", "does it keep the contract?"),
        ("longca report quick", "your figure on the page"),
    ),
}


def command(
    kind: Annotated[
        str,
        typer.Argument(
            help="kernel, mask, strategy or figure",
            autocompletion=lambda: list(TEMPLATES),
            show_default=False,
        ),
    ],
    name: Annotated[
        str, typer.Argument(help="Its name: small letters, digits and underscores", show_default=False)
    ],
    to: Annotated[Path, typer.Option(help="Folder of your plug-ins, for LONGCA_PLUGINS")] = Path("mine"),
    function: Annotated[
        bool, typer.Option("--function", help="Of a kernel: a function alone, for `longca bench`; no plug-in")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a kernel, mask, strategy or figure to begin with.

    The file passes its contract tests as it is. Nothing is overwritten.
    """
    from longca.core import UserError, unknown
    from longca.lab.studies.checkout import is_checkout

    if kind not in TEMPLATES:
        raise unknown("kind", kind, TEMPLATES)
    if function and kind != "kernel":
        raise UserError(f"A {kind} cannot be a function", todo="Leave `--function` out")
    _check_name(kind, name)
    template = "function" if function else kind
    file = _write(kind, name, to, function=function)
    plugins = None if function else to.resolve()
    commands = [
        (line.format(file=file, name=name), answer)
        for line, answer in NEXT[template]
        if is_checkout() or not line.startswith(TESTS)
    ]
    if as_json:
        print_json({"file": file, "plugins": plugins, "next": [line for line, _ in commands]})
        return
    print_filled(f"Wrote {file}: {WHAT[template]}. It is whole; replace its parts by yours.")
    if plugins is not None:
        print(f"\n  export LONGCA_PLUGINS={plugins}\n      every command finds it then")
    for line, answer in commands:
        print(f"\n  {line}\n      {answer}")


def _check_name(kind: str, name: str) -> None:
    from longca.core import Registry, UserError

    if not (name.isidentifier() and name == name.lower() and name.isascii() and not name.startswith("_")):
        raise UserError(
            f"'{name}' is no name of a {kind}",
            why="it names a file and a Python module",
            todo="Use small letters, digits and underscores, a letter first",
        )
    taken = Registry(kind).paths().get(name)
    if taken is not None:
        raise UserError(f"There is a {kind} '{name}' already", why=str(taken), todo="Choose another name")


def _write(kind: str, name: str, to: Path, *, function: bool) -> Path:
    """The new file. Raises UserError if it exists or cannot be written."""
    from longca.core import KINDS, PACKAGE_ROOT, UserError

    words = name.replace("_", " ")
    text = (PACKAGE_ROOT / "lab/templates" / f"{kind}{'_function' if function else ''}.py").read_text(
        encoding="utf-8"
    )
    text = text.replace(f"New{kind.capitalize()}", _class_name(kind, words))
    text = text.replace(f'"New {kind}"', f'"{words[0].upper()}{words[1:]}"').replace("NAME", name)
    file = to / f"{name}.py" if function else to / KINDS[kind].plural / f"{name}.py"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as output:
            output.write(text)
    except FileExistsError:
        raise UserError(
            f"'{file}' is there already", why="nothing is overwritten", todo="Choose another name or folder"
        ) from None
    except OSError as error:
        raise UserError(f"Cannot write '{file}'", why=error.strerror or str(error)) from error
    return file


def _class_name(kind: str, words: str) -> str:
    """ "my gather" → "MyGatherStrategy": it ends with its kind, so that it is none of the names that the file
    imports."""
    last = kind.capitalize()
    own = "".join(word.capitalize() for word in words.split()).removesuffix(last)
    return f"{own or 'My'}{last}"
