"""The files of a wheel beside the package, in `longca/shipped`: `config`, the project's own records, its
commit, and the address of releases.

All else is in pyproject.toml. An editable install needs none of this: it finds the checkout's own folders.
Records keep each whole record, and of the columns that follow from it those that commands read without
decoding records.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PART = "shipped"  # longca.core.reading.SHIPPED
RECORDS = "reports/*/*.parquet"  # as longca.lab.store.load.committed: a folder for each model of GPU
COMMIT = "COMMIT"  # longca.lab.studies.checkout.COMMIT_FILE
RELEASES, ADDRESS = "LONGCA_RELEASES", "RELEASES"  # longca.lab.archive.releases
VERIFIED = "lab/store/checks/verified.sha256"
LEFT_OUT = {"site.yaml"}  # settings and account of one cluster
COLUMNS = (  # that `longca choose` and `longca claims` read; tests/wheel holds them to it
    "notes",
    "new_tokens",
    "deterministic",
    "error_dk",
    "error_dv",
    "cell_id",
    "study",
    "kind",
    "method",
    "kernel",
    "is_control",
    "strategy",
    "world",
    "mask",
    "mask_family",
    "mask_params",
    "mask_density_asked",
    "corpus",
    "seqlen",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "dtype",
    "direction",
    "seed",
    "input_values",
    "sustained",
    "status",
    "reason",
    "num_samples",
    "samples_ms",
    "time_ms_median",
    "density",
    "tflops_per_device",
    "tflops_per_device_low",
    "tflops_per_device_high",
    "peak_tflops",
    "absolute_peak_bytes",
    "moved_bytes",
    "formula_bytes",
    "formula_replicated_bytes",
    "straggler_percent",
    "error_out",
    "error_dq",
    "noise",
    "disturbed",
    "duty",
    "device",
    "device_type",
    "gpus",
    "hostname",
    "num_nodes",
    "git_sha",
    "method_version",
    "run_id",
    "started_at",
    "playoff",
    "playoff_rounds",
    "repeat",
    "record",
)


class BuildWhole(build_py):
    """Copies the project's files into the package that is built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / "longca"
            shutil.rmtree(package / PART, ignore_errors=True)
            copy_config(package / PART / "config")
            copy_records(package)
            write_commit(package / PART)
            write_address(package / PART)


class SourcesWithCommit(sdist):
    """Writes down the commit beside the sources, which have no Git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))
        write_address(Path(base_dir))


def copy_config(to: Path) -> None:
    for path in sorted((ROOT / "config").rglob("*")):
        if path.is_file() and path.name not in LEFT_OUT:
            target = to / path.relative_to(ROOT / "config")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def copy_records(package: Path) -> None:
    """The tables of records, with their digests among those that are known to agree with their records."""
    import pyarrow.parquet as pq

    known = (ROOT / "longca" / VERIFIED).read_text(encoding="utf-8")
    lines = []
    for path in sorted(ROOT.glob(RECORDS)):
        name = path.relative_to(ROOT).as_posix()
        if sha256(path) not in known:
            sys.exit(f"{name} is not in longca/{VERIFIED}: `make docs` compares its columns with its records")
        table = pq.read_table(path)
        target = package / PART / name
        target.parent.mkdir(parents=True, exist_ok=True)
        kept = table.select([column for column in COLUMNS if column in table.column_names])
        pq.write_table(kept, target, compression="zstd", compression_level=12, write_page_checksum=True)
        lines.append(f"{sha256(target)}  {PART}/{name}\n")
    (package / VERIFIED).write_text(known + "".join(lines), encoding="utf-8")


def write_commit(folder: Path) -> None:
    """The commit that is built, as `longca.lab.studies.checkout.COMMIT` has it; no file where nothing tells it."""  # noqa: E501
    described = (ROOT / COMMIT).read_text(encoding="utf-8") if (ROOT / COMMIT).is_file() else ""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude", "*", "--dirty"]
        try:
            described = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            described = ""
    if described.strip():
        (folder / COMMIT).write_text(described, encoding="utf-8")


def write_address(folder: Path) -> None:
    """The address of all releases, where the environment or the sources of one give it; else no file."""
    kept = ROOT / ADDRESS
    address = os.environ.get(RELEASES) or (kept.read_text(encoding="utf-8") if kept.is_file() else "")
    if address.strip():
        (folder / ADDRESS).write_text(f"{address.strip()}\n", encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


setup(cmdclass={"build_py": BuildWhole, "sdist": SourcesWithCommit})
