"""The project: the folder whose `config` is in force. Commands find it from any folder."""

from pathlib import Path

from longca.core.plugin import PACKAGE_ROOT

MARK = Path("config/studies")  # a folder that has it is a project


def project_root() -> Path:
    """The working folder or the nearest one above it that is a project; else the checkout of the package; else the working folder.

    It is `Path()` for the working folder, so that messages name files as the user would.
    """
    here = Path.cwd()
    if (here / "config").is_dir():
        return Path()
    above = next((folder for folder in here.parents if (folder / MARK).is_dir()), None)
    if above is not None:
        return above
    checkout = PACKAGE_ROOT.parent
    return checkout if (checkout / MARK).is_dir() else Path()


def in_project(path: Path) -> Path:
    """The place of a file or folder of the project."""
    return project_root() / path


def home_of_results() -> Path:
    """The folder that a relative folder of results lies in: the project around the working folder, or else the working folder."""
    root = project_root()
    return root if Path.cwd().is_relative_to(root.absolute()) else Path()
