"""The project files of a bundle, which are needed to repeat its study."""

from pathlib import Path

from longca.core import UserError, plugin_folders
from longca.lab.archive import manifest
from longca.lab.archive.packing import BundleFile
from longca.lab.studies.checkout import git

# untracked files belong to the project only in these folders
OWN = ("config", "containers", "longca", "workflow")
SITE = "config/site.yaml"  # settings of one cluster, not part of a study
MEASURED = "measured"  # folder of the records and of the page
PLUGINS = "plugins"
# files of a bundle that do not belong to the project
MADE = (manifest.NAME, "BUNDLE.md", "COMMIT", "provenance.json", "ro-crate-metadata.json")


def project_files(root: Path) -> dict[str, BundleFile]:
    """Path → present content. Links to folders are replaced by the folders' files, so that bundles have no
    links.

    Raises:
        UserError: `root` is neither a Git checkout nor an unpacked bundle.
    """
    names = _of_checkout(root) if (root / ".git").exists() else _of_bundle(root)
    if names is None:
        raise UserError(
            f"Which files of '{root}' belong to longca is not known",
            why="it is neither a Git checkout nor an unpacked bundle",
            todo="Archive from a clone, with Git installed",
        )
    files: dict[str, BundleFile] = {}
    for name in names:
        source = root / name
        if source.is_dir():
            files |= {
                f"{name}/{path.relative_to(source).as_posix()}": _entry(path)
                for path in source.rglob("*")
                if path.is_file()
            }
        elif source.is_file():  # otherwise it was deleted meanwhile
            files[name] = _entry(source)
    return files


def plugin_files() -> dict[str, BundleFile]:
    """Path below `plugins` → file: external plug-ins that records may depend on. The same name in two folders
    is an error."""
    return {
        f"{PLUGINS}/{path.relative_to(folder).as_posix()}": _entry(path)
        for folder in plugin_folders()
        for path in sorted(folder.glob("*/*"))
        if path.suffix in (".py", ".json")
    }


def _entry(path: Path) -> BundleFile:
    return BundleFile(path.read_bytes(), executable=bool(path.stat().st_mode & 0o100))


def _of_checkout(root: Path) -> list[str] | None:
    tracked = git(root, "ls-files", "-z")
    new = git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *OWN)
    return (
        None
        if tracked is None or new is None
        else [name for name in (tracked + new).split("\0") if name and name != SITE]
    )


def _of_bundle(root: Path) -> list[str] | None:
    listed = root / manifest.NAME
    if not listed.is_file():
        return None
    return [
        name
        for name in manifest.read_manifest(listed.read_bytes())
        if name not in MADE and not name.startswith((f"{MEASURED}/", f"{PLUGINS}/"))
    ]
