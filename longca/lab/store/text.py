"""Formatting of numbers."""

import math
import re

NONE = "–"


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


def short_device(device: str) -> str:
    """ "H100" for "NVIDIA H100 80GB HBM3"; other names keep the memory size, which may distinguish models."""
    return re.sub(r" \d+GB HBM\d\w*$", "", device.removeprefix("NVIDIA "))
