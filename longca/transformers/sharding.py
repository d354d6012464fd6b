"""Models of Transformers over many ranks: each rank computes a part of the sequence.

    sharding = longca.transformers.shard(model, group)
    loss = model(input_ids=ids, labels=ids).loss        # of the whole batch, on every rank
    loss.backward()                                     # gradients of the whole batch, on every rank

Every rank gives the whole batch. Its rows become one sequence of separate documents, whose tokens are
distributed by the cost of their attention.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# Transformers is an extra: it need not be installed where types are checked.

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from longca.core import UserError
from longca.cp import DEFAULT_TIMEOUT_S, ContextParallel, context_parallel
from longca.dispatch.torch_op import masks_of_table
from longca.masks import Mask, band, breaks_graph
from longca.transformers.attention import CONTEXT, documents_only
from longca.transformers.gradients import GradientSum, join_backward, leaves_of, summed
from longca.transformers.layers import LayerContext, PlannedHeads
from longca.transformers.masks import as_attention_mask, as_table
from longca.transformers.registration import NAME, register
from longca.transformers.shardable import Numbering, check_model, planned_heads

if TYPE_CHECKING:
    import torch.distributed as dist

IGNORED = -100  # label of tokens without a loss
OF_TOKENS = ("input_ids", "inputs_embeds", "position_ids", "labels", "shift_labels")
OF_MASK = ("attention_mask", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
OF_CACHE = ("cache", "past_key_values")


def shard(
    model: nn.Module,
    group: Any = None,
    *,
    strategy: Any = "auto",
    kernel: str = "auto",
    device: Any = None,
    reduce_gradients: bool = True,
    num_q_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> ShardedModel:
    """Distributes each batch of a causal language model over the ranks of a group.

    From then on, every rank calls the model with the same whole batch: `input_ids` or `inputs_embeds`, and
    where needed `labels`, `position_ids` that restart at documents, `cu_seq_lens_q`, or `attention_mask` of
    padding. The loss is that of the whole batch. Other outputs, such as logits, are (1, L, …): those of this
    rank's tokens, which `ShardedModel.unshard` collects.

    Args:
        group, strategy, kernel, device, timeout: as of `longca.context_parallel`.
        reduce_gradients: gradients of parameters are summed over ranks at the end of each backward. False: a
            wrapper such as FSDP averages them over these ranks, and the loss's gradient is scaled
            accordingly.
        num_q_heads, num_kv_heads, head_dim: of a layer on this rank, where they are not those of the config:
            tensor parallelism divides heads. If layers differ, the largest of each: fewer KV heads are
            repeated, and narrower heads are padded with zeros.

    Raises:
        UserError: Transformers is missing, or this model cannot be sharded.
    """
    register()
    config = getattr(getattr(model, "config", None), "get_text_config", lambda: None)()
    if config is None:
        raise UserError(
            f"A {type(model).__name__} is no model of Transformers", todo="Give a PreTrainedModel"
        )
    check_model(model, config)
    if any(
        isinstance(getattr(hook, "__self__", None), ShardedModel)
        for hook in model._forward_pre_hooks.values()
    ):
        raise UserError("This model is sharded already", todo="Close the ShardedModel that has it first")
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    heads = planned_heads(config, num_q_heads, num_kv_heads) | (
        {} if head_dim is None else {"head_dim": head_dim}
    )
    options = {**heads, "strategy": strategy, "kernel": kernel, "device": device, "timeout": timeout}
    return ShardedModel(model, config, group, options, reduce_gradients)


class ShardedModel:
    """A model whose batches are distributed over ranks. Created by `shard`."""

    def __init__(
        self, model: nn.Module, config: Any, group: Any, options: dict[str, Any], reduce_gradients: bool
    ) -> None:
        self._model = model
        self._config = config
        self._group = group
        self._options = options
        self._context: ContextParallel | None = None
        self._contexts: dict[torch.dtype, ContextParallel] = {}  # autocast may begin and end between batches
        self._layer_types: tuple[str, ...] = ()
        self._reduce_gradients = reduce_gradients
        self._shape = (1, 0)
        self._leaves: list[Tensor] = []  # of inputs_embeds, which get a part of their gradient on each rank
        self._signature = inspect.signature(model.forward)
        self._numbering = Numbering.of(model)
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    @property
    def context(self) -> ContextParallel:
        """The context of the last batch: its strategy, costs and positions."""
        if self._context is None:
            raise UserError(
                "A sharded model has no context before its first call", todo="Call the model first"
            )
        return self._context

    def plan_ahead(self, **inputs: Any) -> None:
        """Plans the masks of a later batch in a background thread, while the model computes.

        Args:
            inputs: arguments of the model for that batch; `input_ids` or `inputs_embeds`, and those that
                change its masks.
        """
        if self._context is not None:
            self._context.plan_ahead(list(self._masks(inputs)[1]))

    def unshard(self, x: Tensor) -> Tensor:
        """An output of this rank's tokens, (1, L, …), as that of the whole batch, (B, T, …); a collective
        call."""
        return self.context.unshard(x, dim=1).unflatten(1, self._shape).squeeze(0)

    def close(self) -> None:
        """Releases the process groups for messages; the model is again one for a single rank."""
        for hook in self._hooks:
            hook.remove()
        for context in self._contexts.values():
            context.close()

    @breaks_graph
    def _before(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        """The arguments of the model for this rank's tokens."""
        bound = self._signature.bind(*args, **kwargs)
        given = {}
        for name, value in bound.arguments.items():
            is_rest = self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given.update(value if is_rest else {name: value})
        given = {name: value for name, value in given.items() if value is not None}
        self._check(given)
        self._layer_types, masks = self._masks(given)
        cp = self._context = self._context_of(masks)
        tokens = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
        batch, seqlen = self._shape = tokens.shape[:2]
        self._check_temperature(max(seqlen, cp.num_tokens))
        positions = given.get("position_ids")
        if positions is None:
            positions = torch.arange(seqlen, device=tokens.device)[None]
        whole = {**{name: given[name] for name in OF_TOKENS if name in given}}
        whole["position_ids"] = positions.expand(batch, -1)
        others = {name: value for name, value in given.items() if name not in (*OF_TOKENS, *OF_MASK)}
        if "labels" in whole or "shift_labels" in whole:
            if "shift_labels" not in whole:
                whole["shift_labels"] = nn.functional.pad(whole["labels"][:, 1:], (0, 1), value=IGNORED)
            whole["labels"] = whole["shift_labels"]  # Transformers computes a loss where there are labels
            if "num_items_in_batch" not in others:
                others["num_items_in_batch"] = (whole["shift_labels"] != IGNORED).sum()
        embeds = whole.get("inputs_embeds")
        self._leaves = [] if embeds is None or not torch.is_grad_enabled() else leaves_of(embeds)
        shares = {name: cp.shard(x.flatten(0, 1)[None], dim=1) for name, x in whole.items()}
        no_table = torch.zeros((1, 1), dtype=torch.int64, device=tokens.device)  # layers have their context
        heads = PlannedHeads(*(self._options[name] for name in PlannedHeads._fields))
        layers = LayerContext(cp, self._layer_types, heads)
        return (), {
            **others,
            **shares,
            "attention_mask": as_attention_mask(no_table),  # so that Transformers makes none
            "use_cache": False,
            "return_dict": True,
            CONTEXT: layers,
        }

    def _after(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output with the loss of the whole batch; its backward sums gradients."""
        group = process_group(self._group)
        world = 1 if group is None else self.context.world
        if output.get("loss") is not None:
            output["loss"] = summed(output["loss"], group, 1.0 if self._reduce_gradients else float(world))
        if self._reduce_gradients and group is not None and torch.is_grad_enabled():
            parameters = [p for p in model.parameters() if p.requires_grad]
            own = set(map(id, parameters))
            parameters += [leaf for leaf in self._leaves if id(leaf) not in own]
            gradients = GradientSum(parameters, group) if parameters else None
            for name, value in output.items():
                if gradients is not None and isinstance(value, Tensor) and value.requires_grad:
                    output[name] = join_backward(value, gradients)
        return output

    def _check(self, given: Mapping[str, Any]) -> None:
        if "input_ids" not in given and "inputs_embeds" not in given:
            raise UserError("A sharded model needs input_ids or inputs_embeds")
        for name in OF_CACHE:
            if name in given:
                raise UserError(
                    f"A sharded model takes no cache, and '{name}' is one",
                    why="each rank has the keys of its own tokens alone",
                    todo="Leave it out; generate on one rank",
                )
        if not isinstance(kept := given.get("logits_to_keep", 0), Tensor) and kept:
            raise UserError(
                f"A sharded model cannot keep the logits of the last {kept} tokens alone",
                why="each rank would take the last of its own",
                todo="Leave logits_to_keep out, and take them from ShardedModel.unshard",
            )
        known = (*OF_TOKENS, *OF_MASK, "num_items_in_batch")
        for name, value in given.items():
            if isinstance(value, Tensor) and value.ndim and name not in known:
                raise UserError(
                    f"A sharded model cannot distribute argument '{name}'",
                    todo=f"Give {', '.join(known)} alone",
                )
        self._numbering.check(given)
        tokens = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
        for name in ("position_ids", "labels", "shift_labels"):
            x = given.get(name)
            if x is not None and (
                x.ndim != 2 or x.shape[1] != tokens.shape[1] or len(x) not in (1, len(tokens))
            ):
                raise UserError(
                    f"Argument '{name}' is {tuple(x.shape)}, and the batch is {tuple(tokens.shape[:2])}",
                    todo="Give a number for each token",
                )

    def _check_temperature(self, most: int) -> None:
        """Llama 4 scales queries of some layers by the number of tokens before them in the tensor."""
        scale = getattr(self._config, "floor_scale", None)
        if getattr(self._config, "attn_temperature_tuning", False) and scale is not None and most >= scale:
            raise UserError(
                f"This model scales attention by the place of a token from {scale} tokens on",
                why="it counts the tokens of one rank",
                todo="Set attn_temperature_tuning=False in the model's config, or give fewer tokens",
            )

    def _masks(self, given: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Mask, ...]]:
        """(types of layers, the mask of each type over all tokens of the batch)."""
        from transformers.masking_utils import create_masks_for_generate

        tokens = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
        create = getattr(self._model, "create_masks_for_generate", create_masks_for_generate)
        config: Any = self._model.config
        tables = create(
            config,
            torch.empty((*tokens.shape[:2], 0), device=tokens.device),
            given.get("attention_mask"),
            None,  # a cache; its name differs between releases
            position_ids=given.get("position_ids"),
        )
        tables = tables if isinstance(tables, dict) else {"": tables}
        masks = []
        for kind, table in tables.items():
            table = as_table(table)
            if table is None:
                raise UserError(
                    f"A sharded model cannot have the mask of its layers '{kind}'",
                    why="it is not one that Transformers makes for attention",
                    todo="Train it on one rank",
                )
            mask = one_sequence(masks_of_table(table), len(tokens))
            if given.get("cu_seq_lens_q") is not None:
                mask = documents_only(mask, 1, given["cu_seq_lens_q"], given.get("cu_seq_lens_k"))
            masks.append(mask)
        return tuple(tables), tuple(masks)

    def _context_of(self, masks: tuple[Mask, ...]) -> ContextParallel:
        dtype = _dtype(self._model)
        context = self._contexts.get(dtype)
        if context is None:
            context = context_parallel(
                list(masks), self._group, dtype=dtype, **{"backward": True, **self._options}
            )
        elif context.masks != masks:
            context = context.with_mask(list(masks))
        self._contexts[dtype] = context
        return context


def one_sequence(masks: tuple[Mask, ...], batch: int) -> Mask:
    """The mask of a batch's rows behind each other, which do not see each other."""
    entries = masks * batch if len(masks) == 1 else masks
    if batch == 1:
        return entries[0]
    seqlen = entries[0].seqlen_q
    groups = [
        np.concatenate(
            [band.shift(mask.groups[group], n * seqlen, n * seqlen) for n, mask in enumerate(entries)]
        )
        for group in range(entries[0].num_groups)
    ]
    return Mask(batch * seqlen, batch * seqlen, tuple(groups))


def process_group(group: Any) -> dist.ProcessGroup | None:
    """The process group of an argument `group`; None if this process is alone."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    group = group.get_group() if hasattr(group, "get_group") else group
    return dist.group.WORLD if group is None else group


def _dtype(model: nn.Module) -> torch.dtype:
    """The dtype of the queries that the model computes."""
    parameter = next(model.parameters())
    device_type = parameter.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return parameter.dtype
