"""Slurm's configuration files for a cluster in namespaces."""

from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster.machine import node_name

HEAD = "head"
HEAD_IP = "10.77.0.1"
ACCOUNT = "bench"
PARTITION = "gpu"
GPU_MODEL = "h100"
DATABASE = "slurm_acct_db"
# the character device of NVIDIA's driver, so that opening one without a driver fails as "no such device"
GPU_MAJOR = 195


@dataclass(frozen=True)
class Layout:
    """Content of the cluster's folder."""

    folder: Path
    num_nodes: int = 2
    gpus_per_node: int = 2
    cores_per_node: int = 16
    memory_mb: int = 9000
    accounting: bool = True
    cgroups: bool = True

    @property
    def nodes(self) -> list[str]:
        return [node_name(number) for number in range(1, self.num_nodes + 1)]

    def ip(self, node: str) -> str:
        return f"10.77.0.{10 + self.nodes.index(node) + 1}"

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def write(self) -> None:
        self.etc.mkdir(parents=True)
        for name in ("state", "log", "spool"):
            (self.folder / name).mkdir()
        texts = {
            "slurm.conf": self._slurm(),
            "gres.conf": self._gres(),
            "cgroup.conf": CGROUP,
            "slurmdbd.conf": self._slurmdbd(),
        }
        prolog = self.folder / "task_prolog.sh"
        prolog.write_text(TASK_PROLOG)
        prolog.chmod(0o755)
        for name, text in texts.items():
            (self.etc / name).write_text(text)
            (self.etc / name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)

    def _slurm(self) -> str:
        accounting = (
            [
                f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost={HEAD_IP}",
                "AccountingStorageTRES=gres/gpu\nAccountingStoreFlags=job_comment",
            ]
            if self.accounting
            else ["AccountingStorageType=accounting_storage/none"]
        )
        contained = (
            ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"]
            if self.cgroups
            else [
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "JobAcctGatherParams=OverMemoryKill",
            ]
        )
        nodes = [
            f"NodeName={node} NodeAddr={self.ip(node)} CPUs={self.cores_per_node} Boards=1 SocketsPerBoard=1"
            f" CoresPerSocket={self.cores_per_node} ThreadsPerCore=1 RealMemory={self.memory_mb}"
            f" Gres=gpu:{GPU_MODEL}:{self.gpus_per_node} State=UNKNOWN"
            for node in self.nodes
        ]
        partition = f"Nodes={','.join(self.nodes)} Default=YES MaxTime=02:00:00 DefaultTime=00:10:00 State=UP"
        return "\n".join(
            [
                SLURM.format(folder=self.folder, head=HEAD, ip=HEAD_IP),
                *accounting,
                *contained,
                *nodes,
                f"PartitionName={PARTITION} {partition}",
                "",
            ]
        )

    def _gres(self) -> str:
        devices = f"{self.folder}/dev/nvidia[0-{self.gpus_per_node - 1}]"
        return f"NodeName={','.join(self.nodes)} Name=gpu Type={GPU_MODEL} File={devices}\n"

    def _slurmdbd(self) -> str:
        return SLURMDBD.format(folder=self.folder, head=HEAD, ip=HEAD_IP, database=DATABASE)


SLURM = """ClusterName=test
SlurmctldHost={head}({ip})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=30
KillWait=5
MinJobAge=300
MpiDefault=none
MailProg=/bin/true
TaskProlog={folder}/task_prolog.sh
SlurmdParameters=config_overrides"""

# all nodes are one machine: as if each were one of its own, and each job had its own devices of it
TASK_PROLOG = """#!/bin/sh
echo "export LONGCA_LOCKS=/tmp/longca-locks-$SLURM_JOB_ID-$SLURMD_NODENAME"
"""

CGROUP = """CgroupAutomount=no
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainDevices=yes
ConstrainCores=no
"""

SLURMDBD = """AuthType=auth/munge
DbdHost={head}
DbdAddr={ip}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
StorageLoc={database}
"""
