"""The program's own files: those that a module runs, and digests of what they do."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.code.digest import code_digest
    from longca.lab.code.source import (
        files_digest,
        modules_of_package,
        package_digest,
        reached,
        source_digest,
    )
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["code_digest", "files_digest", "modules_of_package", "package_digest", "reached", "source_digest"]
