"""Makes .venv: packages pinned by hash from requirements.lock, and a torch. Standard library only; safe to
run again.

torch is taken from the calling Python if it is there and new enough, so that a GPU machine keeps its build.
Else it is installed by hash:

- PyPI's build from torch.lock (on Linux with CUDA);
- the build for CPUs from torch-cpu.lock, if `TORCH_INDEX` is PyTorch's index of that build, or pip's link
    folder (`PIP_FIND_LINKS`) has it;
- another wheel in pip's link folder, whose hash is said and stands in the records;
- any other index: with `TORCH_LOCK`, a lock of your own.

This file must be readable to Python 3.6, so that an old Python can say what is needed: no newer syntax, and
no annotation that it evaluates.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# measured on Linux x86-64 with Python 3.11, files compiled by pip included; other systems differ a little
PACKAGES_SIZE = "about 170 MB to download, 650 MB on disk"
TORCH_SIZE = {
    "torch.lock": "on Linux with CUDA: some GB; TORCH_INDEX chooses",
    "torch-cpu.lock": "380 MB to download, 1.5 GB on disk",
}
STAMP = VENV / "longca-setup"
LOCK, TORCH_LOCK, CPU_LOCK = (ROOT / name for name in ("requirements.lock", "torch.lock", "torch-cpu.lock"))
RECORDED_LOCK = VENV / "longca-lock"  # its digest, which records name
RECORDED_TORCH = VENV / "longca-torch"  # digest of the file that torch was installed from, which records name
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
PROGRAMS = {  # that the workflow calls, and the packages that have them
    "bash": "bash",
    "which": "debianutils (Debian, Ubuntu) or which (Fedora, RHEL, Arch)",
}
# between two lines that say how far an installation is
TERMINAL_SECONDS = 5
LOG_SECONDS = 30
NEWEST_KNOWN = 20  # minor version of Python up to which another one is looked for
INDEX_GONE = re.compile(
    r"name resolution|Network is unreachable|Connection refused|NewConnectionError|ConnectTimeout|Read timed "
    r"out|"
    r"ProxyError|No matching distribution found"
)


def main():
    check_machine()
    # .venv is first on PATH: go on with the Python that it was made from
    if Path(sys.prefix).resolve() == VENV.resolve():
        python = sys._base_executable  # pyright: ignore[reportAttributeAccessIssue]
        os.execv(python, [python, *sys.argv])
    if not os.access(str(ROOT), os.W_OK):  # Snakemake, too, keeps its own records there
        stop(f"'{ROOT}' is not writable for you: copy it to a folder of your own and run make there")
    if STAMP.exists() and STAMP.read_text() == wanted() and PYTHON.exists():
        return
    try:
        make()
    except OSError as error:  # no room, or a part of .venv that belongs to somebody else
        stop(f".venv cannot be written: {error}. Remove '{VENV}', make room, and run make again")


def wanted() -> str:
    """Names all that decides what is in .venv."""
    sources = [
        path
        for path in (LOCK, TORCH_LOCK, CPU_LOCK, ROOT / "pyproject.toml", Path(__file__))
        if path.exists()
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def make():
    start = time.monotonic()
    torch_site = torch_in(sys.executable)
    say(f"Making .venv with Python {sys.version.split()[0]}; takes minutes, once")
    make_environment()
    site = next((VENV / "lib").glob("python3.*")) / "site-packages"
    other = site / "torch_of_the_machine.pth"
    if other.exists():
        # else pip takes that Python's packages for installed, and .venv would lack them and their programs
        other.unlink()
    install(f"{num_locked()} pinned packages", PACKAGES_SIZE, "-r", str(LOCK))
    if torch_site is not None:
        say(f"Using the torch of {sys.executable}")
        other.write_text(f"{torch_site}\n")  # comes after .venv's own packages
    if torch_site is None and not torch_in(str(PYTHON)):
        install_torch()
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    RECORDED_LOCK.write_text(f"sha256:{hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n")
    STAMP.write_text(wanted())
    say(f"Done in {duration(time.monotonic() - start)}: .venv takes {megabytes()} MB")


def check_machine():
    """Ends with one line unless this Python is new enough and can make virtual environments, and the programs
    are there."""
    version = sys.version.split()[0]
    if sys.version_info < OLDEST_PYTHON:
        others = (f"python3.{minor}" for minor in range(NEWEST_KNOWN, OLDEST_PYTHON[1] - 1, -1))
        newer = next((name for name in others if shutil.which(name)), None)
        todo = (
            f"Run `make PYTHON={newer} …`"
            if newer
            else "Install one (`apt-get install python3.11 python3.11-venv`, `dnf install python3.11` or `uv "
            "python install 3.11`), "
            "then `make PYTHON=python3.11 …`"
        )
        stop(f"Python {version} is too old: longca needs 3.11 or newer. {todo}")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(f"Python {version} has no venv. Install it: `apt-get install python3-venv`")
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            stop(f"There is no {program} here, which the workflow needs. Install the package {package}")


def make_environment():
    import venv

    try:
        venv.EnvBuilder(with_pip=True, clear=False, symlinks=True).create(VENV)
    except subprocess.CalledProcessError as error:
        stop(
            f"This Python cannot make a virtual environment with pip ({error}). On Debian and Ubuntu: "
            f"`apt-get install python3-venv`"
        )


def install_torch():
    """Installs a torch by hash, and writes down the digest of its file."""
    index = os.environ.get("TORCH_INDEX")
    own_lock = os.environ.get("TORCH_LOCK")
    local = None
    options = ["--extra-index-url", index] if index else []
    if own_lock and not Path(own_lock).is_file():
        stop(f"There is no TORCH_LOCK '{own_lock}'. `uv pip compile --generate-hashes` makes one")
    if own_lock:
        lock = Path(own_lock)
    elif index:
        if not index.rstrip("/").endswith("/cpu"):
            stop(
                f"No lock has the hashes of the torch of {index}. Give one of your own with TORCH_LOCK=FILE "
                "(`uv pip compile --generate-hashes` makes it), or leave TORCH_INDEX out"
            )
        lock = CPU_LOCK
    else:
        local = torch_of_links()
        lock = TORCH_LOCK if local is None or "+cpu" not in local.name else CPU_LOCK
    wheel = None if local is None else file_digest(local)
    if local and wheel and wheel not in lock.read_text(encoding="utf-8"):
        say(
            f"torch comes from your own link folder and no lock of longca names it: {local} sha256:{wheel}; "
            f"records will"
        )
        with tempfile.TemporaryDirectory() as folder:
            alone = Path(folder) / "torch.txt"
            rest = Path(folder) / "rest.txt"
            alone.write_text(f"torch @ {local.as_uri()} --hash=sha256:{wheel}\n", encoding="utf-8")
            rest.write_text(without_torch(lock.read_text(encoding="utf-8")), encoding="utf-8")
            install("your torch", f"{round(local.stat().st_size / 1e6)} MB", "-r", str(alone))
            install("what torch needs", TORCH_SIZE[lock.name], "-r", str(rest))
    else:
        installed = install(
            "torch and what it needs, by hash",
            TORCH_SIZE.get(lock.name, "of your lock"),
            *options,
            "-r",
            str(lock),
        )
        wheel = installed.get("torch", wheel)
    if wheel:
        RECORDED_TORCH.write_text(f"sha256:{wheel}\n")


def torch_of_links() -> "Path | None":
    """The wheel that pip's link folders (`PIP_FIND_LINKS`, `find-links`) give for this Python."""
    report = VENV / "longca-links.json"
    oldest = ".".join(map(str, OLDEST_TORCH))
    command = [
        "install",
        "-q",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--report",
        str(report),
        f"torch>={oldest}",
    ]
    if run_pip(command).returncode:
        return None
    from urllib.parse import unquote, urlparse

    url = json.loads(report.read_text(encoding="utf-8"))["install"][0]["download_info"]["url"]
    return Path(unquote(urlparse(url).path)) if url.startswith("file:") else None


