"""A kernel on some of the queries and some of the keys, as a part of attention over all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from longca.kernels.contract import Kernel, Prepared, Problem


class LocalCall:
    """Tensors are T × heads × D and T × H, whatever the kernel's own layout is; to bring them there is part of the call."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        self.prepared: Prepared = kernel.prepare(problem)
        self._lse: torch.Tensor | None = None  # one in the kernel's own form, to be written over

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, LSE)."""
        result = self.prepared.forward(*(self.prepared.to_layout(x) for x in (q, k, v)))
        assert result.lse is not None, "a kernel without LSE has been refused"
        self._lse = self._lse if self._lse is not None else result.lse.detach().clone()
        return self.prepared.from_layout(result.out), self.prepared.lse_from_layout(result.lse)

    def backward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor
                 ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from the output and LSE over all keys. After a `forward`."""
        to_layout = self.prepared.to_layout
        q, k, v, out, dout = (to_layout(x) for x in (q, k, v, out, dout))
        grads = self.prepared.raw_backward(q, k, v, out, self._own_form(lse), dout)
        dq, dk, dv = (self.prepared.from_layout(grad) for grad in grads)
        return dq, dk, dv

    def _own_form(self, lse_TH: torch.Tensor) -> torch.Tensor:
        """The LSE as the kernel would have returned it, written through the view that `lse_from_layout` gives."""
        assert self._lse is not None, "backward comes after a forward call"
        view = self.prepared.lse_from_layout(self._lse)
        assert view.untyped_storage().data_ptr() == self._lse.untyped_storage().data_ptr(), "not a view: nothing would be written"
        view.copy_(lse_TH)
        return self._lse
