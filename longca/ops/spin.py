"""A GPU kernel that runs for a given time, by the GPU's own nanosecond clock."""

import torch
import triton
import triton.language as tl


@triton.jit
def _global_time_ns():
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _spin(end_ns_ptr, duration_ns):
    start = _global_time_ns()
    now = start
    while now - start < duration_ns:
        now = _global_time_ns()
    tl.store(end_ns_ptr, now)


def spin(duration_ms: float, end_ns: torch.Tensor) -> None:
    """Keeps one multiprocessor of the tensor's GPU busy for that long; returns at once, as kernel launches
    do.

    Args:
        end_ns: int64 (1,), where the time at the end is written, so that the loop has a result.
    """
    with torch.cuda.device_of(end_ns):
        _spin[(1,)](end_ns, round(duration_ms * 1e6), num_warps=1)
