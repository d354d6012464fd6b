"""The software that a process runs: installed distributions, loaded shared objects, and modules that no
distribution has brought.

`packages` and `elf` use Python's standard library alone, since images list their contents with them
(`tools/image_contents.py`).
"""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.lab.environment.taking import EnvironmentTaker, SystemFacts, environments_of
else:
    __getattr__, __dir__ = face(__name__)

__all__ = ["EnvironmentTaker", "SystemFacts", "environments_of"]
