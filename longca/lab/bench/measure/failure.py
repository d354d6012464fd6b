"""Conversion of exceptions to typed outcomes: out of memory, or an error with a log."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from longca.core import KINDS, LARGEST_INT, PACKAGE_ROOT
from longca.core.errors import storable
from longca.core.schema import MOST_TEXT
from longca.lab.studies import Failed, OutOfMemory
from longca.lab.studies.outcome import MOST_LINE, MOST_LOG, Outcome

LOG_LINES = 30
RAISED_AT = "raised at: "  # prefix of the log line that names the user's code
SOURCE = Path(__file__).parents[4]
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_REQUEST = re.compile(r"(?:tried to allocate|unable to allocate) ([\d.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
_STACK = re.compile(r"^(?:Current thread .*|Stack) \(most recent call first\):\n((?:  .*\n?)*)", re.MULTILINE)
_STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_SIGNS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def failure(error: Exception, where: str) -> Outcome:
    """The outcome of a cell that raised this exception.

    Args:
        where: the stage it was raised in: mask, inputs, prepare, oracle, fwd or bwd.
    """
    for link in _chain(error):
        if _ran_out_of_memory(link):
            return OutOfMemory(requested_bytes=_requested_bytes(str(link)), where=where)
    # records are published: without folders of this machine
    text = "".join(traceback.format_exception(error)).replace(f"{SOURCE}/", "")
    origin = _users_code(error)
    head = [f"while at: {where}", *([f"{RAISED_AT}{origin.replace(f'{SOURCE}/', '')}"] if origin else [])]
    return as_failed(
        type(error).__name__,
        str(error).strip() or type(error).__name__,
        "\n".join([*head, *text.splitlines()[-LOG_LINES:]]),
    )


def as_failed(kind: str, message: str, log: str = "") -> Failed:
    """A failure with texts that are valid in a record, for any output of a process."""
    return Failed(
        type=storable(kind, MOST_LINE // 2),
        message=storable(message, MOST_TEXT // 8),
        log=storable(log, MOST_LOG // 8),
    )


def _users_code(error: BaseException) -> str:
    """The place "file:line in function" of the innermost frame of a plug-in, or of code outside of this
    package and of all libraries.

    A traceback's last lines are often those of a library that the plug-in has called. Empty where no such
    code was running.
    """
    for link in _chain(error):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if _is_users(frame.filename):
                return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""


def place_in_stack(printed: str) -> str:
    """The place "file:line in function" in the last stack that `faulthandler` has printed; empty where it has
    printed none.

    It is the innermost frame of a user's code, if there is one. Else it is the innermost one outside of
    torch.
    """
    stacks = _STACK.findall(printed)
    frames = _STACK_FRAME.findall(stacks[-1]) if stacks else []
    chosen = (
        [frame for frame in frames if _is_users(frame[0])]
        or [frame for frame in frames if "/torch/" not in frame[0]]
        or frames
    )
    return f"{Path(chosen[0][0]).name}:{chosen[0][1]} in {chosen[0][2]}" if chosen else ""


def _is_users(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(PACKAGE_ROOT):
        return any(path.parent == PACKAGE_ROOT / kind.folder for kind in KINDS.values())
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (
        path.is_absolute()
        and not any(path.is_relative_to(folder) for folder in libraries)
        and "site-packages" not in path.parts
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and its causes; compilers wrap the exceptions that they catch."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _ran_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    # torch.OutOfMemoryError is a RuntimeError; torch's other errors of this kind have no type of their own
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def _requested_bytes(message: str) -> int | None:
    match = _REQUEST.search(message)
    if not match:
        return None
    unit = next(size for name, size in _UNITS.items() if name.lower() == match[2].lower())
    return min(int(float(match[1]) * unit), LARGEST_INT)
