"""Ranks on one machine listen nowhere that others can reach, whoever has started them."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from longca.cp.comm.machine import loopback_address, on_one_machine
from tests.helpers.support import ROOT

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, socket, sys
import psutil, torch, torch.distributed as dist
import longca
torch.manual_seed(0)
if sys.argv[2]:  # gloo takes the address of the host's name: here one that others reach
    socket.sethostname(sys.argv[2])
if sys.argv[1] == "given":
    dist.init_process_group("gloo")
before = {entry.laddr for entry in psutil.Process().net_connections("inet")}
cp = longca.context_parallel(longca.build_mask("causal", seqlen=16), strategy="ring_p2p", num_q_heads=2, num_kv_heads=2, head_dim=16)
cp.attention(*(cp.shard(torch.randn(16, 2, 16)) for _ in range(3)))
after = {entry.laddr for entry in psutil.Process().net_connections("inet")} - before
with open(os.path.join(os.path.dirname(__file__), os.environ["RANK"]), "w") as file:
    json.dump([sorted({address.ip for address in after}), "GLOO_SOCKET_IFNAME" in os.environ], file)
"""  # noqa: E501


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environments(port: int) -> list[dict[str, str]]:
    """The variables of two ranks whose user has set them by hand."""
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    return [common | {"RANK": str(rank)} for rank in range(2)]


def renamed() -> tuple[list[str], str]:
    """(command before another, host name) with which a process may have a host name that is an outside
    address; empty where this machine has none or does not let it."""
    actual = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries
             if entry.family == socket.AF_INET and not entry.address.startswith("127.")]  # fmt: skip
    can = (
        os.geteuid() == 0
        and shutil.which("unshare")
        and not subprocess.run(["unshare", "-u", "true"]).returncode
    )
    return (["unshare", "-u"], actual[0]) if actual and can else ([], "")


@pytest.mark.parametrize("way", ["standalone", "by hand", pytest.param("given", marks=pytest.mark.slow)])
def test_the_function_listens_at_loopback_alone(way: str, tmp_path: Path, clean_environ: dict[str, str]):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    prefix, name = renamed()
    command = [sys.executable, str(program), "given" if way == "given" else "", name]
    if way == "by hand":
        started = [
            subprocess.Popen([*prefix, *command], env=clean_environ | each)
            for each in environments(free_port())
        ]
        assert [process.wait(120) for process in started] == [0, 0]
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run(
            [*prefix, *torchrun, *command[1:]],
            env=clean_environ,
            capture_output=True,
            check=True,
            timeout=120,
        )
    answers = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert all(
        set(addresses) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} and addresses for addresses, _ in answers
    ), answers
    assert not any(is_set for _, is_set in answers), "the user's other groups are theirs"


def test_an_address_of_a_network_is_no_loopback():
    assert [loopback_address(host) for host in ("localhost", "127.0.1.1", "10.0.0.1", "node1", "")] == [
        "127.0.0.1", "127.0.1.1", None, None, None]  # fmt: skip
    assert on_one_machine({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname()})
    assert not on_one_machine({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"})
    assert not on_one_machine({"MASTER_ADDR": "10.0.0.1"}) and not on_one_machine({})


@pytest.fixture
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    left_out = ("GLOO_SOCKET_IFNAME", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
