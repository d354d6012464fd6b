"""A recipe as definition files: for Apptainer from a registry, for Apptainer from Debian's packages, and for Docker.

All three run the same steps. Python packages come from a folder of wheels that was filled beforehand, each by its hash, so that
the build itself needs a network for the system's packages only.
"""

import hashlib

from longca.images.recipe import Recipe

HEAD = "# Made by `make containers` from image.yaml beside it: edit that."
WHEELS = "images/wheels"  # below the project's root
PARTS = "/opt/longca"  # in the image: locks and scripts
VENV = "/opt/venv"


def definitions(recipe: Recipe) -> dict[str, str]:
    """File name → content."""
    files = {"apptainer.def": _apptainer(recipe, f"Bootstrap: docker\nFrom: {recipe.base.pinned}\n# {recipe.base.image}"),
             "Dockerfile": _dockerfile(recipe)}
    if recipe.debian is not None:
        head = f"Bootstrap: debootstrap\nOSVersion: {recipe.debian.suite}\nMirrorURL: {recipe.debian.mirror}"
        files["apptainer-debian.def"] = _apptainer(recipe, head)
    return files


def lock_digest(recipe: Recipe) -> str:
    """The digest that records name as their lock."""
    return f"sha256:{hashlib.sha256(recipe.lock.read_bytes()).hexdigest()}"


def _steps(recipe: Recipe) -> list[str]:
    """Commands that make the image of its base; the wheels lie in /wheels."""
    steps = ["apt-get update -qq",
             f"DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {' '.join(recipe.apt)}",
             "rm -rf /var/lib/apt/lists/*",
             f"python{recipe.python} -m venv {VENV}",
             f"{VENV}/bin/pip install -q --no-cache-dir --no-index --find-links /wheels --no-deps --require-hashes"
             f" -r {PARTS}/requirements.lock"]
    if recipe.build:
        steps.append(f"PATH={VENV}/bin:$PATH bash {PARTS}/{recipe.build} /wheels")
    return steps


def _files(recipe: Recipe) -> list[tuple[str, str]]:
    """(path in the project, path in the image) of each file that stays in the image."""
    own = [recipe.lock.name, *([recipe.sources_lock.name, recipe.build] if recipe.build else [])]
    here = [(f"containers/{recipe.name}/{name}", f"{PARTS}/{name}") for name in own]
    return here + [(path, f"{PARTS}/{path.rpartition('/')[2]}") for path in recipe.uses]


def _environment(recipe: Recipe) -> dict[str, str]:
    return {"PATH": f"{VENV}/bin:$PATH", "LONGCA_LOCK": lock_digest(recipe), "PYTHONNOUSERSITE": "1", **recipe.env}


def _check(recipe: Recipe) -> str:
    """Finds the modules without importing them: some want a GPU for that. torch is imported."""
    return (f"{VENV}/bin/python -c \"import importlib.util as u, torch; missing = [m for m in {list(recipe.modules)!r} "
            "if u.find_spec(m) is None]; assert not missing, missing\"")


def _apptainer(recipe: Recipe, head: str) -> str:
    bootstrap, _, rest = head.partition("\n")  # Apptainer wants the header first of all
    files = "\n".join(f"    {source} {target}" for source, target in [*_files(recipe), (f"{WHEELS}/{recipe.name}", "/wheels")])
    steps = "\n".join(f"    {step}" for step in ["set -eu", *_steps(recipe), "rm -rf /wheels"])
    variables = "\n".join(f"    export {name}={value}" for name, value in _environment(recipe).items())
    return (f"{bootstrap}\n{rest}\n{HEAD}\n# {recipe.about}\n\n%files\n{files}\n\n%post\n{steps}\n\n%environment\n{variables}\n\n"
            f"%test\n    {_check(recipe)}\n\n%labels\n    org.longca.lock {lock_digest(recipe)}\n")


def _dockerfile(recipe: Recipe) -> str:
    copies = "\n".join(f"COPY {source} {target}" for source, target in _files(recipe))
    steps = " \\\n && ".join([*_steps(recipe), _check(recipe)])
    variables = " \\\n    ".join(f"{name}={value}" for name, value in _environment(recipe).items())
    how = f"longca image fetch {recipe.name} && docker build -f containers/{recipe.name}/Dockerfile ."
    return (f"{HEAD}\n# {recipe.about}\n# In the project's root: {how}\nFROM {recipe.base.image}@{recipe.base.digest}\n{copies}\n"
            f"RUN --mount=type=bind,source={WHEELS}/{recipe.name},target=/wheels \\\n    {steps}\n"
            f"ENV {variables}\nLABEL org.longca.lock={lock_digest(recipe)}\n")
