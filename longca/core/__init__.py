"""Cells, studies, records, the plug-in registry, settings, errors. It imports no other package of longca, and
neither torch nor pandas."""

from typing import TYPE_CHECKING

from longca.core.lazy import face

if TYPE_CHECKING:
    from longca.core import lazy, reading, secrets
    from longca.core.call import (
        AS_RELEASED,
        BACKWARD_FLOPS_RATIO,
        DTYPE_BYTES,
        FIXED_ORDER,
        MOST_HEADS,
        MOST_RANKS,
        MOST_TOKENS,
        Answer,
        CallSpec,
        Direction,
        Dtype,
        Messages,
        Milliseconds,
        Named,
        Scalar,
        Work,
    )
    from longca.core.children.forks import in_forks
    from longca.core.errors import (
        UserError,
        check_installed,
        check_name,
        escaped,
        missing,
        missing_of,
        raise_all,
        shortened,
        shown,
        truth,
        unknown,
        whole_number,
    )
    from longca.core.hardware import GpuModel, Hardware, Network, load_hardware, matches
    from longca.core.host import boot_id
    from longca.core.plugin import (
        KINDS,
        PACKAGE_ROOT,
        BrokenPlugin,
        Plugin,
        Registry,
        as_broken,
        folder_for_new,
        plugin_folders,
        say_left_out,
    )
    from longca.core.schema import (
        LARGEST_INT,
        MOST_NAMES,
        Count,
        Frozen,
        Model,
        Name,
        merge,
        parse,
        problems_of,
        read_yaml,
    )
    from longca.core.signature import refused_signature
    from longca.core.units import by_numbers, format_length, parse_heads, parse_length
    from longca.core.version import VERSION
else:
    __getattr__, __dir__ = face(__name__)

__all__ = [
    "AS_RELEASED",
    "BACKWARD_FLOPS_RATIO",
    "DTYPE_BYTES",
    "FIXED_ORDER",
    "KINDS",
    "LARGEST_INT",
    "MOST_HEADS",
    "MOST_NAMES",
    "MOST_RANKS",
    "MOST_TOKENS",
    "PACKAGE_ROOT",
    "VERSION",
    "Answer",
    "BrokenPlugin",
    "CallSpec",
    "Count",
    "Direction",
    "Dtype",
    "Frozen",
    "GpuModel",
    "Hardware",
    "Messages",
    "Milliseconds",
    "Model",
    "Name",
    "Named",
    "Network",
    "Plugin",
    "Registry",
    "Scalar",
    "UserError",
    "Work",
    "as_broken",
    "boot_id",
    "by_numbers",
    "check_installed",
    "check_name",
    "escaped",
    "folder_for_new",
    "format_length",
    "in_forks",
    "lazy",
    "load_hardware",
    "matches",
    "merge",
    "missing",
    "missing_of",
    "parse",
    "parse_heads",
    "parse_length",
    "plugin_folders",
    "problems_of",
    "raise_all",
    "read_yaml",
    "reading",
    "refused_signature",
    "say_left_out",
    "secrets",
    "shortened",
    "shown",
    "truth",
    "unknown",
    "whole_number",
]
