"""Listings name what was installed and loaded, wherever it lies: equal files give equal digests, another file
another one."""

import shutil
from pathlib import Path

import pytest

from longca.lab.environment.elf import sha256_of
from longca.lab.environment.loaded import LoadedFiles, is_compiled, mapped_files, search_folders
from longca.lab.environment.packages import PackageFolder
from longca.lab.environment.taking import EnvironmentTaker, SystemFacts
from longca.lab.studies.facts.inventory import RankEnvironment, listing_content, listing_digest
from tests.helpers.environment.distributions import BUILD_ID, distribution, elf, folder_of_packages, loaded_in


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return folder_of_packages(tmp_path / "one/site-packages")


def records_of(site: Path) -> dict[str, str | None]:
    return {each.name: each.record for each in PackageFolder(site).distributions}


def test_every_object_and_module_has_its_owner_and_identity(site: Path):
    loaded = loaded_in(site)
    actual = {
        shared.path: (shared.origin, shared.owner, shared.build_id, shared.hashed)
        for shared in loaded.objects
    }
    assert actual == {
        "torch/lib/libtorch.so": ("distribution", "torch", BUILD_ID.hex(), "record"),
        "flash_attn/cute/plain.so": ("distribution", "flash-attn-4", None, "record"),
        "flash_attn_2_cuda.so": ("module", "flash_attn_2_cuda", "02" * 20, "content"),
        "flash_attn_3/_C.abi3.so": ("module", "flash_attn_3", None, "content"),
    }
    assert all(shared.sha256 == sha256_of(site / shared.path) for shared in loaded.objects)
    assert loaded.distributions == ("flash-attn-4", "torch") and not loaded.changed
    assert [(module.name, module.num_files) for module in loaded.modules] == [
        ("flash_attn", 1),
        ("flash_attn_2_cuda", 1),
        ("flash_attn_3", 2),
    ]


def test_another_folder_has_the_same_digests(site: Path, tmp_path: Path):
    """RECORD itself differs there: it has the hash of a script that names its Python."""
    other = folder_of_packages(tmp_path / "elsewhere/lib/site-packages")
    assert (site / "torch-2.11.0.dist-info/RECORD").read_text() != (
        other / "torch-2.11.0.dist-info/RECORD"
    ).read_text()
    assert loaded_in(other) == loaded_in(site) and records_of(other) == records_of(site)
    assert listing_digest(listing_content(loaded_in(other))) == listing_digest(
        listing_content(loaded_in(site))
    )


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("torch/lib/libtorch.so", elf(content=b"other build")),
        ("torch/lib/libtorch.so", elf(b"\1" * 20, b"torch")),
        ("flash_attn_3/_C.abi3.so", elf(None, b"thre3")),
        ("flash_attn_3/__init__.py", b"#"),
        ("flash_attn/__init__.py", b"version = 3\n"),
        ("torch/__init__.py", b"edited by hand\n"),
    ],
)
def test_one_other_file_has_another_digest(site: Path, path: str, content: bytes):
    before = loaded_in(site)
    (site / path).write_bytes(content)
    after = loaded_in(site)
    assert after != before
    assert (path in after.changed) == path.endswith("torch/__init__.py")


def test_a_distribution_is_known_by_the_files_that_its_record_lists(site: Path):
    before = records_of(site)
    record = site / "torch-2.11.0.dist-info/RECORD"
    lines = record.read_text().splitlines()
    record.write_text("\n".join(reversed(lines)) + "\n")
    assert records_of(site) == before
    record.write_text("\n".join(line for line in lines if "libtorch" not in line) + "\n")
    assert (
        records_of(site)["torch"] != before["torch"]
        and records_of(site)["flash-attn-4"] == before["flash-attn-4"]
    )
    record.unlink()
    assert records_of(site)["torch"] is None


def test_objects_outside_of_packages(site: Path, tmp_path: Path):
    own = tmp_path / "somewhere/mine.so"
    own.parent.mkdir()
    own.write_bytes(elf(None))
    compiled = tmp_path / ".triton/cache/abc/launcher.so"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(elf())
    gone = f"{tmp_path}/replaced.so (deleted)"
    maps = mapped_files(Path("/proc/self/maps").read_text()) if Path("/proc/self/maps").exists() else ()
    libc = next((path for path in maps if Path(path).name.startswith("libc.so")), None)
    loaded = loaded_in(site, more=(str(own), str(compiled), gone, *([libc] if libc else ())))
    outside = {
        shared.path: (shared.origin, shared.sha256 is None)
        for shared in loaded.objects
        if shared.origin not in ("distribution", "module")
    }
    assert outside == {
        "mine.so": ("elsewhere", False),
        "replaced.so (deleted)": ("elsewhere", True),
        **({str(Path(libc)): ("system", True)} if libc else {}),
    }
    assert is_compiled(compiled) and not is_compiled(own)


def test_a_folder_inside_of_another_one_belongs_to_the_distribution_around_it(site: Path):
    """As that of nvidia-cutlass-dsl, which a .pth file puts on the search path."""
    distribution(
        site, "outer", "1.0", {"outer/packages/cute/__init__.py": b"", "outer/packages/cute/ir.so": elf()}
    )
    inner = PackageFolder(site / "outer/packages")
    outer = PackageFolder(site)
    loaded = LoadedFiles([inner, outer]).look(f"1-2 r-xp 0 0:0 1 {site}/outer/packages/cute/ir.so\n", {})
    assert loaded is not None and not loaded.modules
    assert [(shared.origin, shared.owner, shared.path) for shared in loaded.objects] == [
        ("distribution", "outer", "outer/packages/cute/ir.so")
    ]
    (site / "outer/packages/cute/beside.so").write_bytes(elf())
    loaded = LoadedFiles([inner, outer]).look(f"1-2 r-xp 0 0:0 1 {site}/outer/packages/cute/beside.so\n", {})
    assert loaded is not None and [(module.name, module.num_files) for module in loaded.modules] == [
        ("cute", 1)
    ]


def test_folders_that_are_links_are_the_same(site: Path, tmp_path: Path):
    link = tmp_path / "lib64"
    link.symlink_to(site)
    assert search_folders([str(link), str(site), "/no/such/folder"]) == [site.resolve()]
    shutil.rmtree(site / "flash_attn_3")
    assert {module.name for module in loaded_in(site).modules} == {"flash_attn", "flash_attn_2_cuda"}


def test_this_process_is_taken_once_and_then_only_what_is_new():
    facts = SystemFacts("580.1", {"vbios": "96.00"}, f"sha256:{'a' * 64}", f"sha256:{'b' * 64}")
    taker = EnvironmentTaker(facts)
    environment, listings = taker.take()
    installed = taker.installation
    assert (installed.driver, installed.firmware, installed.container) == (
        "580.1",
        {"vbios": "96.00"},
        f"sha256:{'a' * 64}",
    )
    names = {each.name: each.version for each in installed.distributions}
    assert {"torch", "numpy", "pydantic"} <= names.keys() and len(names) == len(installed.distributions)
    assert set(listings) == {digest for digest in (environment.installed, environment.loaded) if digest}
    assert all(listing_digest(content) == digest for digest, content in listings.items())
    assert taker.take() == (environment, listings)
    assert EnvironmentTaker(facts._replace(driver="581.0")).take()[0].installed != environment.installed
    assert RankEnvironment.model_validate(environment.model_dump(mode="json")) == environment