def without_torch(lock: str) -> str:
    """The lock's other requirements."""
    return re.sub(r"^torch==.*\n(?:\s+--hash.*\n?)*", "", lock, flags=re.MULTILINE)


def file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def num_locked() -> int:
    """Packages of the lock, but those of other systems than this one's kind; some belong to other versions of
    Python."""
    names = re.findall(
        r"^([A-Za-z0-9._-]+)==(?!.*sys_platform == '(?:win32|emscripten)')",
        LOCK.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return len(set(names))


def install(what: str, size: str, *arguments: str) -> dict:
    """Installs by hash. Says what and how large it is before, and what it has come to after. Returns package
    → SHA-256 of its file."""
    say(f"Installing {what} ({size})")
    start = time.monotonic()
    before = megabytes()
    report = VENV / "longca-installed.json"
    # locks are whole; and of a package with extras, as `coverage[toml]`, an old pip wants the newest,
    # whatever is pinned
    pip("install", "--require-hashes", "--no-deps", "--report", str(report), *arguments)
    say(f"  {megabytes() - before} MB on disk, in {duration(time.monotonic() - start)}")
    entries = json.loads(report.read_text(encoding="utf-8"))["install"] if report.exists() else []
    return {entry["metadata"]["name"]: _sha256(entry["download_info"]) for entry in entries}


def _sha256(download: dict) -> "str | None":
    """The digest of a file that pip has installed, by its report; None for what has none."""
    archive = download.get("archive_info", {})
    # pip before 23.1, as Debian 12's, has one hash by another name
    name, _, digest = archive.get("hash", "").partition("=")
    return archive.get("hashes", {}).get("sha256") or (digest if name == "sha256" else None)


def megabytes() -> int:
    """That .venv takes on disk. pip removes files and folders meanwhile: what is gone counts nothing."""
    size = 0
    for folder, _, names in os.walk(str(VENV)):  # leaves out a folder that it cannot list
        for name in names:
            with contextlib.suppress(OSError):
                status = Path(folder, name).lstat()
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return round(size / 1e6)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def torch_in(python: str) -> "str | None":
    """The site-packages folder of that Python's torch, if that is new enough and can be imported."""
    code = (
        "import pathlib, torch; print(torch.__version__); print(pathlib.Path(torch.__file__).parent.parent)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        return None
    version, site = done.stdout.splitlines()[-2:]
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    return site if release >= OLDEST_TORCH else None


def pip(*arguments: str):
    """Runs pip; one line says why where it fails."""
    done = run_pip([*arguments])
    if done.returncode:
        stop(why_pip_failed(done.stdout + done.stderr))


def run_pip(arguments):
    # an old pip warns of old packages
    command = [
        str(PYTHON),
        "-W",
        "ignore",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        *arguments,
    ]
    return waited_for(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    )


def waited_for(process) -> subprocess.CompletedProcess:
    """The end of a process; meanwhile says every few seconds what it does and how large .venv is: on a
    terminal in one line."""
    start = time.monotonic()
    before = unpacked()
    on_terminal = sys.stderr.isatty()
    while True:
        try:
            out, err = process.communicate(timeout=TERMINAL_SECONDS if on_terminal else LOG_SECONDS)
        except subprocess.TimeoutExpired as running:
            said = (running.output or b"").decode("utf-8", "replace")
            size = f"{megabytes()} MB on disk after {duration(time.monotonic() - start)}"
            text = f"setup:   … {doing(said, len(unpacked() - before))}{size}"
            sys.stderr.write(f"\r{text}\033[K" if on_terminal else f"{text}\n")
            sys.stderr.flush()
            continue
        except BaseException:
            process.kill()
            raise
        if on_terminal:
            sys.stderr.write("\r\033[K")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def doing(said: str, num_unpacked: int) -> str:
    """The step that pip is at, by what it has said so far: "unpacking 14 of 110 (scipy), ". "" if it has said
    nothing."""
    listed = re.search(r"^Installing collected packages: (.+)$", said, re.MULTILINE)
    if listed:
        names = listed.group(1).split(", ")
        now = min(num_unpacked, len(names) - 1)
        return f"unpacking {now + 1} of {len(names)} ({names[now]}), "
    num_found = len(re.findall(r"^\s*Collecting ", said, re.MULTILINE))
    return f"fetching package {num_found}, " if num_found else ""


def unpacked() -> "set[Path]":
    """The packages in .venv; a folder that pip is about to remove begins with "~"."""
    return set(VENV.glob("lib/python*/site-packages/[!~]*.dist-info"))


def why_pip_failed(output: str) -> str:
    """The reason in one line, and what to do."""
    errors = [line.strip() for line in output.splitlines() if line.strip().upper().startswith("ERROR")]
    said = errors[0].partition(":")[2].strip() if errors else " ".join(output.split())[-200:]
    if "DO NOT MATCH THE HASHES" in output:
        packages = (
            ", ".join(re.findall(r"^\s+([A-Za-z0-9._-]+(?:==\S+)?).* from \S+", output, re.MULTILINE))
            or "a package"
        )
        return (
            f"A file is not the one that the lock names ({packages}): nothing of it was installed. Use "
            f"another index or link folder"
        )
    if "No space left" in output:
        return f"There is no room for .venv: {said}. Make room and run make again"
    if INDEX_GONE.search(output):
        return (
            f"No package index gives what is needed ({said}). Connect to the network, name a mirror with "
            f"PIP_INDEX_URL, or a folder of "
            "wheels with PIP_FIND_LINKS"
        )
    return f"pip failed: {said}"


def say(text: str):
    print(f"setup: {text}", flush=True)


def stop(text: str):
    """Ends with this line and exit code 2."""
    sys.stderr.write("setup: " + " ".join(text.split()) + "\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
