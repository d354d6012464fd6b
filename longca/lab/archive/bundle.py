"""Writes a bundle: records and page of a study, its configuration, and the project files that are needed to
repeat it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from longca.core import UserError
from longca.core.reading import ROOT
from longca.core.secrets import bytes_without_secrets, data_without_secrets
from longca.lab.archive import crate, manifest, provenance
from longca.lab.archive.packing import BundleFile, pack
from longca.lab.archive.page import page_files
from longca.lab.archive.project import MEASURED, PLUGINS, plugin_files, project_files
from longca.lab.archive.provenance import Provenance
from longca.lab.store import LoadedRows, UnusableFile, replace_file
from longca.lab.store.environments import own_lists
from longca.lab.store.text import plural
from longca.lab.studies import Config, Study
from longca.lab.studies.checkout import COMMIT_FILE, described

# sampled documents and masks of the study, if the workflow wrote them
BESIDE = ("corpora.json", "masks.json")
README = """# {title}: a study by longca

{num_records} records of {num_cells} cells, measured from {first} to {last}.

- `{measured}/report.html` is the report, `{measured}/records.parquet` what it was made from.
- `{provenance}` says by what code, in which containers and on which machines; `{crate}` says so in the words of RO-Crate.
- `sha256sum --check {manifest}` checks every file. With longca, `longca verify .` also makes the page again.
- To repeat the study, in this folder: `make setup`, then `. .venv/bin/activate` and{plugins} `snakemake --profile workflow/profiles/local`
  on one machine, or `snakemake --profile slurm` on a cluster. What it measures goes to `results/`.
"""  # noqa: E501


@dataclass(frozen=True)
class Bundle:
    """A written bundle and its facts."""

    path: Path
    digest: str
    manifest_digest: str
    num_files: int
    num_bytes: int
    facts: Provenance


def write_bundle(
    study: Study, study_file: Path, config: Config, results: Path, loaded: LoadedRows, out: Path
) -> Bundle:
    """Write one file with which the study can be checked and repeated. Equal records and code give equal
    bytes.

    Args:
        results: the study's results folder.
        loaded: records and problems of that folder.

    Raises:
        UserError: there are no records, some are damaged, or the project's files are unknown.
    """
    _refuse_damaged(study, loaded.problems)
    entries = project_files(ROOT) | plugin_files()
    entries |= {
        f"config/studies/{study.name}.yaml": BundleFile(bytes_without_secrets(study_file.read_bytes())),
        "config/config.yaml": BundleFile(_config(study, config, entries)),
    }
    with TemporaryDirectory() as folder:  # the files of many records do not fit into memory
        entries |= _measured(study, loaded, results, Path(folder))
        return _written(study, loaded, entries, out)


def _written(study: Study, loaded: LoadedRows, entries: dict[str, BundleFile], out: Path) -> Bundle:
    facts = provenance.provenance(study, loaded.table, entries)
    entries[provenance.NAME] = BundleFile(facts.model_dump_json(indent=1).encode() + b"\n")
    entries["BUNDLE.md"] = BundleFile(_readme(facts, any(path.startswith(f"{PLUGINS}/") for path in entries)))
    if facts.source.git_sha:
        entries[COMMIT_FILE] = BundleFile(described(facts.source).encode() + b"\n")
    entries[crate.NAME] = BundleFile(crate.crate(facts, loaded.table, dict(sorted(entries.items()))))
    entries[manifest.NAME] = BundleFile(
        manifest.of_digests({path: entry.sha256 for path, entry in entries.items()})
    )
    content = pack(entries, f"longca-{study.name}", int(datetime.fromisoformat(facts.last).timestamp()))
    return Bundle(
        replace_file(out, content),
        manifest.sha256(content),
        entries[manifest.NAME].sha256,
        len(entries),
        len(content),
        facts,
    )


def _refuse_damaged(study: Study, problems: Sequence[UnusableFile]) -> None:
    if problems:
        raise UserError(
            f"Study '{study.name}' cannot be archived",
            why=f"{plural(len(problems), 'file')} cannot be used, first {problems[0]}",
            todo="`longca run` measures such cells again; a damaged listing of an environment can be removed",
        )


def _measured(study: Study, loaded: LoadedRows, results: Path, folder: Path) -> dict[str, BundleFile]:
    """The page with figures and tables, rebuilt from the records in `folder`, and the files with sampled
    documents and masks."""
    title = study.title or study.name
    made = page_files(loaded, title, ROOT / "config/hardware.yaml", own_lists(ROOT), folder)
    drawn = {
        path: bytes_without_secrets((results / path).read_bytes())
        for path in BESIDE
        if (results / path).is_file()
    }
    return {f"{MEASURED}/{path}": BundleFile(content) for path, content in (made | drawn).items()}


def _config(study: Study, config: Config, files: Mapping[str, BundleFile]) -> bytes:
    """The present settings, so that the workflow repeats this study by default, without local files such as
    an image or a key, and without the password in an image's address."""
    settings = config.model_dump(mode="json") | {"study": study.name, "results": "results", "image_key": ""}
    if config.image and "://" not in config.image and f"containers/{config.image}/image.yaml" not in files:
        settings |= {"image": "", "image_digest": ""}
    return (
        b"# Settings of the study that is archived here.\n"
        + yaml.safe_dump(data_without_secrets(settings), sort_keys=False).encode()
    )


def _readme(facts: Provenance, with_plugins: bool) -> bytes:
    plugins = f" `export LONGCA_PLUGINS=$PWD/{PLUGINS}`, then" if with_plugins else ""
    return README.format(
        title=facts.title,
        num_records=facts.num_records,
        num_cells=facts.num_cells,
        first=facts.first,
        last=facts.last,
        measured=MEASURED,
        provenance=provenance.NAME,
        crate=crate.NAME,
        manifest=manifest.NAME,
        plugins=plugins,
    ).encode()
