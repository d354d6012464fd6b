"""The bundle's machine-readable description: RO-Crate 1.1 with the terms of Workflow Run Crate.

Sources: https://www.researchobject.org/ro-crate/specification/1.1/,
    https://www.researchobject.org/workflow-run-crate/.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import yaml

from longca.lab.archive.manifest import sha256
from longca.lab.archive.packing import BundleFile
from longca.lab.archive.project import MEASURED
from longca.lab.archive.provenance import NAME as PROVENANCE
from longca.lab.archive.provenance import Provenance
from longca.lab.studies.record import Record

NAME = "ro-crate-metadata.json"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
PROFILES = ["https://w3id.org/ro/wfrun/process/0.5", "https://w3id.org/ro/wfrun/workflow/0.5"]
NO_LICENSE = "None is stated: ask the maintainers before you use it for more than checking it"
FORMATS = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".lock": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
    ".cff": "application/yaml",
}
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


def crate(facts: Provenance, records: Iterable[Record], files: Mapping[str, BundleFile]) -> bytes:
    """The content of ro-crate-metadata.json for a bundle with these files."""
    described = [
        path
        for path in files
        if path.startswith((f"{MEASURED}/", "config/", "containers/"))
        or path
        in ("Snakefile", "CITATION.cff", "requirements.lock", "torch.lock", "torch-cpu.lock", PROVENANCE)
    ]
    runs = _runs(list(records), [count.what for count in facts.images])
    images = [_image(count.what) for count in facts.images]
    graph: list[Json] = [
        {
            "@id": NAME,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": CONTEXT[0].removesuffix("/context")},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"{facts.title}: a study by longca",
            "identifier": facts.study,
            "description": f"{facts.num_records} records of {facts.num_cells} cells, the page made from them, "
            f"and all that repeats the study.",
            "datePublished": facts.last[:10],
            "license": _license(files),
            "conformsTo": [{"@id": profile} for profile in PROFILES],
            "mainEntity": {"@id": "Snakefile"},
            "mentions": [{"@id": run["@id"]} for run in runs],
            "hasPart": [{"@id": path} for path in described] + [{"@id": "longca/"}, {"@id": "workflow/"}],
        },
        *(
            {"@id": profile, "@type": "CreativeWork", "name": "Workflow Run RO-Crate profile"}
            for profile in PROFILES
        ),
        *(_file(path, files[path].content) for path in described),
        {
            "@id": "longca/",
            "@type": "Dataset",
            "name": "The program",
            "version": facts.source.version,
            "identifier": facts.source.git_sha or "unknown",
        },
        {"@id": "workflow/", "@type": "Dataset", "name": "Rules and profiles of the workflow"},
        {
            "@id": "#snakemake",
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "url": "https://snakemake.github.io",
        },
        *images,
        *runs,
    ]
    return json.dumps({"@context": CONTEXT, "@graph": graph}, indent=1, ensure_ascii=False).encode() + b"\n"


def _file(path: str, content: bytes) -> Json:
    name = path.rpartition("/")[2]
    entity: Json = {
        "@id": path,
        "@type": "File",
        "name": name,
        "contentSize": str(len(content)),
        "sha256": sha256(content),
    }
    form = FORMATS.get(name[name.rfind(".") :]) if "." in name else None
    if form:
        entity["encodingFormat"] = form
    if name in ABOUT:
        entity["description"] = ABOUT[name]
    if path == "Snakefile":
        entity |= {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "programmingLanguage": {"@id": "#snakemake"},
        }
    return entity


def _image(digest: str) -> Json:
    return {
        "@id": f"#image-{digest}",
        "@type": "ContainerImage",
        "sha256": digest.removeprefix("sha256:"),
        "additionalType": {"@id": "https://w3id.org/ro/terms/workflow-run#SIFImage"},
    }


def _runs(records: list[Record], digests: list[str]) -> list[Json]:
    """One action for each run, which ends with its last cell."""
    by_run: dict[str, list[Record]] = {}
    for record in records:
        by_run.setdefault(record.run_id, []).append(record)
    actions = []
    for run_id, cells in sorted(by_run.items()):
        used = {cell.environment.software.container for cell in cells if cell.environment}
        ends = [
            datetime.fromisoformat(cell.started_at) + timedelta(seconds=round(cell.seconds)) for cell in cells
        ]
        action: Json = {
            "@id": f"#run-{run_id}",
            "@type": "CreateAction",
            "name": f"{len(cells)} cells measured",
            "instrument": {"@id": "Snakefile"},
            "startTime": min(cell.started_at for cell in cells),
            "endTime": max(ends).isoformat(),
            "result": {"@id": f"{MEASURED}/records.parquet"},
        }
        if used & set(digests):
            action["containerImage"] = [{"@id": f"#image-{digest}"} for digest in digests if digest in used]
        actions.append(action)
    return actions


def _license(files: Mapping[str, BundleFile]) -> str:
    citation = yaml.safe_load(files["CITATION.cff"].content) if "CITATION.cff" in files else {}
    return str(citation.get("license", NO_LICENSE))
