"""The cell: one frozen measurement request, and the id derived from it."""

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from longca.core import (
    LARGEST_INT,
    MOST_HEADS,
    MOST_RANKS,
    MOST_TOKENS,
    CallSpec,
    Direction,
    Dtype,
    Frozen,
    Name,
    Named,
    UserError,
    format_length,
)

InputValues = Literal["normal", "signs", "small", "constant"]
# of calls before the samples of a sustained cell: power and clock of a GPU have settled by then
SETTLE_SECONDS = 2.0
# with their values in older cells
LATER_FIELDS: dict[str, Any] = {
    "strategy_params": {},
    "input_values": "normal",
    "sustained": False,
    "new_tokens": None,
}
FEWEST_NEW = 2  # one new token is a step of decoding: its time is that of reading the cache, page by page

# what is meant where a question or a study leaves it out: as in most committed records
USUAL_SEQLEN = "32K"
USUAL_HEADS = "64:8"
USUAL_HEAD_DIM = 128
USUAL_DTYPE = "bf16"
# first length → corpus of document lengths from there on: documents of the Pile do not fill longer sequences
USUAL_CORPORA = {1: "pile", 12289: "prolong64k"}
DRAWS = 8  # sequences over which a time is predicted, for masks that are drawn


# names of the commands' options → the arguments of `longca.choose` and `longca.advise` that mean the same
ARGUMENTS_OF_OPTIONS = {
    "heads": "num_q_heads and num_kv_heads",
    "tokens": "seqlen",
    "world": "gpus",
    "node": "ranks_per_node",
    "memory": "memory_bytes",
    "kernel": "kernels",
    "strategy": "strategies",
}


def refuse_option_names(params: Iterable[str]) -> None:
    """Raises UserError if a parameter of a mask has the name of an option of the commands, which Python calls
    otherwise. No mask has such a parameter."""
    for name in sorted(set(params) & ARGUMENTS_OF_OPTIONS.keys()):
        raise UserError(
            f"There is no argument '{name}'", todo=f"It is {ARGUMENTS_OF_OPTIONS[name]} in Python"
        )


def usual_corpus(seqlen: int) -> str:
    """The corpus of document lengths for sequences of so many tokens, where none is named."""
    return USUAL_CORPORA[max((start for start in USUAL_CORPORA if start <= seqlen), default=1)]


def check_ranks(world: int, seqlen: int) -> None:
    """Raises UserError for more ranks than tokens: tokens are divided, and ranks without any do nothing."""
    if world > seqlen:
        raise UserError(
            f"A sequence of {format_length(seqlen)} token{'' if seqlen == 1 else 's'} cannot be divided "
            f"among {world:,} GPUs",
            why="tokens are divided, and each GPU needs one",
            todo="Take fewer GPUs or more tokens",
        )


def check_new_tokens(count: int, seqlen: int) -> None:
    """Raises ValueError for a number of new tokens that is not measured after a context.

    Args:
        seqlen: tokens of the context and new ones together.
    """
    if count < FEWEST_NEW:
        raise ValueError(
            f"{count} new token{'' if count == 1 else 's'} would be decoding, which is not measured: "
            "it takes kernels that divide the keys of one row and read a cache in pages. Chunks of a prefill "
            f"and speculative trees have {FEWEST_NEW} new tokens or more"
        )
    if count >= seqlen:
        raise ValueError(
            f"{count} new tokens are no end of a longer sequence, which has {seqlen}: give fewer, or leave "
            "them out where all tokens are queries"
        )


