"""cuDNN's attention as a graph of its frontend. A graph is planned once, forward or backward, and runs on any
tensors of its shapes."""

# cuDNN's front end need not be installed where types are checked
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import weakref
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from longca.kernels.contract import Problem

UIDS = {
    name: uid
    for uid, name in enumerate(
        (
            "q",
            "k",
            "v",
            "out",
            "lse",
            "dout",
            "dq",
            "dk",
            "dv",
            "lengths",
            "q_starts",
            "k_starts",
            "lse_starts",
        ),
        1,
    )
}
OF_KEYS = ("k", "v", "dk", "dv")
# prefixes of the frontend's own CuTe kernels, which are not cuDNN's
FRONTEND_ENGINES = ["sdpa_fwd", "sdpa_bwd"]
# bytes of the scores' gradients up to which a deterministic backward on Hopper stores them; it needs less
# memory beyond, from cuDNN 9.25 on, and is slower
WORKSPACE_LIMIT = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT"
SHARE_OF_MEMORY = 4  # one in so many bytes of the device


class CudnnHandle:
    """A handle of cuDNN on the current device; destroyed with its last reference."""

    def __init__(self) -> None:
        import cudnn

        self._handle: Any = cudnn.create_handle()
        # CUDA may have been shut down by then
        weakref.finalize(self, cudnn.destroy_handle, self._handle).atexit = False

    def on_stream(self, device: torch.device) -> Any:
        """The handle, set to torch's stream; free of cost if the stream is unchanged."""
        import cudnn
        import torch

        cudnn.set_stream(self._handle, torch.cuda.current_stream(device).cuda_stream)
        return self._handle


def diagonal_bounds(window: tuple[int, int]) -> dict[str, int]:
    """Converts a window from FlashAttention's convention to cuDNN's: query i sees key j iff i - left < j <= i
    + right."""
    left, right = window
    return ({"diagonal_band_left_bound": left + 1} if left >= 0 else {}) | (
        {"diagonal_band_right_bound": right} if right >= 0 else {}
    )


