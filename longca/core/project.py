"""The project, whose `config` is in force.

A wheel is used away from any checkout. It holds a copy of the checkout's `config` and records in the package.
"""

from pathlib import Path

from longca.core.plugin import PACKAGE_ROOT

ROOT = PACKAGE_ROOT.parent  # of the checkout, of a copy of it, or of an unpacked bundle
MARK = Path("config/studies")  # a folder that has it is a project
SHIPPED = PACKAGE_ROOT / "shipped"  # in a wheel: `config`, the project's own records and COMMIT, by setup.py


def project_root() -> Path:
    """The working folder or the nearest one above it that is a project; else `origin`.

    The working folder is `Path()`, so that messages show relative paths.
    """
    here = Path.cwd()
    if (here / "config").is_dir():
        return Path()
    above = next((folder for folder in here.parents if (folder / MARK).is_dir()), None)
    if above is not None:
        return above
    return origin() or Path()


def origin() -> Path | None:
    """The folder with the `config` and records that longca came with: its checkout, or what its wheel holds.

    None for a package that was copied out of both.
    """
    return next((folder for folder in (ROOT, SHIPPED) if (folder / MARK).is_dir()), None)


def in_project(path: Path) -> Path:
    """The path of a file or folder of the project."""
    return project_root() / path
