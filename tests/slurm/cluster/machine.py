"""Requirements of a cluster in namespaces on this machine, and their installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("slurm-wlm", "slurm-wlm-mysql-plugin", "slurmdbd", "munge", "mariadb-server", "iproute2")
TOOLS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "ip",
    "unshare",
    "nsenter",
    "setpriv",
)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES = ("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")


def install() -> None:
    """Debian's packages of Slurm, where they are missing and can be had. Daemons are not started."""
    if not missing_tools() or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    wait = ("-o", "DPkg::Lock::Timeout=300")
    subprocess.run(["apt-get", *wait, "update", "-qq"], env=environ, check=False)
    subprocess.run(
        ["apt-get", *wait, "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
        env=environ,
        check=False,
        stdout=subprocess.DEVNULL,
    )


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if not shutil.which(tool, path=SYSTEM_PATH)]


def why_not() -> str | None:
    """Why no cluster can be made here; None if one can."""
    if sys.platform != "linux":
        return "Slurm's daemons need Linux"
    if os.geteuid() != 0:
        return "namespaces, mounts and Slurm's daemons need root"
    missing = missing_tools()
    if missing:
        return f"not found: {', '.join(missing)} (Debian's packages {' '.join(PACKAGES)})"
    tried = subprocess.run(
        [*NAMESPACES, "ip", "link", "add", "bridge0", "type", "bridge"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": SYSTEM_PATH},
        check=False,
    )
    if tried.returncode:
        return f"no network in namespaces here: {(tried.stderr.strip().splitlines() or ['refused'])[-1]}"
    return None


def has_cgroups() -> bool:
    """True if Slurm can hold jobs to their memory and devices by control groups of version 1, as Debian 12's
    does."""
    return all(Path("/sys/fs/cgroup", name, "tasks").exists() for name in ("memory", "devices", "freezer"))


def node_name(number: int) -> str:
    """A name that no cluster of another process has: Slurm's control groups on this machine are called so."""
    return f"p{os.getpid()}n{number}"


def remove_cgroups() -> None:
    """The control groups that Slurm's daemons leave behind: those of this process, and of processes that are
    gone."""
    for top in Path("/sys/fs/cgroup").glob("*/slurm_p*n*"):
        pid = top.name.removeprefix("slurm_p").partition("n")[0]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
                folder.rmdir()
            top.rmdir()


if __name__ == "__main__":
    install()
    reason = why_not()
    print(f"No Slurm cluster can be made here: {reason}" if reason else "A Slurm cluster can be made here")
