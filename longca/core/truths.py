"""True and false where a model has a number: pydantic takes them for 1 and 0."""

import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Place = tuple[Any, ...]
"""the keys and indices that lead to a value"""
PLAIN = (int, float, str, type(None))  # types of values that hold no truth, and of most


def truths(model: type[BaseModel], data: Any, place: Place = ()) -> Iterator[tuple[Place, bool]]:
    """Each true and false that stands for a number in data for a model, with its place."""
    if not isinstance(data, Mapping):
        return
    for name, inner, is_named in _numbers_and_models(model):
        value = data.get(name)
        if type(value) in PLAIN:
            continue
        here = (*place, name)
        if inner is None:
            yield from _truths_of_numbers(value, here)
        elif isinstance(value, Mapping) and not is_named:
            yield from truths(inner, value, here)
        else:
            for key, each in _entries(value):
                yield from truths(inner, each, (*here, key))


def _truths_of_numbers(value: Any, place: Place) -> Iterator[tuple[Place, bool]]:
    if isinstance(value, bool):
        yield place, value
    for key, each in _entries(value):
        yield from _truths_of_numbers(each, (*place, key))


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """(key or index, value) of a mapping or a list; nothing of another value."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


@functools.cache
def _numbers_and_models(model: type[BaseModel]) -> tuple[tuple[str, Any, bool], ...]:
    """(name, other model or None, whether there are several by name) of each field that holds another model,
    or numbers and never true or false."""
    fields = []
    for name, field in model.model_fields.items():
        kinds = set(_types_in(field.annotation))
        inner = model_in(field.annotation)
        if inner is not None or (kinds & {int, float} and bool not in kinds):
            fields.append((name, inner, typing.get_origin(field.annotation) is dict))
    return tuple(fields)


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
