"""The command `longca verify`: checks the files of a bundle and makes its page again from its records."""

from pathlib import Path
from typing import Annotated

import typer

from longca.lab.cli.options import Json, print_json, print_table, print_text


def command(
    bundle: Annotated[Path, typer.Argument(help="A bundle of `longca archive`, packed or unpacked")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key of minisign: without a signature by it, nothing is unpacked", show_default=False
        ),
    ] = None,
    max_gib: Annotated[int, typer.Option(help="Unpack at most so many GiB", min=1, max=1 << 20)] = 2,
    max_files: Annotated[int, typer.Option(help="Unpack at most so many files", min=1)] = 20_000,
    as_json: Json = False,
) -> None:
    """Check such a file: hashes, study, records, and its page.

    The page is made again and compared. Runs nothing of the bundle, and reads nothing outside of it. Exit
    code 1 if anything differs.
    """
    from longca.lab.archive.manifest import NAME, file_sha256
    from longca.lab.archive.packing import Limits, opened
    from longca.lab.archive.signature import refusal, signature_of
    from longca.lab.archive.verify import SHOWN, Check, verify

    checks: list[Check] = []
    if key is not None:
        why = refusal(bundle, key)
        checks.append(Check("signature", not why, why or f"holds, by the key {key}"))
    unchecked = None
    if key is None and bundle.is_file() and signature_of(bundle).is_file():
        unchecked = str(signature_of(bundle))
    digests: dict[str, str] = {}
    if all(check.passed for check in checks):
        with opened(bundle, Limits(max_gib << 30, max_files)) as content:
            digests = {"sha256": content.sha256} if content.sha256 else {}
            digests["manifest_sha256"] = file_sha256(content.folder / NAME)
            checks += verify(content.folder)
    if as_json:
        print_json(
            {
                "bundle": bundle,
                **digests,
                "unchecked_signature": unchecked,
                "checks": [vars(check) for check in checks],
            }
        )
    else:
        print_table(
            str(bundle),
            ["check", "state", "detail"],
            [[check.name, "ok" if check.passed else "differs", check.detail] for check in checks],
        )
        for check in checks:
            more = len(check.differences) - SHOWN
            for line in (*check.differences[:SHOWN], *([f"… and {more} more"] if more > 0 else [])):
                print(f"{check.name}: {line}")
        for name, digest in digests.items():  # who has the bundle's sum from its maker compares it
            print(f"{'bundle' if name == 'sha256' else 'manifest'} sha256:{digest}")
        if unchecked:
            print_text(
                f"There is a signature, '{unchecked}', which was not checked. To check it, give its maker's "
                "public key: `longca verify … --key FILE`"
            )
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
