"""The cost of an image build: time, memory and disk of each step.

    python -m tools.image_build hopper-cu130     builds it, notes what it cost in reports/images, and writes the guide's table
    python -m tools.image_build                  the table of docs/guide/containers.md from those notes

The image is built as `longca image get` does it, and must not be there yet. Twice a second this looks at the
build's log, at the memory of its processes and at the space that is used where it unpacks. What was compiled
before is taken from `images/objects`, as in any build. A build that took most of its units from there is
noted beside the one that compiled them: `NAME.kept.json` beside `NAME.json`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from longca.core import UserError
from longca.lab.bench.measure.environment import cpu_name
from longca.lab.images.image import locate
from longca.lab.store.text import format_bytes
from tools.pages import ROOT
from tools.table import Table

FOLDER = ROOT / "reports/images"
PAGE = ROOT / "docs/guide/containers.md"
KEPT = ".kept"  # in the name of a note: the build compiled little or nothing
FIRST = "packages fetched, the base unpacked"
STEPS = {  # what begins with a line of the log
    r"\+ apt-get update|apt-get install": "the system's packages",
    r"\+ .*pip install .*requirements\.lock": "Python packages",
    r"\+ .*pip install .*build\.lock": "CUDA's compiler",
    r"\+ .*-m kernel_build": "kernels",
    r"\+ .*pip uninstall": "the compiler taken out",
    r"\+ .*image_contents\.py": "contents listed",
    r"Creating SIF file": "the image packed",
}
UNIT = re.compile(r"^\S+\.(?:cu|cpp): (\d+) s$", re.MULTILINE)
PERIOD_S = 0.5
COMMAND = [sys.executable, "-m", "longca", "image", "get"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?")
    name = parser.parse_args().name
    try:
        if name:
            FOLDER.mkdir(parents=True, exist_ok=True)
            made = measured(name)
            note = FOLDER / f"{name}{KEPT if is_kept(made) else ''}.json"
            note.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    except UserError as error:
        print(f"image_build: {error}", file=sys.stderr)
        sys.exit(UserError.exit_code)
    table = table_of([json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))])
    table.write_into(PAGE)
    table.show()


def measured(name: str) -> dict[str, Any]:
    """Build the image, and say what each step took. Raises UserError if it is there, or cannot be built."""
    image = locate(name)
    if image.file.exists():
        raise UserError(
            f"Image '{image.file}' is here", todo=f"Move it and {image.stamp.name} away to build another one"
        )
    image.log.unlink(missing_ok=True)
    folder = Path(tempfile.gettempdir())
    used_before = shutil.disk_usage(folder).used
    begun = time.monotonic()
    steps = [{"step": FIRST, "seconds": 0.0, "peak_bytes": 0, "disk_bytes": 0}]
    with subprocess.Popen([*COMMAND, name], cwd=ROOT) as build:
        since = begun
        while build.poll() is None:
            now = time.monotonic()
            current = step(image.log)
            if current != steps[-1]["step"]:
                since = now
                steps.append({"step": current, "seconds": 0.0, "peak_bytes": 0, "disk_bytes": 0})
            last = steps[-1]
            last["seconds"] = now - since
            last["peak_bytes"] = max(last["peak_bytes"], memory_of(build.pid))
            last["disk_bytes"] = max(last["disk_bytes"], shutil.disk_usage(folder).used - used_before)
            time.sleep(PERIOD_S)
    if build.returncode:
        raise UserError(f"Image '{name}' was not built", why="see above")
    units = [
        int(seconds) for seconds in UNIT.findall(image.log.read_text(encoding="utf-8", errors="replace"))
    ]
    return {
        "image": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{cpu_name()}, {psutil.cpu_count()} cores",
        "seconds": time.monotonic() - begun,
        "image_bytes": image.file.stat().st_size,
        "num_units": len(units),
        "num_compiled": sum(seconds > 0 for seconds in units),
        "steps": steps,
    }


def step(log: Path) -> str:
    """The step that the last lines of the log belong to."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    begun = [(match.start(), name) for pattern, name in STEPS.items() for match in re.finditer(pattern, text)]
    return max(begun)[1] if begun else FIRST


def memory_of(pid: int) -> int:
    """Bytes in memory of a process and all below it; what they share counts for each."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def is_kept(build: dict[str, Any]) -> bool:
    """True if most of what it compiles was kept from a build before."""
    return 2 * build["num_compiled"] < build["num_units"]


def table_of(builds: list[dict[str, Any]]) -> Table:
    """Each step of each image: by the build that compiled, or the only one, and how long it took with kept
    objects."""
    compiled = {build["image"]: build for build in sorted(builds, key=is_kept, reverse=True)}
    again = {build["image"]: build for build in builds if is_kept(build)}
    records = []
    facts = []
    for image, build in sorted(compiled.items()):
        kept = again.get(image, {"steps": []})
        kept_s = {part["step"]: part["seconds"] for part in kept["steps"]}
        records += [
            {"image": image, **part, "kept_seconds": kept_s.get(part["step"])} for part in build["steps"]
        ]
        facts.append(_sentence(build, kept if kept["steps"] else build))
    rows = [
        (
            f"`{part['image']}`",
            part["step"],
            clock(part["seconds"]),
            clock(part["kept_seconds"]),
            format_bytes(part["peak_bytes"]),
            format_bytes(part["disk_bytes"]),
        )
        for part in records
    ]
    where = "; ".join(dict.fromkeys(f"{build['machine']}, {build['date']}" for build in builds))
    caption = (
        f"{' '.join(facts)} Measured on {where}; wheels were there. Memory is that of all processes, disk is "
        f"what is used more than"
        " before."
    )
    return Table(
        "image_build",
        caption,
        ("image", "step", "min", "min with kept objects", "most memory", "disk"),
        tuple(rows),
        tuple(records),
        texts=("image", "step"),
    )


def _sentence(build: dict[str, Any], kept: dict[str, Any]) -> str:
    """The duration of a build, also with kept objects if there was such a build, and the size of the image
    that was made last."""
    size = format_bytes(kept["image_bytes"])
    if not build["num_units"]:
        return f"`{build['image']}` takes {clock(build['seconds'])} min and {size} as an image."
    units = f"{build['num_compiled']} of its {build['num_units']} units"
    if kept is build:
        return (
            f"`{build['image']}` takes {clock(build['seconds'])} min, with {units} compiled, and {size} "
            f"as an image."
        )
    num_kept = kept["num_units"] - kept["num_compiled"]
    return (
        f"`{build['image']}` takes {clock(build['seconds'])} min the first time, with {units} compiled, "
        f"{clock(kept['seconds'])} min"
        f" with {num_kept} of them kept, and {size} as an image."
    )


def clock(seconds: float | None) -> str:
    """Minutes and seconds; nothing for None."""
    return "" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


if __name__ == "__main__":
    main()
