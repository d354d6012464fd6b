"""What the Hopper kernels of band attention were found to be: rows of each variant, in a file and as text."""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


class Results:
    """Rows of each variant, which are written to a file as they come."""

    def __init__(self, out: Path, variants: Sequence[str]) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self._out, self._lock = out, threading.Lock()
        self.rows: dict[str, list[dict]] = {name: [] for name in variants}

    def add(self, variant: str, row: dict) -> None:
        with self._lock:
            self.rows[variant].append(row)
            self._out.write_text(json.dumps(self.rows, indent=1))

    def to_be_timed(self, variant: str) -> bool:
        """Wrong numbers do no harm; a process that ended may take the machine's time."""
        return bool(self.rows[variant]) and all(max(row["errors"]) < float("inf") for row in self.rows[variant])


def show_checks(results: Mapping[str, Sequence[dict]]) -> None:
    for name, rows in results.items():
        bad = [row for row in rows if not (max(row["errors"]) < 6e-3 and row["lse"] < 1e-3)]
        good = [max(row["errors"]) for row in rows if row not in bad]
        print(f"{name}: {len(good)} checks passed, worst error {max(good, default=float('nan')):.2e}", flush=True)
        for row in bad:
            print(f"  WRONG {row['what']}: {' '.join(f'{error:.2e}' for error in row['errors'])}, LSE {row['lse']:.2e}", flush=True)


def show_times(results: Mapping[str, Sequence[dict]], cases: Sequence[str]) -> None:
    print(f"\n{'TFLOP/s':40}" + "".join(f"{name:>14}" for name in results))
    for what in cases:
        cells = [sum(row["tflops"] for row in rows if row["kind"] == "time" and row["what"] == what) for rows in results.values()]
        print(f"{what:40}" + "".join(f"{cell:14.0f}" if cell else f"{'-':>14}" for cell in cells), flush=True)