def ragged_tables(problem: Problem, cu_seqlens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tables of packed segments for cuDNN: lengths, and start offsets in elements for each kind of tensor."""
    bounds = cu_seqlens.view(-1, 1, 1, 1)
    starts = bounds.long()  # 64 bits: there may be more than 2³¹ elements
    num_heads = problem.num_q_heads
    row = problem.head_dim
    return {
        "lengths": bounds.diff(dim=0),
        "q_starts": starts * (num_heads * row),
        "k_starts": starts * (problem.num_kv_heads * row),
        "lse_starts": starts * num_heads,
    }


def most_workspace_bytes(problem: Problem, is_packed: bool) -> int:
    """Bytes that a deterministic backward may use for the gradients of all scores.

    0 for packed segments: cuDNN would size that workspace for as many segments of the longest length.
    """
    import torch

    if is_packed:
        return 0
    return torch.cuda.get_device_properties(problem.device).total_memory // SHARE_OF_MEMORY


@contextmanager
def limited_workspace(num_bytes: int) -> Iterator[None]:
    """Graphs that are planned here use the deterministic backward of little memory where the other one needs
    a larger workspace than this. A limit that the user has set stays."""
    is_ours = WORKSPACE_LIMIT not in os.environ
    if is_ours:
        os.environ[WORKSPACE_LIMIT] = str(num_bytes)
    try:
        yield
    finally:
        if is_ours:
            del os.environ[WORKSPACE_LIMIT]


class SdpaGraph:
    """A planned graph. In memory all tensors are T × heads × D; for cuDNN they are B segments × heads × S
    tokens × D, ragged if B > 1.

    Args:
        direction: "fwd" reads q, k, v and writes out, lse. "bwd" reads those and dout, and writes dq, dk, dv.
        max_seqlen: S, the length of the longest segment.
        tables: the result of `ragged_tables`; empty for one segment.
        deterministic: a backward graph sums gradients in a fixed order.

    Raises `cudnn.cudnnGraphNotSupportedError` if cuDNN has no kernel for the problem.
    """

    def __init__(
        self,
        direction: str,
        problem: Problem,
        window: tuple[int, int],
        max_seqlen: int,
        tables: dict[str, torch.Tensor],
        handle: CudnnHandle,
        *,
        deterministic: bool = False,
    ) -> None:
        import cudnn
        import torch

        dtype = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[problem.dtype]
        self._problem = problem
        self._handle = handle
        self._max_seqlen = max_seqlen
        self._num_segments = len(tables["lengths"]) if tables else 1
        self._constants = {UIDS[name]: table for name, table in tables.items()}
        self._graph: Any = cudnn.pygraph(
            io_data_type=dtype,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=handle.on_stream(problem.device),
        )
        self._tables = {name: self._table(name, table) for name, table in tables.items()}
        rules = {"attn_scale": problem.scale, **diagonal_bounds(window)}
        if tables:
            lengths = self._tables["lengths"]
            rules |= {"use_padding_mask": True, "seq_len_q": lengths, "seq_len_kv": lengths}
        is_ordered = deterministic and direction == "bwd"
        if is_ordered:
            rules["use_deterministic_algorithm"] = True
        limit = (
            limited_workspace(most_workspace_bytes(problem, bool(tables))) if is_ordered else nullcontext()
        )
        with limit:
            (self._forward if direction == "fwd" else self._backward)(rules)
            self._plan()
        self.workspace_bytes: int = self._graph.get_workspace_size()

    def run(self, **tensors: torch.Tensor) -> None:
        """Run the graph on torch's stream, with a workspace from torch's allocator.

        Args:
            tensors: all operands and results by name, contiguous.
        """
        import torch

        workspace = torch.empty(max(self.workspace_bytes, 1), dtype=torch.uint8, device=self._problem.device)
        operands = {UIDS[name]: tensor for name, tensor in tensors.items()} | self._constants
        self._graph.execute(operands, workspace, handle=self._handle.on_stream(self._problem.device))

    def _forward(self, rules: dict[str, Any]) -> None:
        q, k, v = (self._input(name) for name in ("q", "k", "v"))
        out, lse = self._graph.sdpa(q=q, k=k, v=v, generate_stats=True, **rules)
        self._output("out", out)
        self._output("lse", lse)

    def _backward(self, rules: dict[str, Any]) -> None:
        mask = self._problem.mask
        if self._tables:  # otherwise its workspace would be sized for B × S tokens
            rules |= {"max_total_seq_len_q": mask.seqlen_q, "max_total_seq_len_kv": mask.seqlen_k}
        q, k, v, out, dout, lse = (self._input(name) for name in ("q", "k", "v", "out", "dout", "lse"))
        grads = self._graph.sdpa_backward(q=q, k=k, v=v, o=out, dO=dout, stats=lse, **rules)
        for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
            self._output(name, grad)

    def _table(self, name: str, table: torch.Tensor) -> Any:
        import cudnn

        dtype = cudnn.data_type.INT32 if name == "lengths" else cudnn.data_type.INT64
        return self._graph.tensor(
            dim=list(table.shape), stride=[1, 1, 1, 1], data_type=dtype, name=name, uid=UIDS[name]
        )

    def _input(self, name: str) -> Any:
        import cudnn

        dim, stride, starts = self._shape(name)
        dtype = {"data_type": cudnn.data_type.FLOAT} if name == "lse" else {}
        return self._graph.tensor(
            dim=dim, stride=stride, ragged_offset=starts, name=name, uid=UIDS[name], **dtype
        )

    def _output(self, name: str, tensor: Any) -> None:
        import cudnn

        dim, stride, starts = self._shape(name)
        tensor.set_output(True).set_dim(dim).set_stride(stride).set_name(name).set_uid(UIDS[name])
        if starts is not None:
            tensor.set_ragged_offset(starts)
        if name == "lse":
            tensor.set_data_type(cudnn.data_type.FLOAT)

    def _shape(self, name: str) -> tuple[list[int], list[int], Any]:
        """The (dims, strides, table of starts or None) of an operand."""
        num_segments = self._num_segments
        num_tokens = self._max_seqlen
        if name in OF_KEYS and not self._tables:
            num_tokens = self._problem.mask.seqlen_k
        if name == "lse":  # H × T for one segment: before cuDNN 9.26 its backward supports no other layout
            num_heads = self._problem.num_q_heads
            by_head_and_token = [1, num_heads] if self._tables else [num_tokens, 1]
            return (
                [num_segments, num_heads, num_tokens, 1],
                [num_heads * num_tokens, *by_head_and_token, 1],
                self._tables.get("lse_starts"),
            )
        num_heads = self._problem.num_kv_heads if name in OF_KEYS else self._problem.num_q_heads
        row = self._problem.head_dim
        return (
            [num_segments, num_heads, num_tokens, row],
            [num_tokens * num_heads * row, row, num_heads * row, 1],
            self._tables.get("k_starts" if name in OF_KEYS else "q_starts"),
        )

    def _plan(self) -> None:
        """Let cuDNN choose its kernel and build it."""
        import cudnn

        graph = self._graph
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_engines(FRONTEND_ENGINES)
        graph.build_plans()
        assert graph.selected_engine is None, "a kernel of the frontend, not of cuDNN"
