"""Two images are compared by what is in them, and a bill of materials names all of it."""

import json

import pytest

from longca.core.errors import UserError
from longca.lab.images.contents import bill_of_materials, comparable, contents, differences, finding
from longca.lab.store.environments.images import ImageList
from longca.lab.studies.facts.inventory import Distribution, Installation, LoadedSoftware, SharedObject
from tests.helpers.environment.distributions import elf, folder_of_packages, loaded_in
from tools import image_contents

LISTED = {
    "machine": "x86_64",
    "python": "3.11.2",
    "bytes": 7,
    "system": {"libc6:amd64": "2.36-9+deb12u13", "tzdata:all": "2026a"},
    "packages": {"torch": "2.11.0", "einops": "0.8.1"},
    "files": {
        "torch/lib/libtorch.so": "a" * 64,
        "torch/_tensor.py": "b" * 64,
        "torch-2.11.0.dist-info/RECORD": "c" * 64,
    },
}


def test_the_same_is_the_same():
    assert finding("a", "b", differences(LISTED, LISTED), 3) == (
        "a and b are the same: 3 files of Python packages by hash, and all system packages by version."
    )


@pytest.mark.parametrize(
    ("after", "touches"),
    [
        ({**LISTED, "system": {**LISTED["system"], "tzdata:all": "2026b"}}, False),
        ({**LISTED, "system": {**LISTED["system"], "libc6:amd64": "2.41"}}, True),
        ({**LISTED, "files": {**LISTED["files"], "torch/lib/libtorch.so": "d" * 64}}, True),
        ({**LISTED, "files": {**LISTED["files"], "torch-2.11.0.dist-info/RECORD": "d" * 64}}, False),
        (
            {
                **LISTED,
                "files": {
                    name: value for name, value in LISTED["files"].items() if name != "torch/_tensor.py"
                },
            },
            True,
        ),
        ({**LISTED, "packages": {**LISTED["packages"], "einops": "0.9"}}, False),
        ({**LISTED, "python": "3.12.1"}, True),
    ],
)
def test_it_is_said_whether_a_number_can_change(after, touches):
    changes = differences(LISTED, after)
    assert len(changes) == 1 and changes[0].touches_numbers is touches
    assert ("none of them" in finding("a", "b", changes, 3)) is not touches


def test_the_short_list_is_what_records_are_compared_with():
    shared = {
        "origin": "module",
        "owner": "kernel",
        "path": "kernel/_C.so",
        "build_id": "ab",
        "sha256": "d" * 64,
        "hashed": "content",
    }
    listed = {
        **LISTED,
        "files": {**LISTED["files"], "kernel/_C.so": "d" * 64},
        "objects": [shared],
        "modules": [],
        "distributions": [],
    }
    short = comparable(listed)
    assert (
        set(short["files"]) == {"torch/lib/libtorch.so", "kernel/_C.so"}
        and short["objects"] == [shared]
        and not short["system"]
    )
    loaded = LoadedSoftware(objects=(SharedObject.model_validate(shared),))
    installed = Installation(python="3", machine="m", kernel="k", libc="l")
    assert all(ImageList.of("x", each).compared(installed, loaded).is_image for each in (listed, short))


def test_the_command_compares_lists(longca, tmp_path):
    for name, listed in {
        "a": LISTED,
        "b": {**LISTED, "python": "3.12.1"},
        "c": {**LISTED, "packages": 7},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(listed))
    done = longca("image", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 1
    assert (
        "differ in 1 things; 1 of them can affect a number" in " ".join(done.stdout.split())
        and "3.12.1" in done.stdout
    )
    assert (
        json.loads(
            longca("image", "diff", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--json").stdout
        )["differences"]
        == []
    )
    broken = longca("image", "diff", str(tmp_path / "a.json"), str(tmp_path / "c.json"))
    assert broken.returncode == 2 and "is not a list of an image's contents" in " ".join(
        broken.stderr.split()
    )


def test_a_bill_of_materials_names_every_package():
    bill = bill_of_materials("cpu", LISTED)
    assert bill["bomFormat"] == "CycloneDX" and {component["purl"] for component in bill["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13",
        "pkg:deb/debian/tzdata@2026a",
        "pkg:pypi/torch@2.11.0",
        "pkg:pypi/einops@0.8.1",
    }


def test_the_list_is_made_of_what_is_installed(monkeypatch, tmp_path):
    site = folder_of_packages(tmp_path / "site")
    (site / "torch/__pycache__").mkdir()
    (site / "torch/__pycache__/one.pyc").write_text("")
    paths = {"platlib": str(site), "stdlib": str(tmp_path)}
    monkeypatch.setattr(image_contents.sysconfig, "get_path", paths.get)
    monkeypatch.setattr(image_contents, "distributions", list)
    monkeypatch.setattr(image_contents, "SYSTEM", ())
    monkeypatch.setattr(
        image_contents.subprocess,
        "run",
        lambda *words, **options: type("", (), {"stdout": "libc6:amd64\t2.36\n"}),
    )
    listing = image_contents.contents()
    assert (
        listing["system"] == {"libc6:amd64": "2.36"}
        and "torch/__init__.py" in listing["files"]
        and "pyc" not in str(listing["files"])
    )
    (tmp_path / "list.json").write_text(json.dumps(listing))
    assert contents(str(tmp_path / "list.json")) == listing
    here = folder_of_packages(tmp_path / "outside/of/the/image")
    installed = Installation(
        python="3",
        machine="m",
        kernel="k",
        libc="l",
        distributions=tuple(map(Distribution.model_validate, listing["distributions"])),
    )
    comparison = ImageList.of("here", listing).compared(installed, loaded_in(here))
    assert comparison.is_image and {"flash_attn_3", "torch 2.11.0", "flash_attn_2_cuda.so"} <= set(
        comparison.same
    )
    (here / "flash_attn_3/_C.abi3.so").write_bytes(elf(b"\7" * 20))
    assert ImageList.of("here", listing).compared(installed, loaded_in(here)).differing == (
        "flash_attn_3",
        "flash_attn_3/_C.abi3.so",
    )
    with pytest.raises(UserError, match="There is no image"):
        contents("ampere-cu130")
