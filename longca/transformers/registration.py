"""Registration of longca's attention and masks in the registries of Transformers."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# Transformers is an extra: it need not be installed where types are checked.

from __future__ import annotations

import importlib.metadata
import re

from longca.core import UserError

NAME = "longca"
OLDEST = (5, 20)
"""the first release whose registries, mask functions and arguments of attention are those that are read
here"""


def register() -> None:
    """Makes `attn_implementation="longca"` known to Transformers. Repeated calls have no effect.

    Raises:
        UserError: Transformers is not installed, or too old.
    """
    check_version()
    from transformers import AttentionInterface, AttentionMaskInterface

    from longca.transformers.attention import longca_attention
    from longca.transformers.masks import longca_mask

    AttentionInterface.register(NAME, longca_attention)
    AttentionMaskInterface.register(NAME, longca_mask)


def check_version() -> None:
    """Raises UserError if Transformers is not installed, or older than `OLDEST`."""
    try:
        text = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "Transformers is not installed", todo='`pip install "longca[transformers]"` installs it'
        ) from None
    major, minor = (int(number) for number in re.findall(r"\d+", text)[:2])
    if (major, minor) < OLDEST:
        raise UserError(
            f"Transformers {text} is too old",
            why="its masks and arguments of attention differ",
            todo=f"Install transformers>={OLDEST[0]}.{OLDEST[1]}",
        )
