"""The Hopper image, really built, and what can be shown in it without a GPU. `make test-images-all` runs it:
hours, then minutes."""

import json
import shutil
import subprocess
from importlib.metadata import distribution

import pytest

from longca.lab.images.recipe import load_recipe
from tests.helpers.images.built import built
from tests.helpers.support import ROOT

pytestmark = [pytest.mark.images, pytest.mark.hopper, pytest.mark.slow, pytest.mark.timeout(6 * 3600)]
NAME = "hopper-cu130"
TESTING = (
    "pytest",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "pytest-timeout",
    "hypothesis",
    "sortedcontainers",
    "attrs",
)
WANT_A_GPU = ("GPU", "Triton compiles")  # in the reasons of kernels that would run where there is one
DRIVER = "driver"  # in what Triton and torch say where there is none
BASELINES = {"ring_flash_attn": "llama3_flash_attn_varlen", "yunchang": "hybrid"}
TRY_EACH = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""
NOT_IN_IT = {
    "ffa": "magi_attention"
}  # released as sources alone, in no package index: a site builds it from its repository


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory):
    """inside(*command) → the finished command in the image, with the project, and what its tests need, bound
    into it."""
    image, _ = built(NAME)
    folder = tmp_path_factory.mktemp("testing")
    for name in TESTING:
        for file in distribution(name).files or ():
            if file.parts[0] not in ("..", "bin") and "__pycache__" not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), folder / file)

    def run(*command: str) -> str:
        done = subprocess.run(
            [
                "apptainer",
                "exec",
                "--cleanenv",
                "--bind",
                f"{ROOT},{folder}",
                "--pwd",
                ROOT,
                "--env",
                f"PYTHONPATH={folder},LONGCA_RESULTS={folder / 'results'},LONGCA_DEVICE=cpu",
                image.file,
                *command,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return done.stdout

    return run


def test_doctor(inside):
    assert "This machine can measure on its CPU" in inside("python", "-m", "longca", "doctor")


def test_every_kernel_runs_here_or_lacks_a_gpu_alone(inside):
    kernels = json.loads(inside("python", "-m", "longca", "list", "kernels", "--json"))["kernels"]
    lacking = {kernel["name"]: kernel["reason"] for kernel in kernels if not kernel["runs_here"]}
    others = {
        name: reason for name, reason in lacking.items() if not any(words in reason for words in WANT_A_GPU)
    }
    assert others.keys() == NOT_IN_IT.keys() and all(
        NOT_IN_IT[name] in reason for name, reason in others.items()
    ), others


def test_every_module_of_the_project_is_imported(inside):
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "longca").rglob("*.py"))
        if path.name != "__main__.py"
    ]
    tried = (
        "import importlib, sys\nfor name in sys.argv[1:]: "
        "importlib.import_module(name)\nprint(len(sys.argv) - 1)"
    )
    assert int(inside("python", "-c", tried, *modules).split()[-1]) == len(modules)


def test_every_package_is_imported_or_wants_a_driver_alone(inside):
    """Two packages of baselines are loaded as the project loads them, without what they import for others."""
    packages = [name for name in load_recipe(NAME).modules if name not in BASELINES]
    failed = json.loads(inside("python", "-c", TRY_EACH, *packages))
    assert failed.keys() <= set(packages) and all(DRIVER in reason for reason in failed.values()), failed
    for package, module in BASELINES.items():
        loaded = (
            f"from longca.cp.baselines.flash_attn_shim import load\nprint(load({package!r}, "
            f"'fa2')({module!r}).__name__)"
        )
        assert inside("python", "-c", loaded).split()[-1] == f"{package}.{module}"


@pytest.mark.parametrize("package", ["kernels", "ops"])
def test_what_the_processor_can_show_of_kernels(inside, package: str):
    said = inside("python", "-m", "pytest", "-v", "-p", "no:cacheprovider", f"tests/{package}").splitlines()[
        -1
    ]
    print(package, said)
    assert " passed" in said and "failed" not in said and "error" not in said, said


def test_nothing_that_compiles_for_gpus_is_left_but_what_torch_triton_and_cute_bring(inside):
    words = inside(
        "find", "/opt", "/usr", "-type", "f", "-executable", "-regex", r".*/\(nvcc\|cicc\|ptxas[^/]*\)"
    ).split()
    assert words and all(
        "/torch/bin/" in path or "/triton/" in path or "/nvidia_cutlass_dsl/" in path for path in words
    ), words
