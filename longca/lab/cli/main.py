"""The command `longca`: one file for each sub-command; errors are caught here."""

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from io import TextIOWrapper
from types import ModuleType
from typing import Annotated, Any

import typer

from longca.core import UserError
from longca.lab.cli.terminal import (
    escaped_output,
    open_closed_streams,
    patient_output,
    say_error,
    until_reader_leaves,
)

COMMANDS = (  # in the order of use
    "doctor",
    "list",
    "explain",
    "choose",
    "advise",
    "probe",
    "new",
    "bench",
    "plan",
    "run",
    "status",
    "export",
    "report",
    "claims",
    "paper",
    "compare",
    "environment",
    "records",
    "archive",
    "verify",
    "data",
    "image",
    "config",
    "clean",
)

MODULES = {"records": "records_command"}  # the others have modules of their own names

MEASURING = ("doctor", "probe", "bench", "run")  # their processes have as many threads as libraries want
# garbage is looked for seldom: with 100,000 records in memory the usual thresholds cost a third of the time
COLLECT = 100_000, 20, 20
NO_MEMORY = 3  # this machine cannot


def build_app(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with these sub-commands. Each is imported, which for all of them takes longer than
    most do."""
    app = typer.Typer(
        name="longca",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Measure attention for long contexts, and report what was measured.",
        epilog=(
            "Exit codes: 0 done, 1 a verdict (something failed or differs), 2 bad input, 3 this machine "
            "cannot."
        ),
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version", is_eager=True, callback=_version)
        ] = False,
    ) -> None:
        """Measure attention for long contexts, and report what was measured."""

    for name in names:
        module = command_module(name)
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.command)
    return app


def command_module(name: str) -> ModuleType:
    """The module with `command`, or with `app` for a group of commands."""
    return importlib.import_module(f"longca.lab.cli.{MODULES.get(name, name)}")


def asked(words: Sequence[str]) -> Sequence[str]:
    """The sub-command that these words of a command line name; all where they name none, for help and for the
    nearest of a wrong name."""
    first = next((word for word in words if not word.startswith("-")), "")
    return (first,) if first in COMMANDS else COMMANDS


def _version(asked: bool) -> None:
    if asked:
        from longca.core import VERSION

        print(f"longca {VERSION}")
        raise typer.Exit


def main() -> None:
    """Run the command line; a UserError or a wrong option becomes a message of one line and exit code 2."""
    closed = open_closed_streams()
    names = asked(sys.argv[1:])
    if not set(names) & set(
        MEASURING
    ):  # numpy's library of linear algebra starts a thread for each core, for which nothing is to do
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    elif signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a script has started it in the background: who asks it to end means it
    gc.set_threshold(*COLLECT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be no Unicode
    is_measuring = bool(set(names) & set(MEASURING)) and len(names) == 1
    if "stdout" in closed and not is_measuring:
        say_error(UserError("Cannot use 'standard output'", why="it is closed"))
        sys.exit(UserError.exit_code)
    with patient_output() if is_measuring else nullcontext():
        _run(names)


def _with_value(error: Any) -> str:
    """The message of a wrong option or argument, with the value that was given: newer versions of typer leave
    it out, and have it in the error of Pydantic that was the cause."""
    message = str(error.format_message())
    problems = getattr(error.__cause__, "errors", list)()
    if not problems:
        return message
    value = repr(problems[0].get("input"))
    message = message.partition(", unable to parse")[0].replace("Input should be", "it should be")
    return message.replace("Invalid value for", f"Invalid value {value} for", 1)


def _run(names: Sequence[str]) -> None:
    usage_error: Any = typer.BadParameter.__base__  # its package differs among versions of typer
    try:
        with until_reader_leaves(), escaped_output():
            sys.exit(build_app(names)(prog_name="longca", standalone_mode=False) or 0)
    except usage_error as error:
        message = _with_value(error)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message, file=sys.stderr)
        else:
            path = error.ctx.command_path if error.ctx else "longca"
            say_error(UserError(message.rstrip("."), todo=f"`{path} -h` shows what there is"))
        sys.exit(error.exit_code)
    except UserError as error:
        say_error(error)
        sys.exit(error.exit_code)
    except OSError as error:  # of a file that nothing else has told of: most often it is not readable, or its name is too long  # noqa: E501
        name = f"'{error.filename}'" if error.filename is not None else "a file"
        say_error(UserError(f"Cannot use {name}", why=error.strerror or str(error)))
        sys.exit(UserError.exit_code)
    except MemoryError:
        say_error(
            UserError("There is not enough memory for this", todo="Ask for less, or use a larger machine")
        )
        sys.exit(NO_MEMORY)
    except (KeyboardInterrupt, typer.Abort):  # also the end of input where a question was asked
        sys.exit(130)
