"""Runs roc-validator over a crate: `python validate_crate.py CRATE PROFILE` prints its findings as JSON.

The validator fetches the contexts of the crate. Here it gets them from this file, which has the terms that
longca uses, so that nothing else is needed from the network. A process of its own runs this: the validator's
packages are not longca's.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

SCHEMA = """about actionStatus additionalType agent author contentSize CreateAction CreativeWork ComputerLanguage Dataset
datePublished description encodingFormat endTime hasPart identifier instrument isBasedOn license mainEntity mentions name
object Organization programmingLanguage publisher result SoftwareSourceCode startTime url version"""  # noqa: E501
RUN_TERMS = "ContainerImage containerImage SIFImage sha256"
RUN = "https://w3id.org/ro/terms/workflow-run"
CONTEXTS = {
    "https://w3id.org/ro/crate/1.1/context": {
        **{term: f"http://schema.org/{term}" for term in SCHEMA.split()},
        "File": "http://schema.org/MediaObject",
        "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
        "conformsTo": "http://purl.org/dc/terms/conformsTo",
    },
    f"{RUN}/context": {term: f"{RUN}#{term}" for term in RUN_TERMS.split()},
}


def answer(_self: Any, url: str, *_arguments: Any, **_options: Any) -> SimpleNamespace:
    """The context at this address, as `requests` gives it."""
    content = {"@context": CONTEXTS[url]}
    text = json.dumps(content)
    return SimpleNamespace(
        status_code=200,
        ok=True,
        headers={"Content-Type": "application/ld+json"},
        from_cache=True,
        text=text,
        json=lambda: content,
        content=text.encode(),
        raise_for_status=lambda: None,
    )


def main(crate: str, profile: str) -> None:
    from rocrate_validator import models, services
    from rocrate_validator.utils.http import HttpRequester

    HttpRequester.get = HttpRequester.head = answer
    findings = {}
    for severity in ("REQUIRED", "RECOMMENDED"):
        result = services.validate(
            services.ValidationSettings(
                rocrate_uri=crate,
                profile_identifier=profile,
                requirement_severity=models.Severity[severity],
                requirement_severity_only=True,
                abort_on_first=False,
                skip_availability_check=True,
            )
        )
        findings[severity] = sorted(
            {(issue.check.identifier, str(issue.message)) for issue in result.get_issues()}
        )
    print(json.dumps(findings))


if __name__ == "__main__":
    main(*sys.argv[1:])
