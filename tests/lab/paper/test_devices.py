"""Records of several devices: no exhibit mixes their rates, and each finding says of which device it is."""

import pytest

from longca.lab.paper.build import exhibits
from longca.lab.paper.contract import Exhibit, PaperTable
from longca.lab.store.table import derived
from longca.lab.studies.cell import Cell
from tests.helpers.records import record

H100 = "NVIDIA H100 80GB HBM3"
H200 = "NVIDIA H200"
RATES = {H100: {"band": 700.0, "flex": 500.0}, H200: {"band": 400.0, "flex": 600.0}}
MASKS = {"causal": {}, "block_sparse_uniform": {"block": 64, "density": 0.5}}


@pytest.fixture(scope="module")
def table():
    """Two kernels that change places from one device to the other, alone and in a strategy, with two head
    counts."""
    calls = [
        ({"kind": "kernel", "mask": mask, "mask_params": params, "seqlen": 8192}, heads)
        for mask, params in MASKS.items()
        for heads in (8, 64)
    ]
    calls.append(({"kind": "cp", "strategy": "ring_p2p", "world": 4, "mask": "causal", "seqlen": 32768}, 8))
    return derived(
        [
            record(
                Cell(
                    **call,
                    kernel=kernel,
                    num_q_heads=64,
                    num_kv_heads=heads,
                    head_dim=128,
                    dtype="bf16",
                    direction="fwd",
                ),
                tflops=tflops,
                gpu=gpu,
            )
            for gpu, rates in RATES.items()
            for kernel, tflops in rates.items()
            for call, heads in calls
        ]
    )


def exhibit(name: str) -> Exhibit:
    return next(exhibit for exhibit in exhibits() if exhibit.name == name)


@pytest.mark.parametrize(
    "name", ["dense_8k", "dense_forward", "sparse_forward", "sparse_table", "dense_heads", "cp_documents"]
)
def test_no_number_is_of_two_devices(table, name):
    """A rate between those of the devices would be a middle of both."""
    data = exhibit(name).data(table)
    values = data[[column for column in data if str(column).startswith("value")]].to_numpy(float).ravel()
    assert len(values) and all((abs(table.tflops_per_device / value - 1) < 0.05).any() for value in values)


@pytest.mark.parametrize("name", ["dense_8k", "dense_forward", "sparse_forward", "sparse_table"])
def test_each_device_has_its_own_finding(table, name):
    text = exhibit(name).title(exhibit(name).data(table))
    first, _, second = text.partition(f"; on {H200} ")
    assert f"on {H100} band leads alone" in first and second.startswith("flex leads alone")
    single = table[table.device == H200]
    assert H200 not in exhibit(name).title(exhibit(name).data(single)), "one device needs no name"


@pytest.mark.parametrize("name", ["sparse_table", "dense_heads", "cp_balance", "cp_planning", "memory_cp"])
def test_a_table_has_a_row_for_each_device(table, name):
    shown = exhibit(name)
    assert isinstance(shown, PaperTable)
    rows = table.assign(mask="full", above_shards_bytes=1 << 30) if name == "memory_cp" else table
    both, first = (shown.cells(shown.data(part)) for part in (rows, rows[rows.device == H200]))
    place = both.header.index("device")
    assert "device" not in first.header and len(both.rows) == 2 * len(first.rows) and place < both.num_keys
    assert {row[place] for row in both.rows} == {H100, H200}


def test_memory_is_that_of_the_studys_gpu(table):
    for name in ("memory_dense", "memory_sparse"):
        ids = set(exhibit(name).cell_ids(exhibit(name).data(table)))
        assert ids and ids <= set(table.cell_id[table.device == H100])


def test_an_exhibit_names_the_devices_that_measured_it(table, tmp_path):
    """Memory is shown of the study's GPU alone: neither its line nor its links may name the other one."""
    from longca.lab.paper.analysis.select import devices

    memory = exhibit("memory_dense").data(table)
    assert devices(memory) == (H100,) and devices(exhibit("dense_8k").data(table)) == (H100, H200)
    assert devices(table.assign(device="")) == ()


def test_a_page_and_a_line_of_provenance_are_of_one_device(table):
    """Both models ran the same cells of one study, and each has its own page of them."""
    from longca.core.hardware import load_hardware
    from longca.lab.paper.links import RunPage
    from longca.lab.paper.provenance import provenance

    ids = tuple(table.cell_id)
    pages = [RunPage("test", f"../{name}.html", ids, {}, devices=(name,)) for name in (H100, H200)]
    assert [[page.is_of(name) for page in pages] for name in ("H100", "H200")] == [
        [True, False],
        [False, True],
    ]
    entries = provenance([], table.assign(study="test"), load_hardware(), pages).studies
    assert [(entry.gpu, entry.page, entry.num_cells) for entry in entries] == [
        ("H100", pages[0], len(table) // 2),
        ("H200", pages[1], len(table) // 2),
    ]


def test_shares_of_published_peaks_are_told_for_each_device(table):
    from longca.core.hardware import load_hardware
    from longca.lab.paper.published import published_findings, published_pairs, published_rates

    rows = table.assign(kernel="fa3", method="fa3")
    data = exhibit("dense_8k").data(
        rows.loc[(rows.kind == "kernel") & (rows["mask"] == "causal")].drop_duplicates(["cell_id", "device"])
    )
    pairs = published_pairs(data, published_rates(rows, load_hardware()))
    assert set(pairs.here) == {H100, H200}
    texts = [text for text in published_findings(pairs) if text.startswith("Share of peak")]
    assert texts and {
        device for device in (H100, H200) for text in texts if f"Share of peak on {device} here" in text
    } == {H100, H200}
