"""Formatting of numbers."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

NONE = "–"
MOST_NAMES = 4  # of methods in a sentence; of more their number is told


def is_missing(value: object) -> bool:
    """True for None, NaN and pandas' NA."""
    return (
        value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    )


def number(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits, without an exponent if readable: 0.0613, 12.3, 1,230."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4:
        mantissa, _, power = f"{value:.{max(digits - 2, 0)}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    decimals = max(digits - 1 - exponent, 0)
    return f"{round(value, digits - 1 - exponent):,.{decimals}f}"


def percent(share: float | None, digits: int = 2) -> str:
    """0.0213 → "2.1 %"."""
    return NONE if share is None or math.isnan(share) else f"{number(100 * share, digits)} %"


def format_bytes(num_bytes: float | None) -> str:
    """1536 → "1.5 KiB"."""
    if num_bytes is None or math.isnan(num_bytes):
        return NONE
    power = min(int(math.log2(abs(num_bytes)) // 10) if abs(num_bytes) >= 1 else 0, 5)
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    return f"{number(num_bytes / 1024**power)} {unit}"


def rate_scale(largest_tflops: float) -> tuple[float, str]:
    """(factor, name) of the unit for rates of this size."""
    return (1e3, "GFLOP/s") if 0 < largest_tflops < 1 else (1.0, "TFLOP/s")


def plural(count: int, noun: str) -> str:
    """(1, "cell") → "1 cell", (2, "cell of a mask") → "2 cells of a mask"."""
    first, of, rest = noun.partition(" of ")
    return f"{count:,} {first}{'' if count == 1 else 's'}{of}{rest}"


def names(methods: Sequence[str], most: int = MOST_NAMES) -> str:
    """ "fa3, fa4 and flex", or "fa3, fa4 and 5 others"."""
    if len(methods) > most:
        return f"{', '.join(methods[: most - 1])} and {plural(len(methods) - most + 1, 'other')}"
    return " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1]))) if methods else ""


def short_device(device: str) -> str:
    """ "H100" for "NVIDIA H100 80GB HBM3"; other names keep the memory size, which may distinguish models."""
    return re.sub(r" \d+GB HBM\d\w*$", "", device.removeprefix("NVIDIA "))


def folder_of_gpu(device: str) -> str:
    """The folder of `reports/` with the records of this model: "h100" for "NVIDIA H100 80GB HBM3"."""
    return re.sub(r"[^a-z0-9]+", "-", short_device(device).lower()).strip("-")


def distinct_names(devices: Iterable[str]) -> dict[str, str]:
    """Device → its short name, or its whole one where two would have the same."""
    names = {device: short_device(device) for device in devices}
    counts = Counter(names.values())
    return {device: name if counts[name] == 1 else device for device, name in names.items()}
