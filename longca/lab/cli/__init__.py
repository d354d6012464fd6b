"""The command line: one file a command, imports inside."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.cli import entry
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["entry"]
