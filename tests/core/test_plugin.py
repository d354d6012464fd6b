"""The registry: found by looking, named by file, and clear about files that are no plug-ins."""

import importlib
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from longca.core import plugin
from longca.core.errors import UserError
from longca.core.plugin import KINDS, BrokenPlugin, Registry, plugin_folders
from longca.core.signature import undefined_methods

WITH_HELPERS = """
from dataclasses import dataclass
from longca.kernels.contract import Kernel, Prepared
class _Base(Kernel): pass
@dataclass
class Plan:
    num_steps: int = 1
class Ready(Prepared): pass
class Mine(_Base): label = "Mine"
"""
TOY = {"kernel": "toy_kernel", "strategy": "toy_strategy", "mask": "toy_mask", "corpus": "toy_corpus"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_its_folder_and_contract(kind: str):
    module, _, name = KINDS[kind].contract.partition(":")
    assert issubclass(getattr(importlib.import_module(module), name), plugin.Plugin)
    assert (plugin.PACKAGE_ROOT / KINDS[kind].folder).is_dir()


@pytest.mark.parametrize(("kind", "name"), TOY.items())
def test_a_file_in_a_plugin_folder_is_listed_and_loaded(plugins: Path, kind: str, name: str):
    registry = Registry(kind)
    assert name in registry.names()
    assert registry.names() == sorted(registry.names())
    loaded = registry.load(name)
    assert loaded.name == name
    assert loaded.path == plugins / KINDS[kind].plural / f"{name}{KINDS[kind].suffix}"
    assert name in {entry.name for entry in registry.load_all()}
    assert name not in Registry(kind, []).names()


def test_listing_imports_nothing(plugins: Path):
    (plugins / "kernels" / "explosive.py").write_text("raise SystemExit('imported')")
    assert {"explosive", "toy_kernel"} <= set(Registry("kernel").names())


def test_what_is_no_plugin_is_not_listed(plugins: Path):
    for name in ("_private.py", "__init__.py", "notes.txt", "data.json"):
        (plugins / "kernels" / name).write_text("raise RuntimeError")
    assert {"_private", "__init__", "notes", "data"}.isdisjoint(Registry("kernel").names())


def test_helpers_in_a_plugin_are_not_counted(plugins: Path):
    (plugins / "kernels" / "with_helpers.py").write_text(WITH_HELPERS)
    assert Registry("kernel").load("with_helpers").label == "Mine"


def test_an_unknown_name_offers_the_nearest(plugins: Path):
    expected = r"Unknown kernel 'toy_kernl': did you mean 'toy_kernel'.*`longca list kernels` shows all"
    with pytest.raises(UserError, match=expected):
        Registry("kernel").load("toy_kernl")


BROKEN = {
    "two": (
        "class A(Kernel): pass\nclass B(Kernel): pass",
        "is not a plug-in: it must define exactly one subclass of Kernel, found 2",
    ),
    "none": ("x = 1", "is not a plug-in: it must define exactly one subclass of Kernel, found 0"),
    "missing_module": (
        "import no_such_module_anywhere",
        "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    ),
    "raising": (
        "raise ValueError('first line\\nsecond line')",
        "cannot be imported: ValueError: first line second line",
    ),
    "syntax": ("class A(Kernel)", "cannot be imported: SyntaxError:"),
}


@pytest.mark.parametrize(
    ("name", "text", "expected"), [(name, *case) for name, case in BROKEN.items()], ids=BROKEN.keys()
)
def test_broken_files_are_named(plugins: Path, name: str, text: str, expected: str):
    path = plugins / "kernels" / f"{name}.py"
    path.write_text(f"from longca.kernels.contract import Kernel\n{text}\n")
    for _ in range(2):  # the first failure must leave nothing behind
        with pytest.raises(UserError) as caught:
            Registry("kernel").load(name)
        assert str(caught.value).startswith(
            f"'{path}' {expected}" if "is not" in expected else f"Plug-in '{path}' {expected}"
        )
        assert "\n" not in str(caught.value)


OLD = {
    "kernel": {
        "work": (
            "    def work(self, cell): return None",
            "work(self, cell) is called as work(self, call, seqlen)",
        ),
        "row": ("    paper_row = 'FA3'", "`paper_row` is no longer read"),
    },
    "strategy": {
        "supports": (
            "    def supports(self, cell, traits): return None",
            "`supports` is now the reason that local_calls(self, traits, call, world) returns",
        ),
        "calls": (
            "    def local_calls(self, cell, traits): return []",
            "local_calls(self, cell, traits) is called as local_calls(self, traits, call, world)",
        ),
        "refusal": (
            "    def refusal(self, cell, traits, kernel, device_type): return None",
            "refusal(self, cell, traits, kernel, device_type) is called as refusal(self, mask, call, world",
        ),
        "refusal_of": (
            "    def refusal_of(self, *given): return None",
            "`refusal_of` is now refusal(mask, call, world",
        ),
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in OLD.items() for name in cases])
def test_a_plugin_of_an_earlier_contract_is_refused_in_one_line(plugins: Path, kind: str, name: str):
    text, expected = OLD[kind][name]
    module, _, contract = KINDS[kind].contract.partition(":")
    path = plugins / KINDS[kind].plural / f"old_{name}.py"
    path.write_text(f"from {module} import {contract}\nclass Old({contract}):\n    label = 'Old'\n{text}\n")
    with pytest.raises(BrokenPlugin) as caught:
        Registry(kind).load(path.stem)
    assert str(caught.value).startswith(f"Plug-in '{path}' cannot be used: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("needs = 'torch'", "`needs` is of type str, and must be of type tuple"),
        ("label = None", "`label` is of type NoneType, and must be of type str"),
        ("deterministic = 'no'", "`deterministic` is of type str, and must be of type bool"),
        ("summary = b'bytes'", "`summary` is of type bytes, and must be of type str"),
        ("needs = ['torch']", ""),
        ("label = property(lambda self: 'Mine')", ""),
    ],
)
def test_an_attribute_of_another_type_is_named(plugins: Path, line: str, expected: str):
    text = f"from longca.kernels.contract import Kernel\nclass Typed(Kernel):\n    {line}\n"
    (plugins / "kernels" / "typed.py").write_text(text)
    with pytest.raises(BrokenPlugin, match=expected) if expected else nullcontext():
        Registry("kernel").load("typed")


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("kernel", "def supports(self, call, traits, device_type): return None", "defines no prepare"),
        ("kernel", "def available(self, device_type): return 'of its own'", "of its own"),
        ("strategy", "def prepare(self, problem, kernel, comm): return None", "defines no local_calls"),
        ("strategy", "def refusal(self, mask, call, world, kernel, device_type): return None", "no prepare"),
    ],
)
def test_a_plugin_without_a_needed_method_cannot_run(plugins: Path, kind: str, text: str, reason: str):
    """And says so each time that it is loaded. Nothing of the package lacks one."""
    contract = KINDS[kind].contract.replace(":", " import ")
    name, path = contract.split()[-1], plugins / KINDS[kind].plural / "lacking.py"
    path.write_text(f"from {contract}\nclass Lacking({name}):\n    label = 'Lacking'\n    {text}\n")
    for _ in range(2):
        assert Registry(kind).load("lacking").available("cpu").endswith(reason)
    bases = {known: plugin._contract(KINDS[known]) for known in KINDS}
    assert not [
        (loaded.name, missing)
        for known in KINDS
        for loaded in Registry(known, []).load_all()
        if (missing := undefined_methods(type(loaded), bases[known], KINDS[known].instead))
    ]


