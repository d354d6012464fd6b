"""The bundle's machine-readable description: RO-Crate 1.1 by the profile Workflow Run Crate 0.5.

`roc-validator` finds all that this profile requires, and of what it recommends only the registry of images
missing, which records do not name, and the address of the project where CITATION.cff has none
(tests/lab/archive/test_crate.py). Provenance Run Crate, which
wants each step of the workflow with its inputs and outputs, is not claimed: records and logs have these.

Sources: https://www.researchobject.org/ro-crate/specification/1.1/,
    https://www.researchobject.org/workflow-run-crate/.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import yaml

from longca.lab.archive.packing import BundleFile
from longca.lab.archive.project import MEASURED
from longca.lab.archive.provenance import NAME as PROVENANCE
from longca.lab.archive.provenance import Provenance
from longca.lab.store import RecordTable

NAME = "ro-crate-metadata.json"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
LICENSES = "https://spdx.org/licenses/"
NO_LICENSE = {"@id": "#licence", "@type": "CreativeWork", "name": "None is stated: ask the maintainers"}
AUTHORS = "#authors"
SNAKEMAKE = "#snakemake"
PLAIN = "text/plain"
FORMATS = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".lock": PLAIN,
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
    ".cff": "application/yaml",
}
DESCRIBED = (
    "Snakefile",
    "README.md",
    "CITATION.cff",
    "requirements.lock",
    "torch.lock",
    "torch-cpu.lock",
    PROVENANCE,
)
ABOUT = {
    "records.parquet": "Every record whole, and the derived table: all else here follows from it",
    "records.csv": "The derived table",
    "records.json": "Every record whole",
    "report.html": "The report",
    "corpora.json": "The documents that were drawn",
    "masks.json": "The masks that were built, with digests",
    PROVENANCE: "Code, images, locks and machines in short",
}
Json = dict[str, Any]


def crate(facts: Provenance, table: RecordTable, files: Mapping[str, BundleFile]) -> bytes:
    """The content of ro-crate-metadata.json for a bundle with these files."""
    described = [
        path
        for path in files
        if path.startswith((f"{MEASURED}/", "config/", "containers/")) or path in DESCRIBED
    ]
    runs = _runs(table, f"config/studies/{facts.study}.yaml", [count.what for count in facts.images])
    images = [_image(count.what) for count in facts.images]
    citation = yaml.safe_load(files["CITATION.cff"].read()) if "CITATION.cff" in files else {}
    licence = _licence(citation)
    authors = _authors(citation)
    workflow = _file("Snakefile", files["Snakefile"]) | {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": "Workflow of longca",
        "programmingLanguage": {"@id": SNAKEMAKE},
        "version": facts.source.git_sha or facts.source.version,
        "conformsTo": {"@id": WORKFLOW_PROFILE},
        **_address(citation),
    }
    graph: list[Json] = [
        {
            "@id": NAME,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": [{"@id": CONTEXT[0].removesuffix("/context")}, {"@id": WORKFLOW_CRATE}],
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"{facts.title}: a study by longca",
            "identifier": facts.study,
            "description": f"{facts.num_records} records of {facts.num_cells} cells, the page made from them, "  # noqa: E501
            "and all that repeats the study.",
            "datePublished": facts.last[:10],
            "license": {"@id": licence["@id"]},
            "author": {"@id": AUTHORS},
            "publisher": {"@id": AUTHORS},
            "conformsTo": [{"@id": profile} for profile in PROFILES],
            "mainEntity": {"@id": "Snakefile"},
            "mentions": _one_or_more([{"@id": run["@id"]} for run in runs]),
            "hasPart": [{"@id": path} for path in described] + [{"@id": "longca/"}, {"@id": "workflow/"}],
        },
        *(
            {"@id": profile, "@type": "CreativeWork", "name": name, "version": version}
            for profile, (name, version) in PROFILES.items()
        ),
        licence,
        authors,
        *(_file(path, files[path]) for path in described if path != "Snakefile"),
        workflow,
        {
            "@id": "longca/",
            "@type": "Dataset",
            "name": "The program",
            "version": facts.source.version,
            "identifier": facts.source.git_sha or "unknown",
        },
        {"@id": "workflow/", "@type": "Dataset", "name": "Rules and profiles of the workflow"},
        {
            "@id": SNAKEMAKE,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "url": "https://snakemake.github.io",
        },
        *images,
        *runs,
    ]
    return json.dumps({"@context": CONTEXT, "@graph": graph}, indent=1, ensure_ascii=False).encode() + b"\n"


def _file(path: str, file: BundleFile) -> Json:
    name = path.rpartition("/")[2]
    entity: Json = {
        "@id": path,
        "@type": "File",
        "name": name,
        "contentSize": str(file.num_bytes),
        "sha256": file.sha256,
    }
    entity["encodingFormat"] = FORMATS.get(PurePosixPath(name).suffix, PLAIN)
    if name in ABOUT:
        entity["description"] = ABOUT[name]
    if path == "README.md":
        entity["about"] = {"@id": "./"}
    return entity


def _one_or_more(entries: list[Json]) -> Json | list[Json]:
    """The entries; a single one by itself, as RO-Crate 1.1 recommends."""
    return entries[0] if len(entries) == 1 else entries


def _image(digest: str) -> Json:
    return {
        "@id": f"#image-{digest}",
        "@type": "ContainerImage",
        "name": f"Image {digest.removeprefix('sha256:')[:12]}",
        "sha256": digest.removeprefix("sha256:"),
        "additionalType": {"@id": "https://w3id.org/ro/terms/workflow-run#SIFImage"},
    }


def _runs(table: RecordTable, study_file: str, digests: list[str]) -> list[Json]:
    """One action for each run, which ends with its last cell."""
    by_run: dict[str, list[tuple[str, str, float]]] = {}
    columns = (table.values(name) for name in ("run_id", "container", "started_at", "seconds"))
    for run_id, container, start, seconds in zip(*columns, strict=True):
        by_run.setdefault(run_id, []).append((container, start, seconds))
    actions = []
    for run_id, cells in sorted(by_run.items()):
        used = {container for container, _, _ in cells}
        spans = [(datetime.fromisoformat(start), round(seconds)) for _, start, seconds in cells]
        action: Json = {
            "@id": f"#run-{run_id}",
            "@type": "CreateAction",
            "name": f"{len(cells)} cells measured",
            "description": f"Checks and timings of {len(cells)} cells by longca, all in one run",
            "agent": {"@id": AUTHORS},
            "instrument": {"@id": "Snakefile"},
            "startTime": min(start for start, _ in spans).isoformat(),
            "endTime": max(start + timedelta(seconds=seconds) for start, seconds in spans).isoformat(),
            "object": {"@id": study_file},
            "result": {"@id": f"{MEASURED}/records.parquet"},
            "actionStatus": "http://schema.org/CompletedActionStatus",
        }
        if used & set(digests):
            measured_in = [{"@id": f"#image-{digest}"} for digest in digests if digest in used]
            action["containerImage"] = _one_or_more(measured_in)
        actions.append(action)
    return actions


def _licence(citation: Mapping[str, Any]) -> Json:
    """The licence of the project's files, by its SPDX name."""
    name = citation.get("license")
    if not name:
        return NO_LICENSE
    return {
        "@id": f"{LICENSES}{name}",
        "@type": "CreativeWork",
        "name": str(name),
        "url": f"{LICENSES}{name}",
    }


def _authors(citation: Mapping[str, Any]) -> Json:
    """The authors of the project, as one organization."""
    names = [str(author["name"]) for author in citation.get("authors", ()) if "name" in author]
    return {
        "@id": AUTHORS,
        "@type": "Organization",
        "name": " and ".join(names) or "unknown",
        **_address(citation),
    }


def _address(citation: Mapping[str, Any]) -> Json:
    """The address of the project, if CITATION.cff has it."""
    address = citation.get("repository-code") or citation.get("url")
    return {"url": str(address)} if address else {}
