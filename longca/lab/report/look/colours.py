"""One colour and one marker for each kernel, and one colour for each strategy: the same on every page and in
every figure.

Pairs of colours were chosen in sequence, each as distant as possible from previous ones, for normal,
red-blind and green-blind vision, on light and dark backgrounds, with a contrast of at least 3:1. Frequently
compared kernels have the first colours. Naive attention is a reference without hue: black on a light
background, white on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

INK = ("#1b1f24", "#e7e9ec")
MUTED = ("#5d6673", "#9ba5b1")
RULE = ("#dde1e6", "#343a43")
GROUND = ("#ffffff", "#15181c")
BAD = ("#c4314b", "#ff6b81")
GOOD = ("#009e73", "#3ecfa3")
WARN = ("#8c6d00", "#e3c04b")
FAINT = ("#8a929b", "#777f89")  # for lines that are not among the best
# of heat maps: best, worst, frame of the best
HEAT = ("#0d5496", "#68b0ff")
COLD = ("#e4eef9", "#1c2c40")
MARK = ("#c4560a", "#ffb057")
KERNELS = {  # name → colour on light and on dark background, marker
    "band": ("#0072b2", "#5aa9e6", "o"),
    "fa4": ("#d55e00", "#ff8c42", "s"),
    "fa3": ("#2e06ac", "#7380eb", "^"),
    "cudnn_flex": ("#02995a", "#5ae297", "D"),
    "flex_flash": ("#6887ff", "#cedafd", ">"),
    "fa2": ("#701900", "#db6241", "X"),
    "cudnn": ("#34766a", "#7ec0b3", "v"),
    "flashmask": ("#64006d", "#ba66c2", "<"),
    "flex": ("#63466c", "#b191bb", "P"),
    "band_atomic": ("#6682aa", "#a8c6f2", "h"),
    "cudnn_graph": ("#d17276", "#fdcdcd", "p"),
    "torch_flash": ("#7c6637", "#c6ae7e", "*"),
    "sdpa": ("#734533", "#c5907c", "d"),
    "naive": ("#16181a", "#f2f4f6", "8"),
    "fa1": ("#750031", "#d95b7d", "H"),
    "cudnn_bsa": ("#543cb4", "#8478c8", "v"),
    "fa2_sparse": ("#a80024", "#c8606c", "X"),
    "vsa": ("#df4ec4", "#fec7ef", "p"),
    "vsa_triton": ("#6d397d", "#bd86cf", "*"),
    "flashinfer": ("#b28d00", "#ffd663", "d"),
    "ffa": ("#416e8d", "#88b8da", "D"),
    "fa3_deterministic": ("#9d04ff", "#a01bfb", "^"),
    "fa4_deterministic": ("#f81752", "#916202", "s"),
    "cudnn_flex_deterministic": ("#015303", "#2ea115", "D"),
    "cudnn_graph_deterministic": ("#bf097d", "#f824b2", "p"),
    # controls
    "control": ("#5c6670", "#aab4be", "o"),
    "matmul": ("#3c444d", "#8b949e", "s"),
    "device_copy": ("#7d8791", "#c8d0d8", "^"),
}
STRATEGIES = {
    "ulysses": ("#0462d3", "#80b3fd"),
    "ring_p2p": ("#932601", "#f07554"),
    "ring_allgather": ("#089772", "#6bddb5"),
    "usp": ("#a97500", "#fcb52c"),
    "loongtrain": ("#6915b6", "#ae84f2"),
    "torch_cp": ("#19405f", "#6891b5"),
    "torch_cp_alltoall": ("#a06f88", "#e7b2cc"),
    "torch_flex_cp": ("#0b8db6", "#6ad3ff"),
    "ring_flash_attn": ("#f0449b", "#ffcade"),
    "yunchang": ("#654f20", "#b39b6c"),
    "paper_style_ring": ("#744244", "#c68d8e"),
    "paper_style_allgather": ("#5a9147", "#9dd78a"),
    "magi": ("#9c5216", "#ec9b65"),
}
SPARE = (  # for kernels and strategies of plug-ins
    ("#125f5c", "#68adaa"),
    ("#560187", "#a46fd8"),
    ("#969663", "#dfdfa9"),
    ("#6b183a", "#c66b89"),
    ("#50744f", "#97bd95"),
    ("#7457a3", "#bd9ff2"),
    ("#5a311a", "#b08067"),
    ("#488d93", "#8dd2d9"),
    ("#493258", "#9b80ab"),
    ("#017c5d", "#56c9a2"),
    ("#7d5b80", "#c8a2cb"),
    ("#4d8a9e", "#91cfe5"),
    ("#671a48", "#c16c99"),
    ("#1e5f50", "#6fad9b"),
)
MARKERS = {  # name in matplotlib → outline in the page's legends
    "o": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z",
    "s": "M-3-3H3V3H-3Z",
    "^": "M0-3-3 3H3Z",
    "v": "M0 3 3-3H-3Z",
    "D": "M0-4.2 4.2 0 0 4.2-4.2 0Z",
    "P": "M-1-3H1V-1H3V1H1V3H-1V1H-3V-1H-1Z",
    "X": "M-1.5 3 0 1.5 1.5 3 3 1.5 1.5 0 3-1.5 1.5-3 0-1.5-1.5-3-3-1.5-1.5 0-3 1.5Z",
    "<": "M-3 0 3 3V-3Z",
    ">": "M3 0-3-3V3Z",
    "h": "M0-3-2.6-1.5V1.5L0 3 2.6 1.5V-1.5Z",
    "p": "M0-3-2.9-.9-1.8 2.4H1.8L2.9-.9Z",
    "*": "M0-3-.7-.9H-2.9L-1.1.4-1.8 2.4 0 1.1 1.8 2.4 1.1.4 2.9-.9H.7Z",
    "d": "M0-4.2 2.5 0 0 4.2-2.5 0Z",
    "8": "M-1.1-2.8-2.8-1.1V1.1L-1.1 2.8H1.1L2.8 1.1V-1.1L1.1-2.8Z",
    "H": "M-1.5-2.6-3 0-1.5 2.6H1.5L3 0 1.5-2.6Z",
}


@dataclass(frozen=True)
class Look:
    """A method's colour on a light background, the name of its CSS variable, and its marker."""

    colour: str
    variable: str
    marker: str


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """The style of each method. Kernels and strategies have fixed colours; a strategy has the marker of its
    kernel.

    An unknown name gets a spare colour by its hash, or the next unused one.
    """
    methods = list(methods)
    parts = {method: method.split("+") for method in methods}
    taken: dict[str, int] = {}
    for name in sorted({names[0] for names in parts.values()} - KERNELS.keys() - STRATEGIES.keys()):
        number = _hash(name) % len(SPARE)
        free = [(number + step) % len(SPARE) for step in range(len(SPARE))]
        taken[name] = next((index for index in free if index not in taken.values()), number)
    styles = {}
    for method, names in parts.items():
        first = names[0]
        kernel = names[-1]
        marker = (
            KERNELS[kernel][2]
            if kernel in KERNELS
            else list(MARKERS)[_hash(kernel) // len(SPARE) % len(MARKERS)]
        )
        known = KERNELS if len(names) == 1 and first in KERNELS else STRATEGIES
        if first in known:
            styles[method] = Look(known[first][0], f"{'k' if known is KERNELS else 's'}-{first}", marker)
        else:
            index = taken.get(first, _hash(first) % len(SPARE))
            styles[method] = Look(SPARE[index][0], f"spare-{index}", marker)
    return styles


def text_colour(ground: str) -> str:
    """Black or white, the one that is easier to read on a ground such as "#e4eef9": its contrast is 4.5 or
    more on any."""
    channels = (int(ground[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    luminance = sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.179 else "#ffffff"


@cache
def theme() -> dict[str, tuple[str, str, str]]:
    """Each colour of a page: light value → (name of the CSS variable, light value, dark value)."""
    named: dict[str, tuple[str, str]] = {
        f"k-{name}": (light, dark) for name, (light, dark, _) in KERNELS.items()
    }
    named |= {f"s-{name}": pair for name, pair in STRATEGIES.items()} | {
        f"spare-{index}": pair for index, pair in enumerate(SPARE)
    }
    named |= {
        "ink": INK,
        "muted": MUTED,
        "rule": RULE,
        "ground": GROUND,
        "bad": BAD,
        "good": GOOD,
        "warn": WARN,
        "faint": FAINT,
    }
    named |= {"heat": HEAT, "cold": COLD, "mark": MARK}
    return {light: (name, light, dark) for name, (light, dark) in named.items()}


def css_colour(light: str) -> str:
    """A colour of the theme as its CSS variable; any other as it is."""
    known = theme().get(light)
    return f"var(--{known[0]})" if known else light


def _hash(name: str) -> int:
    return int(sha256(name.encode()).hexdigest()[:12], 16)
