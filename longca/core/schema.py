"""Parsing of data from outside into frozen pydantic types, with one-line errors that name the nearest valid key."""

import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from longca.core.errors import UserError, nearest, several

TYPE_NAMES = {"str", "int", "float", "bool"}  # in the place of a problem: one of several types that may stand there

Model = TypeVar("Model", bound=BaseModel)


class Frozen(BaseModel):
    """A value: no unknown keys, no change after construction. Infinite and undefined floats survive JSON, as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")


def _resolvers() -> dict[str, Any]:
    """PyYAML's rules for plain scalars, but with whole numbers of base 10 only."""
    integer = re.compile(r"[-+]?(0|[1-9][\d_]*)$")
    return {first: [(tag, integer if tag.endswith(":int") else pattern) for tag, pattern in rules]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()}


class _Loader(yaml.SafeLoader):
    """YAML without two of its traps: 64:8 is no number of base 60, and a key that stands twice is an error."""

    yaml_implicit_resolvers = _resolvers()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key.value}' stands twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


def parse(model: type[Model], data: Any, where: str) -> Model:
    """`data` as a `model`.

    Args:
        where: what the data is, to begin the error with ("config/studies/quick.yaml").

    Raises:
        UserError: all that is wrong, a line for each.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_described(model, problem) for problem in _apart(error)]
        if len(problems) == 1:
            raise UserError(f"{where}: {problems[0]}") from None
        raise UserError(several(where, problems)) from None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot read '{path}'", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text", why=error.reason) from error
    try:
        return yaml.load(text, _Loader) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"'{path}'{line} is not valid YAML", why=getattr(error, "problem", "") or "") from error


def _apart(error: ValidationError) -> list[Any]:
    """The problems of an invalid value, one for each place: where several types may stand, the first type's alone.

    That a list is too short is none if it is so because its entries are wrong.
    """
    found: dict[tuple[int | str, ...], Any] = {}
    for problem in error.errors():
        path = problem["loc"]
        end = next((place for place, part in enumerate(path) if str(part) in TYPE_NAMES or "[" in str(part)), len(path))
        found.setdefault(path[:end], problem)
    return [problem for path, problem in found.items()
            if problem["type"] != "too_short" or not any(other[:len(path)] == path and other != path for other in found)]


def _described(model: type[BaseModel], problem: Any) -> str:
    path = list(problem["loc"])
    place = ".".join(str(part) for part in path)
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        close = nearest(str(path[-1]), known, 1)
        hint = f"did you mean '{close[0]}'?" if close else "known keys: " + (", ".join(sorted(known)) or "none")
        return f"unknown key '{place}', {hint}".rstrip(".")
    if problem["type"] == "missing":
        return f"key '{place}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    given = repr(problem["input"])
    return f"'{place}' = {given if len(given) <= 80 else given[:77] + '...'}: {message}" if place else message


def _fields_at(model: type[BaseModel], path: list[int | str]) -> list[str]:
    """Field names of the sub-model that `path` leads to."""
    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = _model_in(current.model_fields[part].annotation)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The first model type inside an annotation such as `tuple[Grid, ...]` or `Measure | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    for inner in typing.get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win, key by key; nested mappings are merged."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
                result[key] = merge(result[key], value)
            else:
                result[key] = value
    return result
