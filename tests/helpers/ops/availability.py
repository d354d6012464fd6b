"""Why band attention is unavailable on a GPU."""

from longca.core.plugin import Registry


def band_unavailable() -> str | None:
    """The reason, or None."""
    return Registry("kernel").load("band").available("cuda")
