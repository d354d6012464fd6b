"""Cells: what they refuse, and ids that are the same on every machine."""

import hashlib
import json
from typing import Any

import pytest
from pydantic import ValidationError

from longca.lab.studies.cell import Cell

KERNEL: dict[str, Any] = {
    "kind": "kernel",
    "kernel": "sdpa",
    "mask": "causal_document",
    "mask_params": {"paper_compat": False},
    "corpus": "pile",
    "seqlen": 8192,
    "num_q_heads": 64,
    "num_kv_heads": 8,
    "head_dim": 128,
    "dtype": "bf16",
    "direction": "fwd",
    "seed": 3,
}
CP: dict[str, Any] = {
    **KERNEL,
    "kind": "cp",
    "strategy": "ulysses",
    "world": 8,
    "mask": "sliding_window",
    "mask_params": {"window": 1024, "share": 1.0},
    "corpus": None,
    "direction": "bwd",
    "seed": 0,
}


@pytest.mark.parametrize(
    ("fields", "cell_id"),
    [
        (KERNEL, "eeb976cfda3adcbe"),
        ({**KERNEL, "seed": 4}, "9e86566eccd27937"),
        ({**KERNEL, "corpus": None}, "85b6afc156c66aa5"),
        (CP, "563902ba23dc7cee"),
        ({**CP, "strategy_params": {}, "input_values": "normal", "sustained": False}, "563902ba23dc7cee"),
        ({**CP, "mask_params": {"window": 1024, "share": 1}}, "8ccf1a2db3a57e40"),
    ],
)
def test_golden_ids(fields: dict[str, Any], cell_id: str):
    assert Cell(**fields).cell_id == cell_id


@pytest.mark.parametrize(
    "fields",
    [
        KERNEL,
        CP,
        {**CP, "strategy_params": {"seed": 1, "seqlen": ',"seed":'}, "mask_params": {"seed": 5}},
        {**KERNEL, "corpus": 'my "own" é', "sustained": True},
    ],
)
def test_an_id_is_the_hash_of_canonical_json(fields: dict[str, Any]):
    cell = Cell(**fields)
    canonical = json.dumps(cell.model_dump(), sort_keys=True, separators=(",", ":"))
    assert cell.cell_id == hashlib.sha256(canonical.encode()).hexdigest()[:16]


def test_another_draw_is_the_cell_with_another_seed():
    cell = Cell(**KERNEL)
    assert cell.cell_id != cell.with_seed(7).cell_id
    assert (
        cell.with_seed(7) == Cell(**{**KERNEL, "seed": 7})
        and cell.with_seed(7).cell_id == Cell(**{**KERNEL, "seed": 7}).cell_id
    )
    assert (
        cell.with_seed(7).model_dump_json() == Cell(**{**KERNEL, "seed": 7}).model_dump_json()
        and cell.seed == 3
    )


def test_every_field_is_part_of_the_id():
    others = {
        "kernel": "flex",
        "strategy": "usp",
        "strategy_params": {"heads": 2},
        "world": 16,
        "mask": "causal",
        "mask_params": {"window": 512},
        "corpus": "mine",
        "seqlen": 4096,
        "new_tokens": 128,
        "num_q_heads": 32,
        "num_kv_heads": 4,
        "head_dim": 64,
        "dtype": "fp16",
        "direction": "fwd",
        "seed": 1,
        "input_values": "small",
    }
    assert set(others) == set(Cell.model_fields) - {"kind", "sustained"}
    ids = {Cell(**{**CP, field: value}).cell_id for field, value in others.items()}
    assert len(ids | {Cell(**CP).cell_id}) == len(others) + 1
    assert Cell(**KERNEL, sustained=True).cell_id != Cell(**KERNEL).cell_id


