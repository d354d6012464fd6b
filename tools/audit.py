"""`python -m tools.audit audit|sbom`: known vulnerabilities of all pinned packages, and a list (SBOM) of
those in .venv.

Both by maintained tools, pip-audit and cyclonedx-bom. They are pinned by hash in tools/audit.lock and live in
.venv-audit, so that they are not among the packages that measure. Standard library only.

Exit codes: 0 done; 1 a package has a known vulnerability; 3 the index cannot be reached, or does not know
every package.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NoReturn

from tools import setup
from tools.pages import ROOT

TOOLS = ROOT / ".venv-audit"
LOCK = ROOT / "tools" / "audit.lock"
# the CPU build of torch has PyPI's version and packages, and so has the CPU image
AUDITED = (
    setup.LOCK,
    setup.TORCH_LOCK,
    LOCK,
    ROOT / "tools" / "site.lock",
    *(lock for lock in sorted(ROOT.glob("containers/*/requirements.lock")) if lock.parent.name != "cpu"),
)
SBOM = ROOT / "results" / "sbom.cdx.json"
FOUND = 1
CANNOT = 3


def main() -> None:
    commands = {"audit": audit, "sbom": sbom}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(f"Usage: python -m tools.audit {'|'.join(commands)}")
    commands[sys.argv[1]]()


def audit() -> None:
    """Ask PyPI about each package of the locks, and print what is known."""
    tool = tools() / "pip-audit"
    reports: dict[str, dict] = {}
    for lock in AUDITED:
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            command = [
                str(tool),
                "--progress-spinner",
                "off",
                "--disable-pip",
                "--require-hashes",
                "-r",
                str(lock),
                "-f",
                "json",
                "-o",
                report.name,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            content = Path(report.name).read_text(encoding="utf-8")
        if not content:
            end(f"vulnerabilities could not be looked up: {reason(done.stderr)}")
        reports |= {
            f"{entry['name']} {entry.get('version', '')}": entry
            for entry in json.loads(content)["dependencies"]
        }
    judge(reports)


def judge(reports: dict[str, dict]) -> None:
    """Print what pip-audit found, and exit unless each package was judged and none is vulnerable.

    Args:
        found: name and version → entry of pip-audit's report.
    """
    vulnerable = {package: entry["vulns"] for package, entry in reports.items() if entry.get("vulns")}
    unknown = sorted(package.strip() for package, entry in reports.items() if "skip_reason" in entry)
    for package, problems in sorted(vulnerable.items()):
        for problem in problems:
            fixed = ", ".join(problem["fix_versions"]) or "none"
            print(f"{package}: {problem['id']}, mended in: {fixed}")
    if unknown:  # pip-audit itself would say that nothing is known of them, and end with 0
        named = ", ".join(unknown[:5]) + (" …" if len(unknown) > 5 else "")
        end(
            f"{len(reports) - len(unknown)} of {len(reports)} pinned packages were judged, the index does "
            f"not answer for {named}",
            FOUND if vulnerable else CANNOT,
        )
    if vulnerable:
        end(f"{len(vulnerable)} of {len(reports)} pinned packages have known vulnerabilities", FOUND)
    print(f"audit: no known vulnerability in {len(reports)} pinned packages")


def sbom() -> None:
    """Write the packages of .venv, with versions and licenses, in the form of CycloneDX."""
    tool = tools() / "cyclonedx-py"
    SBOM.parent.mkdir(exist_ok=True)
    command = [
        str(tool),
        "environment",
        str(setup.PYTHON),
        "--pyproject",
        str(ROOT / "pyproject.toml"),
        "--output-reproducible",
        "--output-format",
        "JSON",
        "-o",
        str(SBOM),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        end(f"the packages of .venv could not be listed: {reason(done.stderr)}")
    print(f"sbom: {len(json.loads(SBOM.read_text(encoding='utf-8'))['components'])} packages\n{SBOM}")


def tools() -> Path:
    """The folder of the tools' programs; installs them by hash where they are not there yet."""
    stamp = TOOLS / "lock"
    if not stamp.exists() or stamp.read_bytes() != LOCK.read_bytes():
        print("audit: making .venv-audit (about 25 MB to download)", flush=True)
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(TOOLS)
        command = [
            str(TOOLS / "bin" / "python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "-q",
            "install",
            "--require-hashes",
            "-r",
            str(LOCK),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            end(setup.why_pip_failed(done.stdout + done.stderr))
        stamp.write_bytes(LOCK.read_bytes())
    return TOOLS / "bin"


def reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "the tool says nothing"


def end(text: str, code: int = CANNOT) -> NoReturn:
    print(f"audit: {text}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
