"""Band attention's portable kernels compile for GPUs before and after Hopper, and fit into their shared
memory. No GPU is needed."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


def check(capability: tuple[int, int], kernels: set[str], *, few: bool) -> None:
    from benchmarks.band.portable_builds import SHARED_BYTES, builds

    chosen = [build for build in builds(capability, few) if build.name in kernels]
    assert {build.name for build in chosen} == kernels
    for build in chosen:
        assert 0 <= build.shared_bytes <= SHARED_BYTES[capability], (
            build.name,
            build.constants,
            build.shared_bytes,
        )
        assert build.tensor_memory_columns <= 512 and 0 < build.registers <= 255 and build.spilled_bytes >= 0


def test_some_compile() -> None:
    check((8, 0), {"dq"}, few=True)
    check((10, 0), {"forward"}, few=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capability", [(8, 0), (10, 0)], ids=str)
def test_all_compile(capability: tuple[int, int]) -> None:
    """Both head dims and dtypes, bands and blocks, 8 query heads for a KV head and one, carried results,
    split row tiles."""
    check(capability, {"forward", "combine_kernel", "preprocess", "dkdv", "dq", "add_partials"}, few=False)


def test_builds_are_those_of_the_gpu() -> None:
    """Before Hopper with 8 warps, after it with 4; addresses and strides are known to be multiples of 16."""
    from benchmarks.band.portable_builds import builds

    for capability, num_warps, tile_n in (((8, 0), 8, 64), ((10, 0), 4, 64)):
        (forward,) = (build for build in builds(capability, few=True) if build.name == "forward")
        names = forward.kernel.arg_names
        assert (
            forward.options["num_warps"] == num_warps and forward.constants[names.index("TILE_N"),] == tile_n
        )
        known = {names[position] for position, *_ in forward.attributes}
        assert {"q_ptr", "out_ptr", "work_tiles_ptr", "q_token", "out_head"} <= known
        assert forward.signature["q_ptr"] == "*bf16" and forward.signature["k_desc"].startswith(
            "tensordesc<bf16[64, 128]"
        )
