"""Child processes that import exactly the package of their parent.

A parent starts this file as a script. It binds the name `longca` to the package that contains this file,
before any other import, and then calls `main()` of the module that the parent names. So the result does not
depend on Python's search for `longca`: on an installed package, PYTHONPATH, or the working folder.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def python(*arguments: str) -> list[str]:
    """The beginning of the command for a child: `[*python("-u"), "-m", module, …]`, where the module has a
    function `main()`.

    Python imports no module from the working folder, where a user's `random.py` could shadow Python's.

    Args:
        arguments: options of Python.
    """
    return [sys.executable, "-P", *arguments, str(Path(__file__).resolve())]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """A child's environment: PYTHONPATH without empty entries, which mean the working folder and are rarely
    intended."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    others = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": os.pathsep.join(entries)} if entries else others


def _main(words: Sequence[str]) -> None:
    """Run `-m module argument …` as a child."""
    folder = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "longca", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = sys.modules["longca"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))  # for processes that a library starts with this path
    _, name, *arguments = words
    sys.argv[:] = [name, *arguments]
    importlib.import_module(name).main()


if __name__ == "__main__":
    _main(sys.argv[1:])
