"""The matrix of kernels and masks for `longca list matrix`: which runs, and which refuses."""

import textwrap
from typing import Any

from longca.core import AS_RELEASED, Registry, format_length, parse, unknown
from longca.lab.bench import Predictor
from longca.lab.cli.options import check_call, line_width, print_json
from longca.lab.studies import Cell, Study

SIGNS = {(True, True): "fb", (True, False): "f ", (False, True): " b", (False, False): "· "}


def show_matrix(
    seqlen: str,
    heads: str,
    head_dim: int,
    dtype: str,
    device: str | None,
    *,
    here: str,
    reasons: bool,
    as_json: bool,
    new_tokens: str | None = None,
) -> None:
    """Print which kernels run which masks with their default parameters, forward and backward.

    Args:
        device: "cpu" or "cuda": all kernels, as if they were installed on such a machine. None: those that
            run on this one.
        new_tokens: queries, the last tokens of a longer context; None: all tokens.
        here: type of this machine's device.
        reasons: say why of what they refuse.

    Raises:
        UserError: a value cannot be.
    """
    if device not in (None, "cpu", "cuda"):
        raise unknown("device", str(device), ("cpu", "cuda"))
    check_call(seqlen, heads, head_dim, dtype, new_tokens)
    asked = device or here
    kernels = [
        kernel
        for kernel in Registry("kernel").load_all()
        if kernel.family != "control" and not kernel.name.startswith(AS_RELEASED)
    ]
    absent = (
        {}
        if device
        else {kernel.name: reason for kernel in kernels if (reason := kernel.available(asked)) is not None}
    )
    patterns = sorted(
        Registry("mask").load_all(), key=lambda pattern: (pattern.number or float("inf"), pattern.name)
    )
    masks = [pattern.name for pattern in patterns]
    present = [kernel.name for kernel in kernels if kernel.name not in absent]
    grid = {
        "kernel": present,
        "mask": masks,
        "seqlen": seqlen,
        "heads": heads,
        "head_dim": head_dim,
        "dtype": dtype,
        **({} if new_tokens is None else {"new_tokens": new_tokens}),
    }
    cells = parse(Study, {"name": "matrix", "grids": [grid]}, "Options").cells()
    predictor = Predictor(asked)
    refusals = {(cell.kernel, cell.mask, cell.direction): predictor.refusal(cell) for cell in cells}
    if as_json:
        print_json(
            {
                "device": asked,
                "not_here": absent,
                "pairs": [
                    {
                        "kernel": kernel,
                        "mask": mask,
                        "direction": direction,
                        "runs": reason is None,
                        "reason": reason,
                    }
                    for (kernel, mask, direction), reason in refusals.items()
                ],
            }
        )
        return
    _print(cells[0], asked, masks, present, refusals)
    if absent:
        print(_filled(f"{len(absent)} other kernels are not on this machine: `--device cuda` shows all."))
    print(_filled("f: forward runs; b: backward runs; ·: refused" + ("." if reasons else "; `-v` says why.")))
    if reasons:
        _print_reasons(refusals)


def _print(
    cell: Cell,
    device: str,
    masks: list[str],
    kernels: list[str],
    refusals: dict[tuple[str, str, str], str | None],
) -> None:
    everywhere = [
        name
        for name in kernels
        if not any(reason for (kernel, *_), reason in refusals.items() if kernel == name)
    ]
    new = f" ({format_length(cell.num_queries)} of them new)" if cell.new_tokens else ""
    setting = (
        f"{format_length(cell.seqlen)} tokens{new}, {cell.num_q_heads}:{cell.num_kv_heads} heads, head dim "
        f"{cell.head_dim}, {cell.dtype}, {device}"
    )
    print(
        _filled(
            f"{len(everywhere)} of {len(kernels)} kernels run all {len(masks)} masks, forward and backward "
            f"({setting}): {', '.join(everywhere) or 'none'}."
        )
    )
    left = line_width() - 3 * len(masks) + 1  # beside the signs; a longer name has a line of its own
    width = min(max(map(len, kernels), default=0) + 2, max(left, 2))
    print("\n" + " " * width + " ".join(f"{number:>2}" for number in range(1, len(masks) + 1)))
    for name in kernels:
        signs = " ".join(
            SIGNS[refusals[name, mask, "fwd"] is None, refusals[name, mask, "bwd"] is None] for mask in masks
        )
        beside = f"{name:<{width}}" if len(name) < width else f"{name}\n{' ' * width}"
        print(f"{beside}{signs}".rstrip())
    print("\n" + _filled(", ".join(f"{number} {mask}" for number, mask in enumerate(masks, 1))))


def _filled(text: str) -> str:
    return textwrap.fill(text, line_width(), subsequent_indent="", break_on_hyphens=False)


def _print_reasons(refusals: dict[tuple[str, str, str], str | None]) -> None:
    """Why kernels refuse: one line for each reason, with the masks that it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (kernel, mask, direction), reason in refusals.items():
        if reason is not None:
            reasons.setdefault((kernel, reason), []).append(f"{mask} {direction}")
    for (kernel, reason), pairs in reasons.items():
        print(
            "\n"
            + textwrap.fill(f"{kernel}: {reason} ({_joined(pairs)})", line_width(), subsequent_indent="  ")
        )


def _joined(pairs: list[str]) -> str:
    """ "causal, full fwd": a mask alone is refused both ways."""
    by_mask: dict[str, list[Any]] = {}
    for pair in pairs:
        mask, _, direction = pair.rpartition(" ")
        by_mask.setdefault(mask, []).append(direction)
    return ", ".join(
        mask if len(directions) == 2 else f"{mask} {directions[0]}" for mask, directions in by_mask.items()
    )