class Cell(Frozen):
    """One measurement request. All defaults are filled in, so equal requests have equal ids on every
    machine."""

    kind: Literal["kernel", "cp"]
    kernel: Name
    """the attention operator; under `cp` the operator of each rank"""
    strategy: Name | None = None
    """the context-parallel strategy; None for a kernel on one device"""
    strategy_params: Named = {}
    """parameters of the strategy that differ from their defaults; an empty field is omitted from ids and
    JSON"""
    world: int = Field(default=1, ge=1, le=MOST_RANKS)
    """number of ranks"""
    mask: Name
    mask_params: Named = {}
    """all parameters of the mask, including defaults; `density` is the requested share of pairs"""
    corpus: Name | None = None
    """source of document lengths; None for masks without documents"""
    seqlen: int = Field(ge=1, le=MOST_TOKENS)
    """tokens over all ranks: keys, and as many queries unless `new_tokens` says otherwise"""
    new_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """queries, which are the last tokens of the sequence; the keys and values of the others are in a cache.
    None, omitted from ids and JSON: all tokens are queries"""
    num_q_heads: int = Field(ge=1, le=MOST_HEADS)
    num_kv_heads: int = Field(ge=1, le=MOST_HEADS)
    head_dim: int = Field(ge=1, le=MOST_HEADS)
    dtype: Dtype
    direction: Direction
    seed: int = Field(default=0, ge=0, le=LARGEST_INT)
    """seed of random values in the mask; 0 if there are none"""
    input_values: InputValues = "normal"
    """values of q, k, v and the gradient of the output: see `longca.lab.bench.check.inputs`. They affect a
    GPU's power and therefore its clock; the default, standard normal values, is omitted from ids and JSON"""
    sustained: bool = False
    """calls follow each other without a pause, after two seconds of such calls, so that power and clock are
    stable. False, omitted from ids and JSON: each call is timed separately, with a cold L2"""

    @model_validator(mode="after")
    def _consistent(self) -> "Cell":
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_q_heads} query heads cannot be shared evenly among {self.num_kv_heads} KV heads"
            )
        if (self.kind == "cp") != (self.strategy is not None):
            raise ValueError("a `cp` cell needs a strategy, a `kernel` cell has none")
        if self.strategy_params and self.strategy is None:
            raise ValueError("parameters of a strategy need a strategy")
        if self.kind == "kernel" and self.world != 1:
            raise ValueError("a `kernel` cell runs on one device: world must be 1")
        if self.input_values == "constant" and self.direction == "bwd":
            raise ValueError(
                "inputs of one value run forward alone: their gradients of q and k are 0, and no relative "
                "error can be told"
            )
        if self.new_tokens is not None:
            check_new_tokens(self.new_tokens, self.seqlen)
        density = self.mask_params.get("density", 1)
        if isinstance(density, bool | str) or not 0 < density <= 1:
            raise ValueError(f"a mask's `density` is a share above 0 and at most 1, not {density!r:.80}")
        if self.sustained and self.kind != "kernel":
            raise ValueError("calls without a pause are timed on one device alone")
        return self

    @model_serializer(mode="wrap")
    def _fields_to_write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """All fields, without later fields that have their defaults, so that older cells keep their ids."""
        fields = write(self)
        for name, usual in LATER_FIELDS.items():
            if getattr(self, name) == usual:
                fields.pop(name, None)
        return fields

    @cached_property
    def cell_id(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical JSON of all written fields."""
        head, tail = self._around
        corpus = "null" if self.corpus is None else json.dumps(self.corpus)
        canonical = f'{{"corpus":{corpus},{head},"seed":{self.seed},"seqlen":{self.seqlen},{tail}}}'
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @cached_property
    def _around(self) -> tuple[str, str]:
        """Parts of the canonical JSON with sorted keys: those between `corpus` and `seed`, and those after
        `seqlen`."""
        fields = self.model_dump()
        parts = (
            {key: value for key, value in fields.items() if "corpus" < key < "seed"},
            {key: value for key, value in fields.items() if key > "seqlen"},
        )
        head, tail = (json.dumps(part, sort_keys=True, separators=(",", ":"))[1:-1] for part in parts)
        return head, tail

    def with_seed(self, seed: int) -> "Cell":
        """The same request with another seed. For speed, the bounds of the seed are not checked."""
        self._around  # noqa: B018  made once: the copies have it
        other = self.model_copy(update={"seed": seed})
        vars(other).pop("cell_id", None)
        return other

    @property
    def call_spec(self) -> CallSpec:
        """The call of this cell with all its heads, as one device would run it."""
        return CallSpec(self.num_q_heads, self.num_kv_heads, self.head_dim, self.dtype, self.direction)

    def single_gpu_baseline(self) -> "Cell":
        """The cell of the same problem and kernel on one device."""
        return Cell(
            **self.model_dump() | {"kind": "kernel", "strategy": None, "strategy_params": {}, "world": 1}
        )

    @property
    def num_queries(self) -> int:
        """Queries over all ranks: the new tokens, or all tokens."""
        return self.seqlen if self.new_tokens is None else self.new_tokens

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key, visible or not."""
        return self.num_queries * self.seqlen

    def __hash__(self) -> int:
        return hash(self.cell_id)

    @property
    def method(self) -> str:
        """The method under measurement, as tables name it: the kernel, `strategy+kernel` or
        `strategy[parameter=value]+kernel`."""
        if self.strategy is None:
            return self.kernel
        params = ",".join(f"{key}={value}" for key, value in sorted(self.strategy_params.items()))
        return f"{self.strategy}[{params}]+{self.kernel}" if params else f"{self.strategy}+{self.kernel}"

    @property
    def mask_key(self) -> dict[str, Any]:
        """The inputs of the mask: the arguments of `longca.masks.build_mask` except the pattern's name."""
        new = {} if self.new_tokens is None else {"new_tokens": self.new_tokens}
        return {
            "seqlen": self.seqlen,
            "corpus": self.corpus,
            "seed": self.seed,
            "num_kv_heads": self.num_kv_heads,
            **new,
            **self.mask_params,
        }

    @property
    def title(self) -> str:
        """A short line for logs and tables, without switches that are off."""
        params = ",".join(f"{key}={value}" for key, value in self.mask_params.items() if value is not False)
        mask = f"{self.mask}({params})" if params else self.mask
        world = f" ×{self.world}" if self.kind == "cp" else ""
        new = "" if self.new_tokens is None else f" new={self.new_tokens}"
        load = (f" {self.input_values} inputs" if self.input_values != "normal" else "") + (
            " sustained" if self.sustained else ""
        )
        return (
            f"{self.method}{world} {mask} S={self.seqlen}{new} {self.num_q_heads}:{self.num_kv_heads} "
            f"D={self.head_dim} {self.dtype} {self.direction} seed={self.seed}{load}"
        )

    def flops(self, area: int, num_groups: int) -> int:
        """Floating-point operations of this cell in its direction; see `CallSpec.flops`."""
        return self.call_spec.flops(area, num_groups)
