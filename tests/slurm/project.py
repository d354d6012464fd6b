"""The project in the home of the cluster's plain user, and Snakemake run there as that user."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.support import ROOT
from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.space import UID

PARTS = ("Snakefile", "config", "containers", "longca", "slurm", "workflow")
LONGEST_RUN_S = 900  # of Snakemake, on a host with much other work; more is a hang
QUICK_STATUS = ("--slurm-init-seconds-before-status-checks", "1")  # of a cluster that starts jobs at once
SITE = """
account: bench
partition: gpu
gpu_model: h100
gpus_per_node: 2
cores_per_gpu: 1
memory_per_gpu_gb: 2
"""


class Project:
    """A folder with the sources, a study and its results."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.folder = cluster.space.home / name
        self.results = cluster.space.inside(self.folder / "results/study")

    @classmethod
    def new(
        cls, cluster: Cluster, name: str, study: str, site: str = SITE, plugins: dict[str, str] | None = None
    ) -> "Project":
        self = cls(cluster, name)
        self.folder.mkdir()
        for part in PARTS:
            source = ROOT / part
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(
                    source,
                    self.folder / part,
                    symlinks=True,
                    ignore=shutil.ignore_patterns("__pycache__", "site.yaml"),
                )
            else:
                shutil.copy(source, self.folder / part, follow_symlinks=False)
        (self.folder / "config/site.yaml").write_text(site)
        (self.folder / "study.yaml").write_text(study)
        (self.folder / "plugins").mkdir()
        for path, text in (plugins or {}).items():
            (self.folder / "plugins" / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "plugins" / path).write_text(text)
        self._own()
        return self

    def copy(self, name: str) -> "Project":
        """Another folder with all that is in this one."""
        other = Project(self.cluster, name)
        shutil.copytree(self.folder, other.folder, symlinks=True)
        other._own()
        return other

    def start(
        self,
        *arguments: str,
        profile: str = "slurm",
        settings: tuple[str, ...] = (),
        containers: str | None = "off",
        **environ: str,
    ) -> "Run":
        """Snakemake with the study, in the background.

        Args:
            containers: the site's setting; "on" where the arguments ask for them, and as the site has it by
                default if None.
        """
        if containers is not None:
            environ["LONGCA_SITE_CONTAINERS"] = "on" if "apptainer" in arguments else containers
        polling = QUICK_STATUS if profile == "slurm" else ()
        command = [
            sys.executable,
            "-m",
            "snakemake",
            "--profile",
            profile,
            *polling,
            *arguments,
            "--config",
            "study=study.yaml",
            *settings,
        ]
        return Run(
            self.cluster.space.as_user(
                command,
                self.folder,
                LONGCA_PLUGINS="plugins",
                LONGCA_DISTURBED="keep",
                OMP_NUM_THREADS="1",
                **environ,
            )
        )

    def run(self, *arguments: str, timeout_s: float = LONGEST_RUN_S, **options: Any) -> str:
        """Snakemake to its end, which must be a good one: what it printed."""
        return self.start(*arguments, **options).finish(timeout_s)

    def cells(self) -> dict[str, tuple[str, int]]:
        """Each measured cell: its status, and when its file was written."""
        records = {}
        for path in self.results.glob("cells/*/*.json"):
            if not path.name.startswith("."):
                record = json.loads(path.read_text())
                records[record["cell_id"]] = record["outcome"]["status"], path.stat().st_mtime_ns
        return records

    def records(self) -> list[dict[str, Any]]:
        """Those of cells, as the workflow has collected them."""
        content = json.loads((self.results / "records.json").read_text())["records"]
        return [record for record in content if not record.get("playoff") and not record.get("repeat")]

    def _own(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, UID, UID, follow_symlinks=False)

    def wait_for(self, condition: Callable[[], object], run: "Run", timeout_s: float = 180) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert run.process.poll() is None, f"Snakemake has ended:\n{run.finish()}"
            assert time.monotonic() < deadline, "not in time"
            time.sleep(0.1)


class Run:
    """Snakemake at work."""

    def __init__(self, command: list[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  a file, since nobody reads a pipe while it works
        self.process = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=_heed_interrupts,
        )

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(os.getpgid(self._leaf()), signal.SIGINT)

    def kill(self) -> None:
        """Snakemake dies at once, and cleans up nothing."""
        os.kill(self._leaf(), signal.SIGKILL)
        self.process.wait(60)

    def finish(self, timeout_s: float = LONGEST_RUN_S, code: int = 0) -> str:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(self._leaf(), signal.SIGKILL)
            raise AssertionError(f"Snakemake does not end:\n{self._printed()}") from None
        output = self._printed()
        assert self.process.returncode == code, f"exit code {self.process.returncode}:\n{output}"
        return output

    def _printed(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    def _leaf(self) -> int:
        """Snakemake itself, below the processes that have entered the namespaces."""
        pid = self.process.pid
        while Path(f"/proc/{pid}/comm").read_text().strip() in ("nsenter", "setpriv", "env", "sh", "setsid"):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid


def _heed_interrupts() -> None:
    """A shell lets programs in the background ignore Ctrl-C, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
