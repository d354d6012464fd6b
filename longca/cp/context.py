"""Context parallelism for training and inference: one function over many ranks.

    cp = longca.context_parallel(mask, group, strategy="auto", num_q_heads=64, num_kv_heads=8, head_dim=128)
    x = cp.shard(x)                        # tokens of this rank; position ids in cp.positions
    out = cp.attention(q, k, v)            # differentiable
    y = cp.unshard(x)

Shapes: T tokens of the whole sequence, L on this rank, H query heads, G KV heads, D head dim, B sequences.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from longca.core import UserError, truth
from longca.cp.calls.agreement import Agreement
from longca.cp.calls.differentiable import (
    ForwardCall,
    attend,
    check_shard,
    check_strategy_of_sinks,
    check_tensors,
    gather_tokens,
    row_text,
    shard_tokens,
)
from longca.cp.calls.planning import MaskPlanner, costs_of, plan_text
from longca.cp.calls.ranks import join
from longca.cp.calls.request import AUTO, CpRequest, agreed_request, checked_masks, compare, described
from longca.cp.comm.process_group import DEFAULT_TIMEOUT_S, PeerLost
from longca.masks import Mask, breaks_graph

if TYPE_CHECKING:
    import torch

    from longca.cp.comm.backend import Comm

MAX_TEXT = 200  # of a value in the comparison of calls

__all__ = ["ContextParallel", "PeerLost", "context_parallel"]


@breaks_graph
def context_parallel(
    mask: Mask | Sequence[Mask],
    group: Any = None,
    strategy: Any = AUTO,
    *,
    num_q_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int,
    dtype: torch.dtype | None = None,
    kernel: str = AUTO,
    device: Any = None,
    backward: bool = True,
    messages: Literal["auto", "nccl", "symmetric"] = "auto",
    timeout: float = DEFAULT_TIMEOUT_S,
    check: Literal["first", "always"] = "first",
    reduction: Literal["fast", "fixed"] = "fast",
    warm: bool = False,
) -> ContextParallel:
    """Shards a sequence over the ranks of a group, and plans attention. A collective call with equal
    arguments.

    Args:
        mask: mask of the whole sequence, T × T; or several masks for different layers, which share one
            sharding.
        group: a process group, or a `DeviceMesh` of one dimension. None: all ranks, of torchrun, or this
            process alone.
        strategy: "usp", "usp(heads=2)" or ("usp", {"heads": 2}), also with its kernel: "usp+band". "auto"
            selects the strategy of least predicted time.
        num_kv_heads: as many as query heads if not given.
        dtype: of q, k and v. Default: bfloat16 on GPUs, float32 on CPUs.
        kernel: attention on each rank. "auto": `band` where it does the masks with this dtype and head dim,
            on GPUs; else `naive`, which takes O(T²) memory.
        device: of the tensors, if the group does not settle it.
        backward: gradients will be asked for.
        messages: "symmetric": copy engines write into other GPUs' memory. "auto" does so where all GPUs are
            in one machine that can: ranks try it with a first message, once a group. Elsewhere NCCL, or gloo
            on CPUs, as by "nccl". `notes` says what was chosen, and why.
        timeout: seconds that a rank waits for another one before it raises `PeerLost`. If a peer is lost
            within a call on NCCL, torch ends the process instead, unless TORCH_NCCL_BLOCKING_WAIT=1.
        check: when ranks compare a call. On CPUs, by "always", or by symmetric messages that cannot be given
            up: before it sends anything, so each host waits for the others. On GPUs, "first" does so in the
            first call of each mask and batch; later no host waits, and an error comes at most 32 calls late.
            "always" also compares elements of tensors on GPUs that `shard` is given.
        reduction: "fixed": the output and gradients have the same bits on any number of ranks and under every
            strategy, for the same tensors, mask, kernel and kind of device. By "fast" bits are the same on
            the same ranks alone. The gradient of sinks is a sum over ranks either way.
        warm: on GPUs, compile now what later masks can need (`ContextParallel.warm`).

    Raises:
        UserError: the same line on every rank, if an argument is invalid or differs between ranks.
    """
    import torch

    with torch.inference_mode(False):  # training may use what is made here
        comm = join(group, device, timeout)
        try:
            arguments = {"kernel": kernel, "num_q_heads": num_q_heads, "num_kv_heads": num_kv_heads}
            arguments |= {"head_dim": head_dim, "dtype": dtype, "backward": backward}
            arguments |= {"messages": messages, "check": check, "reduction": reduction}
            request, masks = agreed_request(comm, mask, strategy, arguments)
            comm.use(request.messages, releasable=request.check == "first")
            agreement = Agreement(comm, waits=request.check == "always" or comm.device.type == "cpu")
            planner = MaskPlanner(comm, request)
            if truth("Argument 'warm'", warm) and comm.device.type == "cuda":
                planner.warm(masks)
            return ContextParallel(comm, request, planner, masks, agreement)
        except Exception:
            comm.close()
            raise


class ContextParallel:
    """Attention of one sequence over the ranks of a group, and this rank's part of the sequence. Created by
    `context_parallel`.

    A rank holds L of the T tokens, nearly an even share, in the sequence's order, perhaps not contiguous.
    If every rank computes the loss of its own tokens, the gradient of a parameter is the sum over ranks.
    """

    def __init__(
        self,
        comm: Comm,
        request: CpRequest,
        planner: MaskPlanner,
        masks: tuple[Mask, ...],
        agreement: Agreement,
    ) -> None:
        self._comm = comm
        self._request = request
        self._planner = planner
        self.masks = masks
        self._agreement = agreement
        self._plan, waited_ms = planner.take(masks)
        self._plan_text = plan_text(self._plan, masks)
        self._call_texts: dict[tuple[int, int | None, bool], str] = {}
        self.positions = self._plan.copied_positions()  # the user may write to them
        """position ids of this rank's tokens, int64 (L,): for rotary embeddings, and to pick tokens"""
        self.costs = costs_of(self._plan, waited_ms)
        """`plan_ms`: planning time on this rank; `waited_ms`: the part spent waiting for it. Then, by mask,
        costs as in records of cells: bytes by the strategy's formula, imbalance, kernel calls"""

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def world(self) -> int:
        return self._comm.world

    @property
    def num_tokens(self) -> int:
        """Tokens on this rank, L."""
        return self._plan.num_tokens[self.rank]

    @property
    def seqlen(self) -> int:
        """Tokens of the whole sequence, T."""
        return self.masks[0].seqlen_q

    @property
    def strategy(self) -> str:
        """The strategy in use, with its parameters: the chosen one for "auto"."""
        return self._plan.strategy

    @property
    def sharding(self) -> str:
        """The name of the sharding."""
        return self._plan.sharding

    @property
    def estimated_ms(self) -> dict[str, float]:
        """By strategy, the estimates for "auto": attention of each mask once, with its backward, at the rates
        of an H200."""
        return {name: seconds * 1e3 for name, seconds in self._plan.estimated_s().items()}

    @property
    def refused(self) -> dict[str, str]:
        """By strategy, the reason why "auto" excluded it."""
        return dict(self._plan.refused)

    @property
    def notes(self) -> tuple[tuple[str, ...], ...]:
        """By mask, notes on the plan."""
        return tuple(tuple(part.notes) for part in self._plan.prepared)

    @property
    def moved_bytes(self) -> int:
        """Bytes sent by this rank so far."""
        return self._comm.moved_bytes

    def shard(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """This rank's tokens of a tensor that every rank holds in full.

        Args:
            dim: the dimension of tokens, of size T.
        """
        return shard_tokens(x, dim, self.seqlen, self._plan.positions, self._agreement, self.world)

    @breaks_graph
    def unshard(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """The whole tensor, in the order of the sequence, on every rank; a collective call.

        Its backward takes this rank's rows of the gradient, which is correct if all ranks compute the same
        from the whole tensor.

        Args:
            dim: the dimension of tokens, of size L.

        Raises:
            UserError: on all ranks, if an argument is invalid on one of them, or differs between them in
                dtype or shape.
        """
        arguments = f"{row_text(x, dim)}\n{self._plan_text}"
        self._agreement.begin(
            "unshard", arguments, lambda: check_shard(x, dim, self.num_tokens, self._comm.device)
        )
        with self._agreement.messages():
            shard = x.movedim(dim, 0).contiguous()
            whole = gather_tokens(self._comm, shard, self._plan.num_tokens, self._plan.inverse)
        self._agreement.end()
        return whole.movedim(0, dim)

    @breaks_graph
    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: int | Mask = 0,
        *,
        sinks: torch.Tensor | None = None,
        tag: str | int | None = None,
    ) -> torch.Tensor:
        """Attention of this rank's queries to all visible keys; differentiable. A collective call.

        `torch.compile` breaks its graph here, as at every call that involves other ranks.

        Args:
            q, k, v: of this rank's tokens, L × H × D and L × G × D; or B sequences under the same mask, B × L
                × H × D.
            mask: one of several masks: its index in `masks`, or the mask itself.
            sinks: a logit for each of the H query heads, (H,), the same on every rank, whichever heads a rank
                computes: exp(sink) is added to the row sums of exp(q·k / √D). Each rank's gradient is a part,
                as that of other parameters: the gradient is the sum over ranks. On GPUs, ranks compare some
                by check="always" alone.
            tag: an identifier, such as step and layer, which ranks compare. Without it they cannot detect
                swapped or skipped calls of the same mask and batch.

        Returns:
            The output, of the shape of q. The scale of q·k is 1 / sqrt(D).

        Raises:
            UserError: on all ranks, if an argument is invalid on one of them, or the calls of ranks differ.
            PeerLost: another rank did not arrive within the timeout.
        """
        return self._attend(q, k, v, mask, sinks, tag)

    @breaks_graph
    def plan_ahead(self, mask: Mask | Sequence[Mask]) -> None:
        """Starts planning other masks in a background thread, for a later `with_mask`. This is a local
        call."""
        self._agreement.check_open()
        self._planner.start(self._checked_masks(mask))

    @breaks_graph
    def with_mask(self, mask: Mask | Sequence[Mask]) -> ContextParallel:
        """The same ranks and heads with other masks and their own sharding. A collective call. The plans of
        the last few masks are cached by their contents, so reusing one has no cost."""
        self._agreement.begin("with_mask", "", lambda: self._checked_masks(mask))
        masks = self._checked_masks(mask)
        try:
            compare(self._comm, {"mask": described(masks)})
            return ContextParallel(self._comm, self._request, self._planner, masks, self._agreement)
        except PeerLost as error:
            self._agreement.fail(error)
            raise

    @breaks_graph
    def warm(self) -> int:
        """Compiles all that calls under any mask can need, and returns the number of builds. A collective
        call, which `context_parallel(warm=True)` makes on GPUs."""
        return self._planner.warm(self.masks)

    @breaks_graph
    def compare_calls(self) -> None:
        """Waits until ranks have compared all calls that this one has made: as before results are saved.

        By check="first" on GPUs, ranks compare a call when its result may have been handed out, at most 32
        calls later. It sends nothing: a rank may call it alone.

        Raises:
            UserError: ranks have called different things.
            PeerLost: another rank has not come to the same calls within the timeout.
        """
        self._agreement.settle()

    @breaks_graph
    def close(self) -> None:
        """Releases the process groups for messages, and closes all contexts from `with_mask`.

        Raises:
            UserError: ranks have called different things, or another rank goes on with a call that this one
                does not make. All is given back, too.
            PeerLost: another rank has not come to the same calls within the timeout. All is given back, too.
        """
        try:
            self._agreement.close(is_failing=sys.exc_info()[0] is not None)
        finally:
            self._planner.close()
            self._comm.close()

    def _checked_masks(self, mask: Mask | Sequence[Mask]) -> tuple[Mask, ...]:
        return checked_masks(
            mask, {"num_q_heads": self._request.num_q_heads, "num_kv_heads": self._request.num_kv_heads}
        )

    def _attend(self, q: Any, k: Any, v: Any, mask: int | Mask, sinks: Any, tag: Any) -> torch.Tensor:
        import torch

        number = self._mask_number(mask) if self._is_known(mask) else -1
        batch = len(q) if isinstance(q, torch.Tensor) and q.dim() == 4 else None
        series = (
            self._call_text(number, batch, sinks is not None) if number >= 0 else f"mask {mask!r}"[:MAX_TEXT]
        )
        arguments = series if tag is None else f"{series}\ntag {tag}"
        if self.world > 1 and isinstance(sinks, torch.Tensor):
            self._agreement.shards.add_sinks(sinks)
        call = self._agreement.begin(
            "forward", arguments, lambda: self._check_attention(q, k, v, mask, sinks), series
        )
        prepared = self._plan.prepared[number]
        sinks = None if sinks is None else sinks.float()
        if batch is None:
            out = attend(prepared, q, k, v, sinks, self._agreement, ForwardCall(call, series, None))
        else:
            outs = [
                attend(prepared, q[n], k[n], v[n], sinks, self._agreement, ForwardCall(call, series, n))
                for n in range(batch)
            ]
            # under autocast `stack` accepts only float32 and one other dtype
            with torch.autocast(q.device.type, enabled=False):
                out = torch.stack(outs)
        self._agreement.end()
        return out

    def _call_text(self, number: int, batch: int | None, with_sinks: bool) -> str:
        """A text of the properties that ranks must share in calls of that mask and batch."""
        key = number, batch, with_sinks
        if key not in self._call_texts:
            sequences = "one sequence without a batch" if batch is None else f"a batch of {batch}"
            sinks = "sinks" if with_sinks else "no sinks"
            text = f"mask {described([self.masks[number]])}\n{sequences}\n{sinks}\n{self._plan_text}"
            self._call_texts[key] = text
        return self._call_texts[key]

    def _is_known(self, mask: int | Mask) -> bool:
        return (
            mask.digest in (own.digest for own in self.masks)
            if isinstance(mask, Mask)
            else (isinstance(mask, int) and mask in range(len(self.masks)))
        )

    def _mask_number(self, mask: int | Mask) -> int:
        return [own.digest for own in self.masks].index(mask.digest) if isinstance(mask, Mask) else mask

    def _check_attention(self, q: Any, k: Any, v: Any, mask: int | Mask, sinks: Any) -> None:
        if not self._is_known(mask):
            raise UserError(
                f"Argument 'mask' of attention is {mask!r}",
                why=f"this context has {described(self.masks)}",
                todo="Give a number from 0, or plan the mask with context_parallel([…]) or cp.with_mask",
            )
        given = (q, k, v) if sinks is None else (q, k, v, sinks)
        check_tensors(self._request, self.num_tokens, self.seqlen, self._comm.device, given)
        if sinks is not None:
            prepared = self._plan.prepared[self._mask_number(mask)]
            check_strategy_of_sinks(self._request, prepared, self.strategy)

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextParallel:
        return self  # a copy of a model, as for a moving average, has the same ranks

    def __reduce__(self) -> Any:
        raise UserError(
            "A context of context_parallel cannot be pickled",
            why="it holds process groups of this process",
            todo="Make one in the other process, or hand it cp.positions",
        )

    def __repr__(self) -> str:
        chosen = ", chosen by cost" if self._request.strategy == AUTO else ""
        return (
            f"<ContextParallel rank {self.rank} of {self.world}: {self.strategy}{chosen} over "
            f"{self._request.kernel}, {self.sharding} sharding, "
            f"{self.num_tokens} of {self.seqlen} tokens, {described(self.masks)}>"
        )
