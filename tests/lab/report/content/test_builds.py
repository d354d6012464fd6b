"""Builds of methods by the digests in the environments of their records."""

from longca.lab.report.content.builds import UNKNOWN, Builds
from longca.lab.studies.facts.inventory import (
    Distribution,
    Installation,
    LoadedSoftware,
    LooseModule,
    SharedObject,
)

DIGEST = "0123456789abcdef" * 4
LOADED = LoadedSoftware(
    modules=(LooseModule(name="flash_attn_interface", num_files=1, num_bytes=1, sha256=DIGEST),),
    objects=(
        SharedObject(
            origin="module", owner="flash_attn_3", path="flash_attn_3/_C.abi3.so", build_id="ab" * 20
        ),
        SharedObject(origin="module", owner="fa2", path="fa2.cpython-312-x86_64-linux-gnu.so", sha256=DIGEST),
        SharedObject(origin="distribution", owner="fast", path="fast.libs/libcudart.so", sha256=DIGEST),
    ),
)
INSTALLED = Installation(
    python="3.12", machine="x86_64", kernel="6", libc="2",
    distributions=(Distribution(name="fast", version="1", record=DIGEST),),
)  # fmt: skip
BUILDS = Builds({"CUDA 13.0"}, {"l": LOADED}, {"i": INSTALLED})


def test_binaries_and_loose_modules_are_named_by_their_digests() -> None:
    assert BUILDS.names(("flash_attn_interface", "flash_attn_3"), ()) == (
        "CUDA 13.0",
        "flash_attn_3/_C.abi3.so abababababab",
        "flash_attn_interface 0123456789ab",
    )
    assert BUILDS.names(("fa2",), ())[1] == "fa2.so 0123456789ab"


def test_a_package_without_binaries_has_the_hash_of_its_list_of_files() -> None:
    assert BUILDS.names(("fast",), ("fast",)) == ("CUDA 13.0", "fast 0123456789ab")


def test_a_build_that_no_record_names_is_not_recorded() -> None:
    assert Builds({"CUDA 12.8"}).names(("fast",), ("fast",)) == ("CUDA 12.8", UNKNOWN)
    assert Builds({"CUDA 12.8"}).names((), ()) == ("CUDA 12.8",)
