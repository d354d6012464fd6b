"""Renders a recipe as definition files: for Apptainer from a registry, for Apptainer from Debian's packages,
and for Docker.

All run the same steps. Python packages come from a folder of wheels that were downloaded by hash, so the
build itself needs the network only for system packages. That folder and the compiler's cache are mounted
during the build, not copied.
"""

import hashlib
import re

from longca.core import PACKAGE_ROOT
from longca.lab.images.recipe import Recipe

HEAD = "# Made by `make containers` from image.yaml beside it: edit that."
WHEELS = "images/wheels"  # below the project's root
OBJECTS = "images/objects"  # cache of compiled objects
BOUND = {WHEELS: "/wheels", OBJECTS: "/ccache"}
PARTS = "/opt/longca"  # in the image: locks and scripts
CONTENTS = f"{PARTS}/contents.json"
VENV = "/opt/venv"
EPOCH = 1767225600  # 2026-01-01: file times, the same in every build
CLEARED = (
    "apt-get clean",
    "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache",
    "find /var/log -type f -delete",
)
"""leftovers of installation: packages of the system, and logs with the times of this build"""
QUIET_APT = "DEBIAN_FRONTEND=noninteractive apt-get"
PIP = (
    f"{VENV}/bin/pip install -q --no-cache-dir --no-index --find-links /wheels --no-deps --require-hashes "
    f"-r {PARTS}"
)


def definitions(recipe: Recipe) -> dict[str, str]:
    """File name → content."""
    files = {
        "apptainer.def": _apptainer(
            recipe, f"Bootstrap: docker\nFrom: {recipe.base.pinned}\n# {recipe.base.image}"
        ),
        "Dockerfile": _dockerfile(recipe),
    }
    if recipe.debian is not None:
        head = f"Bootstrap: debootstrap\nOSVersion: {recipe.debian.suite}\nMirrorURL: {recipe.debian.mirror}"
        files["apptainer-debian.def"] = _apptainer(recipe, head)
    return files


def lock_digest(recipe: Recipe) -> str:
    """The lock digest in records."""
    return f"sha256:{hashlib.sha256(recipe.lock.read_bytes()).hexdigest()}"


def recipe_digest(recipe: Recipe) -> str:
    """A digest of all inputs of a build: definition, locks and copied files."""
    hashed = hashlib.sha256(_dockerfile(recipe).encode())
    for source, _ in _files(recipe):
        path = PACKAGE_ROOT.parent / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            hashed.update(file.read_bytes())
    return f"sha256:{hashed.hexdigest()}"


def _steps(recipe: Recipe) -> list[str]:
    """Commands that build the image from the base; the wheels are in /wheels, the compiler's cache in
    /ccache."""
    steps = [
        f"export SOURCE_DATE_EPOCH={EPOCH}",
        "apt-get update -qq",
        f"{QUIET_APT} install -y -qq --no-install-recommends {' '.join([*recipe.apt, *recipe.build_apt])}",
        f"python{recipe.python} -m venv {VENV}",
        f"{PIP}/{recipe.lock.name}",
    ]
    if recipe.kernels:
        compiled = (
            f"python -m kernel_build /wheels --only {','.join(recipe.kernels)} --archs "
            f"{','.join(recipe.archs)}"
        )
        taken_out = " ".join(
            re.findall(r"^([a-z0-9-]+)==", recipe.build_lock.read_text(encoding="utf-8"), re.MULTILINE)
        )
        steps += [
            f"{PIP}/{recipe.build_lock.name}",
            "export CCACHE_DIR=/ccache CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=20G",
            f"cd {PARTS} && PATH={VENV}/bin:$PATH {compiled}",
            f"{VENV}/bin/pip uninstall -q -y {taken_out}",
        ]
    if recipe.build_apt:
        steps.append(f"{QUIET_APT} purge -y -qq --autoremove {' '.join(recipe.build_apt)}")
    return [*steps, *CLEARED, f"{VENV}/bin/python {PARTS}/image_contents.py {CONTENTS}"]


def _files(recipe: Recipe) -> list[tuple[str, str]]:
    """(path in the project, path in the image) of each file or folder that is copied into the image."""
    own = [recipe.lock, *([recipe.build_lock, recipe.sources_lock] if recipe.kernels else [])]
    here = [(f"containers/{recipe.name}/{path.name}", f"{PARTS}/{path.name}") for path in own]
    listing = [
        (f"longca/lab/environment/{name}.py", f"{PARTS}/longca/lab/environment/{name}.py")
        for name in ("elf", "packages")
    ]
    return [
        *here,
        ("tools/image_contents.py", f"{PARTS}/image_contents.py"),
        *listing,
        *([("tools/kernel_build", f"{PARTS}/kernel_build")] if recipe.kernels else []),
    ]


def _environment(recipe: Recipe) -> dict[str, str]:
    return {
        "PATH": f"{VENV}/bin:$PATH",
        "LONGCA_LOCK": lock_digest(recipe),
        "PYTHONNOUSERSITE": "1",
        **recipe.env,
    }


def _check(recipe: Recipe) -> str:
    """A command that locates the modules without importing them, since some imports need a GPU. Only torch is
    imported."""
    return (
        f'{VENV}/bin/python -c "import importlib.util as u, torch; missing = [m for m in '
        f"{list(recipe.modules)!r} "
        'if u.find_spec(m) is None]; assert not missing, missing"'
    )


def _apptainer(recipe: Recipe, head: str) -> str:
    bootstrap, _, rest = head.partition("\n")  # Apptainer requires the header at the beginning
    binds = " ".join(f"--bind {source}:{target}" for source, target in BOUND.items())
    files = "\n".join(f"    {source} {target}" for source, target in _files(recipe))
    steps = "\n".join(f"    {step}" for step in ["set -eux", *_steps(recipe)])
    variables = "\n".join(f"    export {name}={value}" for name, value in _environment(recipe).items())
    places = " ".join(f'"${{APPTAINER_ROOTFS}}{target}"' for target in BOUND.values())
    return (
        f"{bootstrap}\n{rest}\n{HEAD}\n# {recipe.about}\n# By hand, in the project's root, after `longca "
        f"image fetch {recipe.name}`:\n"
        f"#   apptainer build --fakeroot {binds} {recipe.name}.sif THIS\n\n"
        f"%setup\n    mkdir -p {places}\n\n%files\n{files}\n\n%post\n{steps}\n\n%environment\n{variables}\n\n"
        f"%test\n    {_check(recipe)}\n\n%labels\n    org.longca.lock {lock_digest(recipe)}\n"
    )


def _dockerfile(recipe: Recipe) -> str:
    copies = "\n".join(f"COPY {source} {target}" for source, target in _files(recipe))
    steps = " \\\n && ".join([*_steps(recipe), _check(recipe)])
    variables = " \\\n    ".join(f"{name}={value}" for name, value in _environment(recipe).items())
    how = f"longca image fetch {recipe.name} && docker build -f containers/{recipe.name}/Dockerfile ."
    return (
        f"{HEAD}\n# {recipe.about}\n# In the project's root: {how}\nFROM "
        f"{recipe.base.image}@{recipe.base.digest}\n{copies}\nRUN "
        f"--mount=type=bind,source={WHEELS},target=/wheels --mount=type=cache,target=/ccache \\\n    "
        f"{steps}\nENV {variables}\nLABEL org.longca.lock={lock_digest(recipe)}\n"
    )
