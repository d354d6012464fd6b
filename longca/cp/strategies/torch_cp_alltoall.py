"""torch's own ring attention with its other rotation of keys: to the next rank in each step."""

from longca.cp.strategies.torch_cp import TorchCp


class TorchCpAlltoall(TorchCp):
    label = "torch CP, all-to-all"
    summary = (
        "torch's context parallelism for SDPA: ring attention, keys passed on by all-to-alls; full and causal"
    )
    rotate = "alltoall"
