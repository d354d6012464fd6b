"""Faces of packages: the names that a package offers to others, each loaded at its first use.

The `__init__` of `longca.masks`, say, has

    if TYPE_CHECKING:
        from longca.masks import band           # a module, offered as a whole
        from longca.masks.traits import Traits  # a name in a module
    else:
        __getattr__, __dir__ = face(__name__)

    __all__ = ["Traits", "band"]

The block for type checkers is the only list of where names come from. `offers` reads it as text, so type
checkers, running code and digests of methods (`longca.lab.code`) cannot disagree. Linters hold `__all__` to
it.
"""

import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

BLOCK = re.compile(
    r"^if TYPE_CHECKING:\n((?:[ \t]+[^\n]*\n|\n)+)else:\n[ \t]+__getattr__, __dir__ = face\(__name__\)$",
    re.MULTILINE,
)
IMPORT = re.compile(r"^[ \t]+from ([.\w]+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
COMMENT = re.compile(r"#[^\n]*")

Offers = Mapping[str, tuple[str, str]]


def face(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package that loads what it offers at the first use.

    Each look-up asks the module that defines the name, so a name that is replaced there is replaced here.
    """

    @functools.cache
    def offered() -> Offers:
        return offers(_source(package), package)

    def __getattr__(name: str) -> Any:
        if name.startswith("__") or name not in offered():
            module = sys.modules[package]
            raise AttributeError(f"module '{package}' has no attribute '{name}'", name=name, obj=module)
        origin, attribute = offered()[name]
        module = importlib.import_module(origin)
        return getattr(module, attribute) if attribute else module

    def __dir__() -> list[str]:
        module = vars(sys.modules[package])
        return sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})

    return __getattr__, __dir__


def offers(source: str, package: str) -> Offers:
    """Name that a package loads at its first use → its module, and the name there: "" for a whole module.

    Args:
        source: the text of the package's `__init__`; one without a face offers nothing.
        package: its full name.
    """
    block = BLOCK.search(source)
    return {
        words[-1]: (f"{module}.{words[0]}", "") if module == package else (module, words[0])
        for module, names in (IMPORT.findall(COMMENT.sub("", block[1])) if block else ())
        for part in names.strip("()").split(",")
        if (words := part.split())
    }


def _source(package: str) -> str:
    spec = sys.modules[package].__spec__
    loader: Any = spec.loader if spec else None
    if spec is None or not hasattr(loader, "get_data"):
        raise ImportError(f"{package} loads its names by its source file, which is not here")
    return loader.get_data(spec.origin).decode()
