"""Bundles: the records of a study with everything that produced them, and the verification of a bundle. Never
imports torch."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.archive import manifest, packing, signature, verify
    from longca.lab.archive.bundle import write_bundle
    from longca.lab.archive.contribution import check_records
    from longca.lab.archive.release_records import get_records
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["check_records", "get_records", "manifest", "packing", "signature", "verify", "write_bundle"]
