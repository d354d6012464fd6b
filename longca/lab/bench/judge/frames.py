"""Frames between a worker and the judge: a JSON header and tensors as raw bytes. Nothing that is received is
ever run.

The judge reads what a process sends that may hold any code. So it takes no pickles, and no tensor beyond
`MOST_BYTES`.
"""

from __future__ import annotations

import json
import math
import struct
from socket import socket
from typing import Any

import torch

LENGTH = struct.Struct(">Q")
MOST_HEADER = 1 << 26
MOST_BYTES = 1 << 38
DTYPES = {str(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
Frame = dict[str, Any]


def send_frame(connection: socket, header: Frame, tensors: list[torch.Tensor] | None = None) -> None:
    """Send one frame. Raises EOFError if the other end is closed."""
    on_host = [x.detach().cpu().contiguous() for x in tensors or []]
    shapes = [[str(x.dtype), list(x.shape)] for x in on_host]
    content = json.dumps({"header": header, "tensors": shapes}).encode()
    try:
        connection.sendall(LENGTH.pack(len(content)) + content)
        for x in on_host:
            if x.numel():
                connection.sendall(x.view(-1).view(torch.uint8).numpy().data)
    except OSError:  # broken pipe, connection reset …
        raise EOFError from None


def receive_frame(connection: socket) -> tuple[Frame, list[torch.Tensor]]:
    """The next frame, its tensors on the CPU. Raises EOFError at the end, and ValueError for what is no
    frame."""
    (length,) = LENGTH.unpack(_receive(connection, LENGTH.size))
    if length > MOST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    content = json.loads(bytes(_receive(connection, length)))
    tensors = []
    for name, shape in content["tensors"]:
        dtype = DTYPES[name]
        num_bytes = math.prod(shape) * dtype.itemsize
        if not 0 <= num_bytes <= MOST_BYTES or any(size < 0 for size in shape):
            raise ValueError(f"a tensor of {shape}")
        data = _receive(connection, num_bytes)
        tensors.append(
            torch.frombuffer(data, dtype=dtype).view(shape) if num_bytes else torch.empty(shape, dtype=dtype)
        )
    return content["header"], tensors


def _receive(connection: socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError:
            raise EOFError from None
        if not count:
            raise EOFError
        view = view[count:]
    return data
