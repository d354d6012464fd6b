"""From files to frozen values, and what is said of all that is wrong."""

import math
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError, model_validator

from longca.core.errors import UserError
from longca.core.schema import Frozen, merge, parse, read_yaml


class Wheel(Frozen):
    spokes: int = Field(default=8, ge=1)


class Cart(Frozen):
    name: str
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    load: dict[str, Annotated[float, Field(allow_inf_nan=True)]] = Field(default={})

    @model_validator(mode="after")
    def _rolls(self) -> "Cart":
        if len(self.wheels) == 1:
            raise ValueError("one wheel is not enough")
        return self


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"nam": "x"},
            "f.yaml has 2 problems:\n  key 'name' is missing\n  unknown key 'nam', did you mean 'name'?",
        ),
        ({"name": "x", "whels": []}, "f.yaml: unknown key 'whels', did you mean 'wheels'?"),
        ({"name": "x", "zzz": 1}, "f.yaml: unknown key 'zzz', known keys: load, name, spare, wheels"),
        (
            {"name": "x", "wheels": [{}, {"spoke": 3}]},
            "f.yaml: unknown key 'wheels.1.spoke', did you mean 'spokes'?",
        ),
        ({"name": "x", "spare": {"spoks": 3}}, "f.yaml: unknown key 'spare.spoks', did you mean 'spokes'?"),
        (
            {"name": "x", "wheels": [{}, {"spokes": 0}]},
            "f.yaml: 'wheels.1.spokes' = 0: Input should be greater than or equal to 1",
        ),
        ({"name": "x", "wheels": [{}]}, "f.yaml: one wheel is not enough"),
        (
            {"name": 1, "a": 1},
            "f.yaml has 2 problems:\n  'name' = 1: Input should be a valid string\n"
            "  unknown key 'a', known keys: load, name, spare, wheels",
        ),
        (["x"], "f.yaml: Input should be a valid dictionary or instance of Cart"),
        (None, "f.yaml: Input should be a valid dictionary or instance of Cart"),
    ],
)
def test_all_problems_a_line_for_each(data: Any, line: str):
    with pytest.raises(UserError) as caught:
        parse(Cart, data, "f.yaml")
    assert str(caught.value) == line


def test_long_values_are_cut():
    with pytest.raises(UserError) as caught:
        parse(Cart, {"name": list(range(1000))}, "f.yaml")
    assert len(str(caught.value)) < 150


def test_values_do_not_change():
    cart = parse(Cart, {"name": "x"}, "f.yaml")
    with pytest.raises(ValidationError, match="frozen"):
        cart.name = "y"  # type: ignore[misc]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1.0, 5e-324])
def test_floats_survive_json(value: float):
    text = Cart(name="x", load={"a": value}).model_dump_json()
    assert repr(Cart.model_validate_json(text).load["a"]) == repr(value)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("a: 1\nb: [x, 2.5, true]", {"a": 1, "b": ["x", 2.5, True]}),
        ("heads: 64:8", {"heads": "64:8"}),
        ("heads: [64:8, 8:08]", {"heads": ["64:8", "8:08"]}),
        ("a: [0, -3, +4, 1_000, 1024]", {"a": [0, -3, 4, 1000, 1024]}),
        ("base: &b {x: 1}\nc: {<<: *b, y: 2}", {"base": {"x": 1}, "c": {"x": 1, "y": 2}}),
        ("? [1, 2]\n: x", None),
    ],
)
def test_yaml(tmp_path: Path, text: str, content: Any):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    if content is None:
        with pytest.raises(UserError, match="line 1 is not valid YAML: found unhashable key"):
            read_yaml(path)
    else:
        assert read_yaml(path) == content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: 1\nb: [1, 2", "f.yaml' line 2 is not valid YAML: expected ',' or ']'"),
        (b"a: 1\n\n a: 2\n", "f.yaml' line 3 is not valid YAML"),
        (b"a: 1\nb: 2\na: 3", "f.yaml' line 3 is not valid YAML: key 'a' stands twice"),
        (b"a: {x: 1, x: 2}", "f.yaml' line 1 is not valid YAML: key 'x' stands twice"),
        (b"a: !!python/object:os.system {}", "line 1 is not valid YAML"),
        (b"a: \x00", "f.yaml' is not valid YAML"),
        (b"a: \xff", "f.yaml' is not UTF-8 text: invalid start byte"),
    ],
)
def test_not_yaml(tmp_path: Path, content: bytes, expected: str):
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path):
    with pytest.raises(UserError, match=r"Cannot read '.*f.yaml': No such file"):
        read_yaml(tmp_path / "f.yaml")
    with pytest.raises(UserError, match=r"Cannot read '.*': Is a directory"):
        read_yaml(tmp_path)


def test_later_layers_win_key_by_key():
    layers = (
        {"a": 1, "b": {"x": 1, "y": {"z": 1}}},
        {"b": {"y": {"z": 2}, "w": 3}},
        {"a": {"now": "a mapping"}},
        {"c": [1]},
        {"c": [2]},
    )
    assert merge(*layers) == {"a": {"now": "a mapping"}, "b": {"x": 1, "y": {"z": 2}, "w": 3}, "c": [2]}
    assert merge() == {}
    assert layers[0] == {"a": 1, "b": {"x": 1, "y": {"z": 1}}}
