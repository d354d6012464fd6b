"""Unfused attention, which stores every score: the baseline for all other kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca.core import CallSpec
from longca.kernels.contract import Forward, Kernel, Prepared, Problem

if TYPE_CHECKING:
    import torch

    from longca.masks import LazyMask, Mask, Traits


class Naive(Kernel):
    label = "Naive"
    family = "both"
    summary = "Unfused torch: matmul, float32 softmax, matmul; any mask, any device, O(S²) memory"
    url = "https://docs.pytorch.org/docs/stable/generated/torch.matmul.html"
    returns_lse = True
    deterministic = True
    transposes = True

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return None

    def buffer_bytes(self, call: CallSpec, mask: Mask | LazyMask) -> int:
        """Scores in float32 and a copy of them; backward, also probabilities in the dtype of q."""
        traits = mask.traits
        per_pair = 8 if call.direction == "fwd" else 8 + call.elem_bytes
        return (
            traits.seqlen_q
            * traits.seqlen_k
            * (call.num_q_heads * per_pair + (0 if traits.full else traits.num_groups))
        )

    def prepare(self, problem: Problem) -> NaivePrepared:
        return NaivePrepared(problem)


class NaivePrepared(Prepared):
    """Layout (G, R, T, D), with the R query heads of a KV head contiguous; keys have R = 1.

    With R folded into the rows, one matmul for each KV head serves its whole group, and sums dK and dV over
    it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._hidden: torch.Tensor | None = None  # (mask groups, 1, Sq, Sk)
        if not problem.mask.traits.full:
            from longca.lowering import dense_mask

            hidden = ~dense_mask(problem.mask, problem.device)
            self._hidden = hidden.reshape(problem.mask.num_groups, 1, *hidden.shape[-2:])
            self.costs["metadata_bytes"] = hidden.numel()

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        num_tokens, num_heads, head_dim = x_THD.shape
        groups = self.problem.num_kv_heads
        return x_THD.transpose(0, 1).reshape(groups, num_heads // groups, num_tokens, head_dim).contiguous()

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(0, 1).transpose(0, 1)

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.flatten(0, 1).transpose(0, 1)

    def lse_to_layout(self, lse_TH: torch.Tensor) -> torch.Tensor:
        return lse_TH.T.contiguous().unflatten(0, (self.problem.num_kv_heads, -1))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        scores = self._scores(q, k)
        lse = scores.logsumexp(-1)
        probs = _probabilities(scores, lse).to(q.dtype)
        out = _matmul(probs, v) if self._is_plain(q, k, v) else self._over_keys(probs, v)
        return Forward(out, lse, saved=(q, k, v, out, probs) if self.problem.needs_backward else None)

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, out, probs = forward.saved
        return self._gradients(q, k, v, out, probs, dout)

    def raw_backward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv) from an output and LSE that may cover more keys than these, as context parallelism
        needs.

        Args:
            lse: (G, R, T) float32; −inf where a row sees no key at all.
        """
        probs = _probabilities(self._scores(q, k), lse).to(q.dtype)
        return self._gradients(q, k, v, out, probs, dout)

    def _scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """scale·q·k in float32, −inf where hidden: (G, R, Sq, Sk)."""
        scores = _matmul(q, k.mT).float().mul_(self.problem.scale)
        if self._hidden is not None:
            groups = self._hidden.shape[0]
            scores.view(groups, -1, *scores.shape[-2:]).masked_fill_(self._hidden, float("-inf"))
        return scores

    def _gradients(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        probs: torch.Tensor,
        dout: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        delta = (dout.float() * out.float()).sum(-1, keepdim=True)
        dscores = (_matmul(dout, v.mT).float() - delta).mul_(probs).mul_(self.problem.scale).to(q.dtype)
        if self._is_plain(q, k, v, out, dout):
            return _matmul(dscores, k), _matmul_over_rows(dscores, q), _matmul_over_rows(probs, dout)
        return self._over_keys(dscores, k), self._over_rows(dscores, q), self._over_rows(probs, dout)

    def _is_plain(self, *inputs: torch.Tensor) -> bool:
        """True if a plain product will do. On a GPU the host does not wait for the answer, since this is a
        baseline that is timed: NaN and infinity then reach every row."""
        from longca.lowering import all_finite

        return inputs[0].device.type != "cpu" or all_finite(*inputs)

    def _over_keys(self, by_pair: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`_matmul` with NaN and infinity of `x` in those rows alone that see them."""
        from longca.lowering import confined_product

        product = confined_product(by_pair.flatten(1, 2), self._visible(by_pair), x.squeeze(1))
        return product.unflatten(1, by_pair.shape[1:3])

    def _over_rows(self, by_pair: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`_matmul_over_rows`, likewise."""
        from longca.lowering import confined_product

        pairs = by_pair.flatten(1, 2)
        visible = self._visible(by_pair)
        return confined_product(pairs.mT, visible.mT, x.flatten(1, 2)).unsqueeze(1)

    def _visible(self, like: torch.Tensor) -> torch.Tensor:
        """bool (G, R · Sq, Sk), for pairs (G, R, Sq, Sk)."""
        import torch

        visible = torch.ones_like(like, dtype=torch.bool)
        if self._hidden is not None:
            visible.view(self._hidden.shape[0], -1, *like.shape[-2:]).masked_fill_(self._hidden, False)
        return visible.flatten(1, 2)


def _matmul(x: torch.Tensor, of_keys: torch.Tensor) -> torch.Tensor:
    """(G, R, n, m) @ (G, 1, m, p), all R at once."""
    return (x.flatten(1, 2) @ of_keys.squeeze(1)).unflatten(1, x.shape[1:3])


def _matmul_over_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(G, R, n, m)ᵀ @ (G, R, n, p), summed over R: (G, 1, m, p)."""
    return (x.flatten(1, 2).mT @ y.flatten(1, 2)).unsqueeze(1)


def _probabilities(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """exp(scores − lse), in place of the scores; 0 in rows without keys."""
    finite = lse.masked_fill(lse == float("-inf"), 0.0)
    return scores.sub_(finite.unsqueeze(-1)).exp_()
