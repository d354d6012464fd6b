"""One attention call as kernels and strategies see it: its properties, its bounds, and the answer to "can you
do it". It knows neither cells, records nor studies."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from longca.core.schema import LARGEST_INT, MOST_NAMES, Count, Frozen, Name

Direction = Literal["fwd", "bwd"]
Dtype = Literal["bf16", "fp16", "fp32"]
Messages = Literal["nccl", "symmetric"]
"""backend of messages between ranks: NCCL (gloo on CPUs), or copy engines writing to peer GPUs, else NCCL"""
Answer = str | None
"""the answer of a kernel or strategy to a question whether it can do something: None if it can, else the
reason why not"""
Scalar = (
    bool
    | Annotated[int, Field(ge=-LARGEST_INT, le=LARGEST_INT)]
    | float
    | Annotated[str, Field(max_length=1_000)]
)
Named = Annotated[dict[Name, Scalar], Field(max_length=MOST_NAMES)]
"""values by name"""
Milliseconds = Annotated[float, Field(ge=0, le=1e12)]
"""at most three decades"""

DTYPE_BYTES: dict[Dtype, int] = {"bf16": 2, "fp16": 2, "fp32": 4}
# of a mask: kernels count tokens in 32 bits, and the square of more does not fit 64
MOST_TOKENS = (1 << 31) - 1
MOST_RANKS = 1 << 20
MOST_HEADS = 1 << 16  # and the largest size of one head
MOST_FLOPS = 10**30  # a product of matrices of 2³¹ rows has 2·10²⁸
# prefix of kernels that reproduce a defect of the study's code; they are never ranked
AS_RELEASED = "as_released_"
# suffix of kernels that differ from the one without it in the order of sums, which is fixed: their gradients
# have the same bits in every run
FIXED_ORDER = "_deterministic"
BACKWARD_FLOPS_RATIO = 2.5  # five matmuls against two; the convention of FlashAttention's benchmarks


@dataclass(frozen=True)
class CallSpec:
    """The properties of one attention call that kernels check, in addition to the traits of its mask. Lengths
    are in the traits."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: Dtype
    direction: Direction
    """bwd: the call must support a backward"""

    @property
    def elem_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_BYTES[self.dtype]

    def flops(self, area: int, num_groups: int) -> int:
        """Floating-point operations of this call in its direction.

        Args:
            area: visible (query, key) pairs, summed over the mask's head groups.
            num_groups: number of head groups the area is summed over.
        """
        forward = 4 * area * self.num_q_heads * self.head_dim // num_groups
        return forward if self.direction == "fwd" else int(forward * BACKWARD_FLOPS_RATIO)


class Work(Frozen):
    """The work of one call of a control, by construction; each field if it applies. The work of attention
    follows from its mask."""

    duration_ms: Milliseconds | None = None
    """duration"""
    flops: Annotated[int, Field(ge=0, le=MOST_FLOPS)] | None = None
    """floating-point operations"""
    traffic_bytes: Count | None = None
    """read from and written to device memory"""