def test_a_mended_file_loads(plugins: Path):
    path = plugins / "kernels" / "mended.py"
    path.write_text("import no_such_module_anywhere")
    with pytest.raises(UserError, match="cannot be imported"):
        Registry("kernel").load("mended")
    path.write_text("from longca.kernels.contract import Kernel\nclass Mended(Kernel): label = 'Whole'\n")
    assert Registry("kernel").load("mended").label == "Whole"


def test_a_broken_file_of_the_package_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = plugin.PACKAGE_ROOT / "kernels" / "backends"
    monkeypatch.setattr(Registry, "_files", lambda self: {"not_there": (folder, "not_there.py")})
    with pytest.raises(UserError, match=r"not_there\.py' cannot be imported: ModuleNotFoundError"):
        Registry("kernel").load("not_there")


def test_two_files_of_one_name(plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "other"
    (other / "kernels").mkdir(parents=True)
    (other / "kernels" / "toy_kernel.py").touch()
    monkeypatch.setenv("LONGCA_PLUGINS", os.pathsep.join([str(plugins), str(other)]))
    with pytest.raises(UserError) as caught:
        Registry("kernel").load("toy_kernel")
    both = f"{plugins}/kernels/toy_kernel.py and {other}/kernels/toy_kernel.py"
    assert str(caught.value) == f"Two kernels are named 'toy_kernel': {both}. Rename one of the files"


def test_two_files_of_one_name_leave_all_others_usable(plugins: Path, tmp_path: Path, monkeypatch, capfd):
    other = tmp_path / "other"
    (other / "kernels").mkdir(parents=True)
    (other / "kernels" / "toy_kernel.py").touch()
    monkeypatch.setenv("LONGCA_PLUGINS", os.pathsep.join([str(plugins), str(other)]))
    names = {kernel.name for kernel in Registry("kernel").load_all()}
    assert "band" in names and "toy_kernel" not in names
    assert "left out: Two kernels are named 'toy_kernel'" in capfd.readouterr().err


def test_a_plugin_cannot_take_the_name_of_a_shipped_one(plugins: Path, capfd):
    """The shipped one counts, and the other is named."""
    (plugins / "corpora" / "pile.json").write_text("{}")
    for load in (Registry("corpus").load, lambda name: Registry("corpus").load_all()[0]):
        plugin.say_left_out.cache_clear()
        assert load("pile").path.is_relative_to(plugin.PACKAGE_ROOT)
        assert "left out: Two corpora are named 'pile'" in capfd.readouterr().err


def test_folders_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(
        "LONGCA_PLUGINS", os.pathsep.join(["", "one", str(tmp_path / "two"), "./one", "~/three"])
    )
    for folder in ("one", "two", "home/three"):
        (tmp_path / folder).mkdir(parents=True)
    assert plugin_folders() == [tmp_path / "one", tmp_path / "two", tmp_path / "home" / "three"]
    assert Registry("mask").names() == Registry("mask", []).names()  # an empty folder is for plug-ins to come
    monkeypatch.delenv("LONGCA_PLUGINS")
    assert plugin_folders() == []


def test_a_plugin_is_imported_once_for_each_file(plugins: Path, tmp_path: Path):
    first = type(Registry("kernel").load("toy_kernel"))
    assert type(Registry("kernel").load("toy_kernel")) is first
    other = tmp_path / "other" / "kernels" / "toy_kernel.py"
    other.parent.mkdir(parents=True)
    other.write_text((plugins / "kernels" / "toy_kernel.py").read_text())
    assert type(Registry("kernel", [tmp_path / "other"]).load("toy_kernel")) is not first
    assert sys.modules["longca_plugins.kernels.toy_kernel"].__file__ == str(other)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("gone", "there is no such folder"),
        ("file", "there is no such folder"),
        ("plugins/kernels", "holds no plug-ins. Give '"),
        ("other", "Plug-ins lie in sub-folders: masks, "),
    ],
)
def test_a_wrong_folder_of_plugins_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, expected: str
):
    (tmp_path / "file").touch()
    for path in ("plugins/kernels/mine.py", "other/mine.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.setenv("LONGCA_PLUGINS", str(tmp_path / folder))
    with pytest.raises(UserError) as caught:
        Registry("kernel")
    assert str(caught.value).startswith(f"LONGCA_PLUGINS names '{tmp_path / folder}': ") and expected in str(
        caught.value
    )


def test_a_broken_plugin_is_named_once_and_left_out(plugins: Path, capsys: pytest.CaptureFixture[str]):
    path = plugins / "kernels" / "broken.py"
    path.write_text("def start():\n    return 1 / 0\nstart()\n")
    for _ in range(2):
        loaded = {kernel.name for kernel in Registry("kernel").load_all()}
        assert {"naive", "toy_kernel"} <= loaded and "broken" not in loaded
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"(at {path}:2 in start)" in said and "ZeroDivisionError" in said
    with pytest.raises(
        UserError, match=r"ZeroDivisionError: division by zero \(at .*broken\.py:2 in start\)"
    ):
        Registry("kernel").load("broken")
