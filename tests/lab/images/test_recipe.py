"""Recipes, locks and definition files: current, pinned, and free of what would make two builds differ without
a word."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from longca.core.errors import UserError
from longca.lab.images.fetch import locked_sources
from longca.lab.images.recipe import Base, fitting, load_recipe, names
from longca.lab.images.render import CLEARED, VENV, definitions
from tests.helpers.support import ROOT
from tools import containers

PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+?)(?: ;.*)? \\$")


def locked(text: str) -> dict[str, tuple[str, int]]:
    """Package → (version, number of hashes)."""
    packages: dict[str, tuple[str, int]] = {}
    current = ""
    for line in text.splitlines():
        if match := PIN.match(line):
            current = match[1]
            packages[current] = (match[2], 0)
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line
            packages[current] = (packages[current][0], packages[current][1] + 1)
    return packages


@pytest.fixture(params=names())
def recipe(request):
    return load_recipe(request.param)


def test_definition_files_are_current(recipe):
    for name, content in definitions(recipe).items():
        assert (recipe.folder / name).read_text() == content, f"{name}: run `make containers`"


def test_every_package_is_pinned_with_hashes(recipe):
    lock = locked(recipe.lock.read_text())
    assert all(count for _, count in lock.values())
    for wanted in recipe.requirements:
        name, _, version = wanted.partition("==")
        name = re.split(r"[<>=~]", name)[0]
        assert lock[name][0] == version if version else name in lock, f"{wanted}: run `make lock-containers`"
    for wanted in recipe.overrides:
        name, _, version = wanted.partition("==")
        assert lock[name][0] == version, f"{wanted}: run `make lock-containers`"
    for needed in containers.own_dependencies():
        assert re.split(r"[<>=~]", needed)[0].lower() in lock, f"{needed}: run `make lock-containers`"


def test_what_both_have_is_the_same_outside(recipe):
    """So that a page made in a container has the bytes of one made beside it."""
    outside = dict(
        re.findall(
            r"^(matplotlib|pandas|jinja2|pyarrow)==(\S+)", (ROOT / "requirements.lock").read_text(), re.M
        )
    )
    inside = locked(recipe.lock.read_text())
    assert outside and outside == {name: inside[name][0] for name in outside}


def test_every_source_is_locked(recipe):
    urls = [url for digest, url in locked_sources(recipe) if re.fullmatch(r"[0-9a-f]{64}", digest)]
    assert len(urls) == len(recipe.sources)
    for source, url in zip(recipe.sources, urls, strict=True):
        assert url.startswith("https://files.pythonhosted.org/")
        assert url.endswith(f"/{source.package.replace('-', '_')}-{source.version}.tar.gz")


def test_bases_are_named_by_digest(recipe):
    files = definitions(recipe)
    assert re.search(
        rf"^FROM {re.escape(recipe.base.image)}@sha256:[0-9a-f]{{64}}$", files["Dockerfile"], re.M
    )
    assert re.match(r"Bootstrap: docker\nFrom: [a-z0-9./-]+@sha256:[0-9a-f]{64}\n", files["apptainer.def"])


def test_nothing_comes_in_unchecked(recipe):
    for name, content in definitions(recipe).items():
        assert not re.search(r"\b(curl|wget|git clone)\b|:latest|^ADD ", content, re.M), name
        for line in content.splitlines():
            if "pip install" in line:
                assert "--require-hashes" in line and "--no-index" in line and "--no-deps" in line
            if "apt-get install" in line:
                assert "--no-install-recommends" in line
        assert all(step in content for step in CLEARED)
        assert "longca/lab/cli" not in content and "COPY . " not in content, (
            "the project's code is bound, not baked"
        )


def test_all_definitions_run_the_same_steps(recipe):
    files = definitions(recipe)
    step = re.compile(rf"(?:{VENV}/bin/pip|python3|apt-get|PATH=).*")
    steps = {
        tuple(line.strip(" &\\") for line in content.splitlines() if step.match(line.strip(" &\\")))
        for content in files.values()
    }
    assert len(steps) == 1 and len(next(iter(steps))) >= 3


def test_what_compiles_is_taken_out_again(recipe):
    """A compiler of CUDA in the finished image is 300 MB that nothing uses: Triton and CuTe bring their
    own."""
    lock = locked(recipe.build_lock.read_text()) if recipe.kernels else {}
    assert set(lock) == {wanted.partition("==")[0] for wanted in recipe.build_requirements}, (
        "what both locks have stays"
    )
    for content in definitions(recipe).values():
        removed = re.search(r"pip uninstall -q -y (.*?)(?: \\)?$", content, re.M)
        assert (set(removed[1].split()) if removed else set()) == set(lock)
        purged = re.search(r"purge -y -qq --autoremove (.*?)(?: \\)?$", content, re.M)
        assert (purged[1].split() if purged else []) == list(recipe.build_apt)


def test_a_recipe_like_another_has_its_settings():
    hopper = load_recipe("hopper-cu130")
    ampere = load_recipe("ampere-cu130")
    assert (ampere.base, ampere.python, ampere.apt) == (hopper.base, hopper.python, hopper.apt)
    assert ampere.archs == ("80",) and "fa3" not in ampere.kernels and not set(ampere.gpus) & set(hopper.gpus)


def test_no_recipe_is_for_a_python_that_longca_refuses(recipe):
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(
        ">=3."
    )
    assert int(recipe.python.removeprefix("3.")) >= int(oldest)


@pytest.mark.parametrize(
    "base",
    [
        {"image": "debian:12", "digest": f"sha256:{'0' * 64}"},
        {"image": "docker.io/library/debian:12", "digest": "sha256:0"},
    ],
)
def test_a_base_without_registry_or_digest_is_refused(base):
    with pytest.raises(ValidationError):
        Base(**base)


def test_an_unknown_image_gets_the_nearest():
    with pytest.raises(UserError, match="Unknown image 'cpus': did you mean 'cpu'"):
        load_recipe("cpus")


def test_every_folder_is_an_image():
    assert {path.name for path in Path(ROOT / "containers").iterdir()} == set(names())


@pytest.mark.parametrize(
    ("model", "on_cpu", "image"),
    [
        ("", False, "hopper-cu130"),
        ("h100", False, "hopper-cu130"),
        ("nvidia_h200_nvl", False, "hopper-cu130"),
        ("A100-SXM4-80GB", False, "ampere-cu130"),
        ("", True, "cpu"),
    ],
)
def test_the_image_fits_the_node(model, on_cpu, image):
    assert fitting(model, on_cpu=on_cpu) == image


def test_a_gpu_without_an_image_is_named():
    with pytest.raises(UserError, match=r"is for the GPU 'b200'.*h100"):
        fitting("b200", on_cpu=False)