def test_ids_do_not_depend_on_the_order_of_keys_nor_on_json():
    cell = Cell(**CP)
    turned = Cell(**{**dict(reversed(CP.items())), "mask_params": {"share": 1.0, "window": 1024}})
    back = Cell.model_validate_json(cell.model_dump_json())
    assert cell.cell_id == turned.cell_id == back.cell_id
    assert cell == back
    assert len({cell, turned, back}) == 1
    assert len(cell.cell_id) == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_q_heads": 6, "num_kv_heads": 4}, "6 query heads cannot be shared evenly among 4 KV heads"),
        ({"strategy": "ulysses"}, "a `cp` cell needs a strategy, a `kernel` cell has none"),
        ({"kind": "cp"}, "a `cp` cell needs a strategy, a `kernel` cell has none"),
        ({"world": 2}, "a `kernel` cell runs on one device"),
        ({"world": 0}, "greater than or equal to 1"),
        ({"seqlen": 0}, "greater than or equal to 1"),
        ({"seqlen": 1 << 31}, "less than or equal to 2147483647"),
        ({"seqlen": -8}, "greater than or equal to 1"),
        ({"head_dim": 0}, "greater than or equal to 1"),
        ({"num_kv_heads": 0}, "greater than or equal to 1"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"dtype": "fp8"}, "'bf16', 'fp16' or 'fp32'"),
        ({"direction": "both"}, "'fwd' or 'bwd'"),
        ({"kind": "mask"}, "'kernel' or 'cp'"),
        ({"strategy_params": {"heads": 2}}, "parameters of a strategy need a strategy"),
        ({"mask_params": {"window": [1]}}, "mask_params"),
        ({"colour": "red"}, "Extra inputs"),
        ({"input_values": "zero"}, "'normal', 'signs', 'small' or 'constant'"),
        ({"input_values": "constant", "direction": "bwd"}, "inputs of one value run forward alone"),
        (
            {"kind": "cp", "strategy": "ulysses", "sustained": True},
            "calls without a pause are timed on one device alone",
        ),
    ],
)
def test_what_cannot_be_a_cell(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        Cell(**{**KERNEL, **changes})


def test_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Cell(**KERNEL).seed = 9  # type: ignore[misc]


def test_names_in_tables():
    kernel = Cell(**KERNEL)
    cp = Cell(**CP)
    assert (kernel.method, cp.method) == ("sdpa", "ulysses+sdpa")
    assert kernel.title == "sdpa causal_document S=8192 64:8 D=128 bf16 fwd seed=3"
    assert (
        cp.title == "ulysses+sdpa ×8 sliding_window(window=1024,share=1.0) S=8192 64:8 D=128 bf16 bwd seed=0"
    )
    assert Cell(**{**KERNEL, "mask": "causal", "mask_params": {}}).title.startswith("sdpa causal S=8192")
    assert (
        "causal_document(paper_compat=True) "
        in Cell(**{**KERNEL, "mask_params": {"paper_compat": True}}).title
    )


def test_names_tell_parameters_of_strategies_apart():
    cell = Cell(**{**CP, "strategy": "loongtrain", "strategy_params": {"windows": 1, "heads": 2}})
    assert cell.method == "loongtrain[heads=2,windows=1]+sdpa"
    assert cell.title.startswith("loongtrain[heads=2,windows=1]+sdpa ×8 sliding_window")
    assert cell.single_gpu_baseline() == Cell(**CP).single_gpu_baseline()


def test_a_cell_without_parameters_of_its_strategy_is_written_without_them():
    given = Cell(**{**CP, "strategy_params": {"heads": 2}})
    assert "strategy_params" not in Cell(**CP).model_dump_json() + Cell(**KERNEL).model_dump_json()
    assert given.model_dump()["strategy_params"] == {"heads": 2}
    assert Cell.model_validate_json(given.model_dump_json()) == given


def test_mask_key_holds_all_that_decides_the_mask():
    assert Cell(**KERNEL).mask_key == {
        "seqlen": 8192,
        "corpus": "pile",
        "seed": 3,
        "num_kv_heads": 8,
        "paper_compat": False,
    }


@pytest.mark.parametrize(
    ("direction", "flops"), [("fwd", 4 * 1000 * 64 * 128), ("bwd", 10 * 1000 * 64 * 128)]
)
def test_flops(direction: str, flops: int):
    cell = Cell(**{**KERNEL, "direction": direction})
    assert cell.flops(1000, 1) == flops
    assert cell.flops(8 * 1000, 8) == flops
    assert isinstance(cell.flops(1000, 1), int)
