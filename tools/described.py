"""JSON schemas of models with the texts below their fields, which are read from the source here and not when
a command starts."""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from pydantic import BaseModel


def described_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, with a `description` of each of its own fields that has a text below it."""
    schema = model.model_json_schema()
    texts = _texts(model)
    for name, entry in schema.get("properties", {}).items():
        if name in texts:
            schema["properties"][name] = dict(sorted((entry | {"description": texts[name]}).items()))
    return schema


def _texts(model: type[BaseModel]) -> dict[str, str]:
    """Field → the text below it, of the model and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            texts |= {
                field.target.id: inspect.cleandoc(text.value.value)
                for field, text in pairwise(body.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return texts
