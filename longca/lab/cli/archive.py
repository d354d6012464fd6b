"""The command `longca archive`: a study in one file that can be checked and repeated."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, Results, StudyName, open_study, print_json


def command(
    study: StudyName = None,
    results: Results = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The bundle to write [default: <results>/<study>.tar.gz]", show_default=False),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(help="Sign it with this secret key of minisign", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Put a study into one file from which it can be repeated.

    It holds records, page, study, code, locks and provenance.
    """
    from longca.core import UserError
    from longca.lab.archive import write_bundle
    from longca.lab.archive.packing import SUFFIX
    from longca.lab.archive.signature import check_key
    from longca.lab.archive.signature import sign as sign_bundle
    from longca.lab.store import load_rows
    from longca.lab.store.text import format_bytes, plural
    from longca.lab.studies import study_path

    config, chosen, folder = open_study(study, results=results)
    if out is not None and not out.name.endswith(SUFFIX):
        raise UserError(f"'{out}' is no name for a bundle", why=f"it does not end in {SUFFIX}")
    if sign is not None:
        check_key(sign)
    target = out or folder.with_name(f"{chosen.name}{SUFFIX}")
    bundle = write_bundle(chosen, study_path(config.study), config, folder, load_rows(folder), target)
    signature = None if sign is None else sign_bundle(bundle.path, sign)
    facts = bundle.facts
    if as_json:
        print_json(
            {
                "bundle": bundle.path,
                "sha256": bundle.digest,
                "manifest_sha256": bundle.manifest_digest,
                "signature": signature,
                "num_files": bundle.num_files,
                "num_bytes": bundle.num_bytes,
                "num_records": facts.num_records,
                "num_cells": facts.num_cells,
            }
        )
        return
    print(
        f"{plural(facts.num_records, 'record')} of {plural(facts.num_cells, 'cell')}, "
        f"{plural(bundle.num_files, 'file')}, "
        f"{format_bytes(bundle.num_bytes)}"
    )
    print(f"bundle sha256:{bundle.digest}")
    print(f"manifest sha256:{bundle.manifest_digest}")
    if signature:
        print(f"signature {signature}")
    if facts.source.git_dirty:
        print("note: the code in it has changes that are in no commit")
    if any(count.what != facts.source.model_dump() for count in facts.measured_by):
        print("note: some records were measured by another version of the code than the one in it")
    print(bundle.path)
