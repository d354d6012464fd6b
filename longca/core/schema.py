"""Types of values that kernels, strategies, studies and records share, and the parsing of external data into
frozen pydantic types, with one-line errors that suggest the nearest valid key.

`CallSpec` is one attention call as kernels and strategies see it: it knows neither cells, records nor
studies.
"""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longca.core.errors import MOST_PROBLEMS, UserError, nearest, shortened
from longca.core.reading import YAML, YAML_VALUES, read_file
from longca.core.truths import model_in, truths

MOST_TEXT = 100_000  # default limit of characters of a text
MOST_NAMES = 1_000  # entries of a mapping by name
LARGEST_INT = (1 << 63) - 1  # that tables of records hold
MOST_OF_INPUT = 80  # characters of a wrong value in a message

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^\P{C}+$")]
"""the name of a plug-in, a parameter or the like: no control characters"""
Count = Annotated[int, Field(ge=0, le=LARGEST_INT)]
"""a number of things or bytes"""
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

# in the location of a problem: one of several alternative types
TYPE_NAMES = {"str", "int", "float", "bool", "constrained-str", "constrained-int", "constrained-float"}

Model = TypeVar("Model", bound=BaseModel)


class Frozen(BaseModel):
    """An immutable value without unknown keys.

    By default, texts are valid Unicode of bounded length and floats are finite (`Field(allow_inf_nan=True)`
    allows others, which JSON stores as strings).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=False, str_max_length=MOST_TEXT
    )


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


def _resolvers() -> dict[str, Any]:
    """PyYAML's rules for plain scalars, but with decimal integers only."""
    integer = re.compile(r"[-+]?(0|[1-9][\d_]*)$")
    return {
        first: [(tag, integer if tag.endswith(":int") else pattern) for tag, pattern in rules]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Loader(yaml.SafeLoader):
    """YAML without some of its traps: 64:8 is not a sexagesimal number, and repeated keys and unpaired
    surrogates are errors."""

    yaml_implicit_resolvers = _resolvers()

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.sizes: dict[int, int] = {}
        self.num_nodes = 0
        self.most_values = YAML_VALUES.value()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' stands twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise yaml.constructor.ConstructorError(
                None, None, "a text holds half of a character (a surrogate)", node.start_mark
            )
        return text

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        """A node of bounded size: an alias counts with its full content, and cycles are errors."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        assert node is not None, "an event of a node or of an alias is next"
        if is_alias and id(node) not in self.sizes:
            raise yaml.constructor.ConstructorError(None, None, "a value holds itself", node.start_mark)
        self._count(node)
        return node

    def _count(self, node: yaml.Node) -> None:
        if id(node) not in self.sizes:
            if isinstance(node, yaml.ScalarNode):
                children = []
            else:
                children = (
                    node.value
                    if isinstance(node, yaml.SequenceNode)
                    else [child for pair in node.value for child in pair]
                )
            self.sizes[id(node)] = 1 + sum(self.sizes[id(child)] for child in children)
            self.num_nodes += 1
        if max(self.sizes[id(node)], self.num_nodes) > self.most_values:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"it stands for more than {self.most_values:,} values; {YAML_VALUES.todo}",
                node.start_mark,
            )


def parse(
    model: type[Model], data: Any, where: str, further: Callable[[Any], Sequence[str]] = lambda data: ()
) -> Model:
    """`data` as a `model`. True and false are no numbers here, which pydantic takes for 1 and 0.

    Args:
        where: the source of the data, for the beginning of the error ("config/studies/quick.yaml").
        further: a function that returns additional problems of invalid data. They are reported with the
            others.

    Raises:
        UserError: all problems, one line for each.
    """
    written = [
        {"type": "truth", "loc": place, "input": value, "msg": "a number is wanted, not true or false"}
        for place, value in truths(model, data)
    ]
    try:
        parsed = model.model_validate(data)
    except ValidationError as error:
        refused = _apart(error)
        places = [_place(problem) for problem in refused]
        # what pydantic refuses at or within a place is not told twice
        written = [
            problem
            for problem in written
            if not any(place[: len(problem["loc"])] == problem["loc"] for place in places)
        ]
        problems, num_more = _told(model, [*written, *refused], MOST_PROBLEMS)
        problems += further(data)
    else:
        if not written:
            return parsed
        problems, num_more = _told(model, written, MOST_PROBLEMS)
    if len(problems) == 1:
        raise UserError(f"{where}: {problems[0]}")
    raise UserError(where, problems=problems, num_more=num_more)


def problems_of(
    model: type[BaseModel], error: ValidationError, most: int = MOST_PROBLEMS
) -> tuple[list[str], int]:
    """Texts of the first problems of an invalid value, and the number of others."""
    return _told(model, _apart(error), most)


def _told(model: type[BaseModel], problems: Sequence[Any], most: int) -> tuple[list[str], int]:
    return [_described(model, problem) for problem in problems[:most]], max(0, len(problems) - most)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; an empty file is an empty mapping. Raises UserError, also where it is
    larger than its limits."""
    try:
        text = read_file(path, YAML).decode("utf-8")
    except OSError as error:
        raise UserError(f"Cannot read '{path}'", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text", why=error.reason) from error
    try:
        return yaml.load(text, _Loader) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UserError(
            f"'{path}'{line} is not valid YAML", why=getattr(error, "problem", "") or ""
        ) from error
    except RecursionError:
        raise UserError(f"'{path}' is not valid YAML", why="it is nested too deeply") from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # raised by PyYAML: an invalid date or number, an unknown tag
        raise UserError(
            f"'{path}' is not valid YAML", why=f"a value cannot be what it is written as ({error})"
        ) from error


def _apart(error: ValidationError) -> list[Any]:
    """The problems of an invalid value, one for each location; for alternative types, only those of the first
    type.

    A list that is too short only because of invalid entries is not reported.
    """
    problems: dict[tuple[int | str, ...], Any] = {}
    for problem in error.errors():
        problems.setdefault(_place(problem), problem)
    return [
        problem
        for path, problem in problems.items()
        if problem["type"] != "too_short"
        or not any(other[: len(path)] == path and other != path for other in problems)
    ]


def _place(problem: Any) -> tuple[int | str, ...]:
    """The location of a problem, without the name of the tried type. An unknown key may look like such a
    name."""
    path = problem["loc"]
    if problem["type"] == "extra_forbidden":
        return (*_place({"type": "", "loc": path[:-1]}), path[-1])
    return path[
        : next(
            (index for index, part in enumerate(path) if str(part) in TYPE_NAMES or "[" in str(part)),
            len(path),
        )
    ]


def _described(model: type[BaseModel], problem: Any) -> str:
    path = list(_place(problem))
    key = ".".join(str(part) for part in path)
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        close = nearest(str(path[-1]), known, 1)
        hint = (
            f"did you mean '{close[0]}'?" if close else "known keys: " + (", ".join(sorted(known)) or "none")
        )
        return f"unknown key '{key}', {hint}".rstrip(".")
    if problem["type"] == "missing":
        return f"key '{key}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"'{key}' = {_given(problem['input'])}: {message}" if key else message


def _given(value: Any) -> str:
    """The repr of the value, shortened if it is long or deep, since the full text might exceed the memory."""
    return shortened(_Brief().repr(value), MOST_OF_INPUT)


class _Brief(reprlib.Repr):
    """Reprs with few entries and levels."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 20
        self.maxstring = self.maxlong = self.maxother = MOST_OF_INPUT

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write numbers of thousands of digits."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else "a number of thousands of digits"


def _fields_at(model: type[BaseModel], path: list[int | str]) -> list[str]:
    """Field names of the sub-model that `path` leads to."""
    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = model_in(current.model_fields[part].annotation)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merged layers: later layers win, key by key; nested mappings are merged."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = merge(result[key], value)
            else:
                result[key] = value
    return result
