"""From a study's file to its cells, and every study that cannot be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longca.core.errors import UserError
from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure
from longca.lab.studies.study import Study, load_study, study_path

WriteStudy = Callable[..., Path]


def cells_of(path: Path) -> list[Any]:
    return load_study(str(path)).cells()


def test_golden_ids(plugins: Path, write_study: WriteStudy):
    path = write_study(
        {
            "mask": ["toy_mask", {"toy_documents": {"step": [1, 2]}}],
            "corpus": "toy_corpus",
            "seed": [0, 1],
            "direction": "fwd",
        },
        {
            "kind": "cp",
            "strategy": "toy_strategy",
            "world": [2, 4],
            "seqlen_per_rank": "1K",
            "seqlen": [],
            "direction": "bwd",
        },
    )
    assert [(cell.title, cell.cell_id) for cell in cells_of(path)] == [
        ("toy_kernel toy_mask(step=4,share=0.5) S=1024 8:2 D=128 bf16 fwd seed=0", "827d9843133cc118"),
        ("toy_kernel toy_documents(step=1,share=0.5) S=1024 8:2 D=128 bf16 fwd seed=0", "9576adaf3b743f0f"),
        ("toy_kernel toy_documents(step=1,share=0.5) S=1024 8:2 D=128 bf16 fwd seed=1", "8dacb4ed420e5c36"),
        ("toy_kernel toy_documents(step=2,share=0.5) S=1024 8:2 D=128 bf16 fwd seed=0", "4792447e3706cbd0"),
        ("toy_kernel toy_documents(step=2,share=0.5) S=1024 8:2 D=128 bf16 fwd seed=1", "e4420f499a9e0411"),
        (
            "toy_strategy+toy_kernel ×2 toy_mask(step=4,share=0.5) S=2048 8:2 D=128 bf16 bwd seed=0",
            "2226177134f65c60",
        ),
        (
            "toy_strategy+toy_kernel ×4 toy_mask(step=4,share=0.5) S=4096 8:2 D=128 bf16 bwd seed=0",
            "802a9f72887b3147",
        ),
    ]


def test_the_product_of_all_lists(plugins: Path, write_study: WriteStudy):
    cells = cells_of(
        write_study(
            {
                "mask": {"toy_documents": {"step": [1, 2], "share": [0.1, 0.2, 0.3]}},
                "seqlen": [64, "1K"],
                "heads": ["8:2", 4],
                "head_dim": [64, 128],
                "dtype": ["bf16", "fp16"],
                "seed": [0, 1, 2],
                "corpus": ["toy_corpus", "pile"],
            }
        )
    )
    assert len(cells) == 6 * 2 * 2 * 2 * 2 * 2 * 3 * 2
    assert len({cell.cell_id for cell in cells}) == len(cells)
    assert {(cell.num_q_heads, cell.num_kv_heads) for cell in cells} == {(8, 2), (4, 4)}
    assert {cell.seqlen for cell in cells} == {64, 1024}


def test_each_cell_once_in_the_order_of_the_file(plugins: Path, write_study: WriteStudy):
    cells = cells_of(write_study({"seqlen": [2048, 1024]}, {"seqlen": [512, 1024], "direction": "fwd"}))
    assert [(cell.seqlen, cell.direction) for cell in cells] == [
        (2048, "fwd"),
        (2048, "bwd"),
        (1024, "fwd"),
        (1024, "bwd"),
        (512, "fwd"),
    ]


def test_parameters_are_resolved(plugins: Path, write_study: WriteStudy):
    given = cells_of(write_study({"mask": {"toy_mask": {"share": 0.5}}}))
    as_text = cells_of(write_study({"mask": {"toy_mask": {"step": "4"}}}))
    assert cells_of(write_study()) == given == as_text
    assert given[0].mask_params == {"step": 4, "share": 0.5}


def test_parameters_of_strategies(plugins: Path, write_study: WriteStudy):
    cells = cells_of(
        write_study(
            {
                "kind": "cp",
                "strategy": ["toy_strategy", {"toy_mesh": {"heads": [2, "4"], "windows": [1, 3]}}],
                "world": [4, 8],
                "direction": "fwd",
            }
        )
    )
    expected = [
        "toy_strategy",
        *(
            f"toy_mesh[{params}]"
            for params in ("heads=2", "heads=2,windows=3", "heads=4", "heads=4,windows=3")
        ),
    ]
    assert [(cell.method, cell.world) for cell in cells] == [
        (f"{name}+toy_kernel", world) for name in expected for world in (4, 8)
    ]
    assert cells[-1].strategy_params == {"heads": 4, "windows": 3}


def test_defaults_of_strategies_are_no_other_cells(plugins: Path, write_study: WriteStudy):
    plain, default = (
        cells_of(write_study({"kind": "cp", "strategy": strategy, "world": 2}))
        for strategy in ("toy_mesh", {"toy_mesh": {"windows": 1}})
    )
    assert plain == default
    assert [cell.cell_id for cell in plain] == [cell.cell_id for cell in default]


def test_what_a_mask_does_not_use_is_not_in_its_cells(plugins: Path, write_study: WriteStudy):
    regular = cells_of(write_study({"corpus": ["toy_corpus", "pile"], "seed": [0, 1, 2], "direction": "fwd"}))
    assert [(cell.corpus, cell.seed) for cell in regular] == [(None, 0)]
    documents = cells_of(write_study({"mask": "toy_documents", "seed": [0, 1], "direction": "fwd"}))
    assert [(cell.corpus, cell.seed) for cell in documents] == [("pile", 0), ("pile", 1)]


def test_a_corpus_from_a_length_on(plugins: Path, write_study: WriteStudy):
    cells = cells_of(
        write_study(
            {
                "mask": "toy_documents",
                "corpus": "toy_corpus",
                "seqlen": ["512", "8K", "16K", "64K", "128K"],
                "corpus_from": {"64K": "prolong512k", "16K": "prolong64k"},
                "direction": "fwd",
            }
        )
    )
    assert [cell.corpus for cell in cells] == [
        "toy_corpus",
        "toy_corpus",
        "prolong64k",
        "prolong512k",
        "prolong512k",
    ]


def test_lengths_per_rank(plugins: Path, write_study: WriteStudy):
    cells = cells_of(
        write_study(
            {
                "kind": "cp",
                "strategy": "toy_strategy",
                "world": [2, 3],
                "seqlen": [],
                "seqlen_per_rank": ["1K", 512],
                "direction": "fwd",
            }
        )
    )
    assert [(cell.world, cell.seqlen) for cell in cells] == [(2, 2048), (2, 1024), (3, 3072), (3, 1536)]


def test_heads_need_no_quotes(plugins: Path, tmp_path: Path):
    path = tmp_path / "study.yaml"
    path.write_text("grids: [{kernel: toy_kernel, mask: toy_mask, seqlen: 64, heads: [64:8, 4]}]")
    assert {(cell.num_q_heads, cell.num_kv_heads) for cell in cells_of(path)} == {(64, 8), (4, 4)}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kernel": ({"kernel": "toy_kernal"}, "Unknown kernel 'toy_kernal': did you mean 'toy_kernel'"),
    "unknown strategy": (
        {"kind": "cp", "strategy": "toy_stratgy"},
        "Unknown strategy 'toy_stratgy': did you mean 'toy_strategy'",
    ),
    "unknown strategy with parameters": (
        {"kind": "cp", "strategy": {"toy_mehs": {"heads": 2}}},
        "Unknown strategy 'toy_mehs': did you mean 'toy_mesh'",
    ),
    "unknown parameter of a strategy": (
        {"kind": "cp", "strategy": [{"toy_mesh": {"head": 2}}]},
        "Strategy 'toy_mesh': unknown key 'head', did you mean 'heads'?",
    ),
    "parameter of a strategy without any": (
        {"kind": "cp", "strategy": [{"toy_strategy": {"heads": 2}}]},
        "Strategy 'toy_strategy': unknown key 'heads', known keys: none",
    ),
    "parameter of a strategy of wrong type": (
        {"kind": "cp", "strategy": {"toy_mesh": {"heads": 1.5}}},
        "Strategy 'toy_mesh': 'heads' = 1.5: Input should be a valid integer",
    ),
    "strategy without parameters": ({"kind": "cp", "strategy": [{"toy_mesh": None}]}, "'grids.0.strategy.0"),
    "unknown mask": ({"mask": "toy_maks"}, "Unknown mask 'toy_maks': did you mean 'toy_mask'"),
    "unknown corpus": ({"corpus": "toy_korpus"}, "Unknown corpus 'toy_korpus': did you mean 'toy_corpus'"),
    "unknown corpus later on": ({"corpus_from": {"4K": "pil"}}, "Unknown corpus 'pil': did you mean 'pile'"),
    "unknown key": ({"seqlens": 64}, "unknown key 'grids.0.seqlens', did you mean 'seqlen'?"),
    "unknown parameter": (
        {"mask": {"toy_mask": {"stepp": 1}}},
        "Mask 'toy_mask': unknown key 'stepp', did you mean 'step'?",
    ),
    "parameter of wrong type": (
        {"mask": {"toy_mask": {"step": "wide"}}},
        "Mask 'toy_mask': 'step' = 'wide': Input should be a valid integer",
    ),
    "mask without parameters": ({"mask": [{"toy_mask": None}]}, "'grids.0.mask.0"),
    "length 0": ({"seqlen": [64, 0]}, "'grids.0.seqlen.1' = 0: 0 is not a length"),
    "negative length": ({"seqlen": -64}, "'grids.0.seqlen.0' = -64: -64 is not a length"),
    "negative length per rank": ({"seqlen": [], "seqlen_per_rank": "-1K"}, "'-1K' is not a length"),
    "not a length": ({"seqlen": "8Q"}, "'8Q' is not a length"),
    "not a length in corpus_from": ({"corpus_from": {"x": "pile"}}, "'x' is not a length"),
    "length does not divide": (
        {"seqlen": 66},
        "mask 'toy_mask' at length 66: the length must be divisible by 4",
    ),
    "heads do not divide": ({"heads": "6:4"}, "6 query heads cannot be shared evenly among 4 KV heads"),
    "not heads": ({"heads": "8/2"}, "'8/2' is not a head count"),
    "two kinds of length": (
        {"seqlen_per_rank": 64},
        "the lengths are not clear. Give either `seqlen` or `seqlen_per_rank`",
    ),
    "no length": ({"seqlen": []}, "the lengths are not clear"),
    "no head dim": ({"head_dim": 0}, "'grids.0.head_dim.0' = 0: Input should be greater than or equal to 1"),
    "no such type": ({"dtype": "fp8"}, "'grids.0.dtype.0' = 'fp8': Input should be 'bf16', 'fp16' or 'fp32'"),
    "no such direction": (
        {"direction": "both"},
        "'grids.0.direction.0' = 'both': Input should be 'fwd' or 'bwd'",
    ),
    "negative seed": ({"seed": -1}, "'grids.0.seed.0' = -1"),
    "no ranks": ({"world": 0}, "'grids.0.world.0' = 0"),
    "ranks without a strategy": ({"world": 2}, "a `kernel` cell runs on one device"),
    "cp without a strategy": ({"kind": "cp"}, "a `cp` cell needs a strategy"),
    "strategy without cp": (
        {"strategy": "toy_strategy"},
        "a `cp` cell needs a strategy, a `kernel` cell has none",
    ),
    "no kernels": ({"kernel": []}, "Study 'study' has no cells: its grids are empty"),
}


@pytest.mark.parametrize(("change", "expected"), BAD.values(), ids=BAD.keys())
def test_a_grid_that_cannot_be(plugins: Path, write_study: WriteStudy, change: dict[str, Any], expected: str):
    with pytest.raises(UserError) as caught:
        cells_of(write_study(change))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_second_grid_is_named(plugins: Path, write_study: WriteStudy):
    with pytest.raises(UserError, match="study 'study', grid 2"):
        cells_of(write_study({}, {"seqlen": 66}))


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        ({"mesure": {}}, "unknown key 'mesure', did you mean 'measure'?"),
        ({"measure": {"repeat": 3}}, "unknown key 'measure.repeat', did you mean 'repeats'?"),
        ({"measure": {"repeats": 0}}, "'measure.repeats' = 0"),
        ({"measure": {"warmup": -1}}, "'measure.warmup' = -1"),
        ({"measure": {"timeout_s": 0}}, "'measure.timeout_s' = 0"),
        ({"seed": "x"}, "'seed' = 'x'"),
    ],
)
def test_a_study_that_cannot_be(plugins: Path, write_study: WriteStudy, study: dict[str, Any], expected: str):
    path = write_study(**study)
    with pytest.raises(UserError) as caught:
        load_study(str(path))
    assert str(caught.value).startswith(f"{path}: {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "key 'grids' is missing"),
        ("grids: []", "'grids' = []"),
        ("[1, 2]", "valid dictionary"),
        ("grids: 5", "'grids' = 5"),
        ("grids: [5]", "'grids.0' = 5"),
        ("grids: [{kernel: a, mask: b, seqlen: 1}]", "key 'grids.0.heads' is missing"),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, text: str, expected: str):
    path = tmp_path / "study.yml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_study(str(path))
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_found_by_name_or_path(write_study: WriteStudy, tmp_path: Path):
    path = write_study(title="A title", measure={"repeats": 2})
    study = load_study("study", tmp_path)
    assert study == load_study(str(path))
    assert (study.name, study.title, study.measure) == ("study", "A title", Measure(repeats=2))
    assert study_path("study", tmp_path) == path
    assert load_study(str(write_study(name="own"))).name == "own"


def test_studies_that_are_not_there(write_study: WriteStudy, tmp_path: Path):
    write_study()
    with pytest.raises(
        UserError, match=r"Unknown study 'studi': did you mean 'study'\? Studies are the files in"
    ):
        load_study("studi", tmp_path)
    with pytest.raises(UserError, match="Unknown study 'studi': there is none"):
        load_study("studi", tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"Cannot read '.*gone.yaml': No such file"):
        load_study(str(tmp_path / "gone.yaml"))


@pytest.mark.parametrize(
    ("given", "offered"),
    [("mine.yml", "mine.yaml"), ("mien", "mine.yaml"), ("mine", "mine.yaml"), ("studi.yaml", "study")],
)
def test_a_near_file_or_study_is_named(
    write_study: WriteStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, offered: str
):
    """A wrong ending, a slip of the keys, a file that is named as a study, and a study as a file."""
    folder = write_study().parent
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.yaml").write_text("grids: []")
    monkeypatch.chdir(work)
    with pytest.raises(UserError, match=rf"Unknown study '{given}': did you mean '{offered}'\?"):
        load_study(given, folder)


def test_a_study_is_a_value(write_study: WriteStudy):
    study = load_study(str(write_study()))
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_a_grid_may_be_measured_otherwise(plugins: Path, write_study: WriteStudy):
    path = write_study(
        {},
        {"seqlen": 64, "measure": {"repeats": 100}},
        {"seqlen": [64, 128], "measure": {"warmup": 9}},
        measure={"warmup": 5, "repeats": 20},
    )
    study = load_study(str(path))
    actual = {cell.seqlen: study.measure_of(cell) for cell in study.cells()}
    assert actual == {
        1024: Measure(warmup=5, repeats=20),
        64: Measure(warmup=5, repeats=100),
        128: Measure(warmup=9, repeats=20),
    }
    assert Study.model_validate_json(study.model_dump_json()) == study, "what was completed stays so"
    stranger = Cell.model_validate(
        next(cell for cell in study.cells() if cell.seqlen == 64).model_dump() | {"seqlen": 32}
    )
    assert study.measure_of(stranger) == study.measure


def test_a_measure_of_a_grid_that_cannot_be(plugins: Path, write_study: WriteStudy):
    with pytest.raises(UserError, match=r"'grids.0.measure.repeats' = 0"):
        load_study(str(write_study({"measure": {"repeats": 0}})))
    assert load_study(str(write_study({"measure": {"repeats": 3}}))).grids[0].measure == Measure(repeats=3)
