"""The machine of a question: its GPU and the profile of its messages. Where no profile is given, that of the
GPU is taken, and the answer says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longca.core import UserError, load_hardware, whole_number
from longca.cp.forecast import PROFILES

if TYPE_CHECKING:
    from longca.core import GpuModel, Hardware, Network

USUAL_NETWORK = PROFILES["symmetric"]


@dataclass(frozen=True)
class AskedMachine:
    """One model of GPU, and the messages between GPUs of it."""

    gpu: GpuModel
    network: Network
    memory_bytes: float | None
    """of a GPU, that may be used"""
    assumed_profile: str = ""
    """why the profile is this one, in words; "" if it was given"""


def machine_of(
    profile: str | Path | None,
    gpu: str | Path | None,
    ranks_per_node: int | None,
    memory_bytes: float | None,
    gpus: int = 1,
) -> AskedMachine:
    """The machine that is asked for. Arguments are those of `longca.lab.advice.ranking.advise`.

    Raises:
        UserError: an argument cannot be used.
    """
    for name, given in (("profile", profile), ("gpu", gpu)):
        if given is not None and not isinstance(given, (str, Path)):
            raise UserError(f"Argument '{name}' is {given!r}", todo="Give a name in config/hardware.yaml")
    if memory_bytes is not None and not (
        isinstance(memory_bytes, (int, float)) and 0 < memory_bytes < math.inf
    ):
        raise UserError(
            f"Argument 'memory_bytes' is {memory_bytes!r}", todo="Give a number of bytes, such as 60e9"
        )
    if ranks_per_node is not None:
        ranks_per_node = whole_number("The number of GPUs of a node", ranks_per_node)
    hardware = load_hardware()
    named = None if gpu is None else _gpu(str(gpu), hardware)
    assumed = ""
    if profile is not None:
        network = hardware.network(str(profile))
    else:
        network, assumed = _profile_of(named, hardware, gpus, ranks_per_node)
    model = named or _gpu(network.gpu, hardware)
    if ranks_per_node is not None:
        network = network.model_copy(update={"ranks_per_node": ranks_per_node})
    if memory_bytes is None and model.memory_gb is not None:
        memory_bytes = model.memory_gb.value * 1e9
    return AskedMachine(model, network, memory_bytes, assumed)


def _profile_of(
    gpu: GpuModel | None, hardware: Hardware, gpus: int, ranks_per_node: int | None
) -> tuple[Network, str]:
    """The profile of a GPU, measured ones first, and why it is taken. That of the usual GPU for no GPU, or
    for one without a profile. For more GPUs than a node has, profiles within one node come last."""
    other = "--profile names another, and `longca probe` measures one"
    usual = hardware.network(USUAL_NETWORK).gpu
    model = usual if gpu is None else gpu.name
    known = [network for network in hardware.networks if network.gpu == model]
    own = known or [network for network in hardware.networks if network.gpu == usual]

    def spans(network: Network) -> bool:
        return gpus > (ranks_per_node or network.ranks_per_node)

    # of several that are as good, the first in the file
    best = max(own, key=lambda network: (network.between_nodes or not spans(network), network.measured))
    nodes = " between nodes" if spans(best) else ""
    if gpu is None:
        why = f"messages{nodes} by profile {best.name}, since neither profile nor GPU is given"
    elif known:
        why = f"messages{nodes} by profile {best.name}, that of {gpu.name}, since none is given"
    else:
        why = (
            f"messages{nodes} by profile {best.name} of {best.gpu}, since config/hardware.yaml has no "
            f"profile of {gpu.name}"
        )
    return best, f"{why}; {other}"


def _gpu(name: str, hardware: Hardware) -> GpuModel:
    """The GPU of a user's name. Raises UserError, which says so if there are records of it all the same."""
    try:
        return hardware.named(name)
    except UserError:
        from longca.lab.store.load import committed_like

        files = committed_like(name)
        if not files:
            raise
        raise UserError(
            f"Nothing can be predicted for GPU '{name}'",
            why=f"it has records in reports/{files[0].parent.name}, but no peaks in config/hardware.yaml",
            todo=f"Add them there with a source, or rank its records with `longca choose MASK --gpu {name}`",
        ) from None
