"""True and false where a model has a number: pydantic takes them for 1 and 0."""

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel


def truths(model: type[BaseModel], data: Any, path: str = "") -> Iterator[str]:
    """The problem of each number that is written as true or false, in data for a model."""
    if not isinstance(data, Mapping):
        return
    numbers, models = _numbers_and_models(model)
    for name in numbers:
        value = data.get(name)
        if isinstance(value, bool):
            yield f"'{path}{name}' = {value}: a number is wanted, not true or false"
        elif isinstance(value, (list, tuple)):
            yield from (
                f"'{path}{name}.{index}' = {each}: a number is wanted, not true or false"
                for index, each in enumerate(value)
                if isinstance(each, bool)
            )
    for name, inner in models:
        value = data.get(name)
        if isinstance(value, (list, tuple)):
            for index, each in enumerate(value):
                yield from truths(inner, each, f"{path}{name}.{index}.")
        else:
            yield from truths(inner, value, f"{path}{name}.")


@functools.cache
def _numbers_and_models(model: type[BaseModel]) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """The fields of a model that hold numbers and never true or false, and those that hold another model,
    with it."""
    numbers, models = [], []
    for name, field in model.model_fields.items():
        kinds = set(_types_in(field.annotation))
        inner = model_in(field.annotation)
        if inner is not None:
            models.append((name, inner))
        elif kinds & {int, float} and bool not in kinds:
            numbers.append(name)
    return tuple(numbers), tuple(models)


def _types_in(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    inner = typing.get_args(annotation)
    for each in inner:
        yield from _types_in(each)
    if not inner:
        yield annotation


def model_in(annotation: Any) -> Any:
    """The first model type inside an annotation such as `tuple[Grid, ...]` or `Measure | None`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    for inner in typing.get_args(annotation):
        model = model_in(inner)
        if model is not None:
            return model
    return None
