"""Writes the table of what builds of Hopper kernels spill under each version of Triton.

python -m tools.triton_builds
"""

from __future__ import annotations

import json

from tools.pages import ROOT, write_blocks

RECORDS = ROOT / "tests/ops/band_builds.json"
PAGE = ROOT / "docs/design/triton-versions.md"


def table() -> str:
    """The block of the page: a row for each build that spills under one of the versions."""
    versions: dict[str, dict[str, list[int]]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    first, *_ = versions
    counts = ", ".join(f"{len(builds)} under {version}" for version, builds in versions.items())
    registers = sorted({taken[0] for builds in versions.values() for taken in builds.values()})
    lines = [
        f"Builds that were compiled: {counts}. They use {' or '.join(map(str, registers))} registers "
        "a thread. Bytes that a thread spills, stores / loads; a build that is not listed spills nothing.",
        "",
        f"| build | {' | '.join(versions)} |",
        f"|---|{'---:|' * len(versions)}",
    ]
    for name in versions[first]:
        spilled = [builds[name][1:] if name in builds else None for builds in versions.values()]
        if any(any(part) for part in spilled if part):
            shown = [f"{part[0]} / {part[1]}" if part else "–" for part in spilled]
            lines.append(f"| `{name.replace('*', '')}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    write_blocks(PAGE, triton_builds=table())


if __name__ == "__main__":
    main()
