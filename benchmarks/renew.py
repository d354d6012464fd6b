"""Measures parts of this repository's results again, as much as fits into a time limit, on the GPUs of this
machine.

    python -m benchmarks.renew --list
    python -m benchmarks.renew dense cp --seconds 540 [--pack FOLDER]
    python -m benchmarks.renew --next h100 --seconds 540 [--pack FOLDER]

Parts are taken in the order given. Those of one GPU run side by side, one on each GPU; those of all GPUs run
alone. At the end of the time what still runs is interrupted as by Ctrl-C. Everything goes to a folder of its
own for each part, so the same command goes on where it was;
`--next` takes the next parts of a campaign (`benchmarks.campaign`), as many as the GPUs can measure in the
time, without those that ended by themselves in an earlier call on this machine.
`--pack` also puts each part's folder into an archive, for machines that are given back. `longca report FILE…`
and `--write` of each benchmark make pages and tables of what came home.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longca.core import UserError, parse_heads, unknown
from longca.ops.band.tables.backward_way import FEW_ITEMS, ways_of_one_pass
from tools.pages import ROOT

FOLDER = ROOT / "results" / "renew"
GRACE_S = 15.0  # after an interrupt: `longca run` ends its cell and its processes
POLL_S = 0.2
VISIBLE = "CUDA_VISIBLE_DEVICES"
OUT = "{out}"  # in a command: the part's folder
ENDED = "ended.txt"
"""in a part's folder: the command of the part that ended there by itself"""
COMPARE = (
    "benchmarks.band.compare --keep --max-seconds 3600 --lengths 32K,8K,128K --kernels "
    "band,band_atomic,fa3,fa4,flex_flash,"
    f"cudnn_flex,vsa,flashinfer,fa2_sparse,cudnn_bsa --out {OUT}"
)


# half no powers of two
SWEEP_LENGTHS = "1K,1500,2K,2500,3K,3500,4K,5K,6K,7K,8K,9001,10K,12K,14K,16K,20K,24K,28K,32K,40K,48K,64K,96K"
# what the sweep does not reach in its time, in two halves
SWEEP_MIDDLE = "12K,14K,16K,20K,24K"
SWEEP_LONG = "28K,32K,40K,48K,64K,96K"
SWEEP_WAYS = (
    "bwd from last k1,bwd from last k2,bwd from first s1 k1 r1,bwd from first s1 k2 r1,bwd from first s1 k4 "
    "r1,bwd from first s1 k1 r2,bwd"
)


def sweep(heads: str, lengths: str = SWEEP_LENGTHS) -> str:
    """The command that times every way to the gradients at these lengths, shortest first."""
    num_q_heads, num_kv_heads = parse_heads(heads)
    many = ",".join(
        f"bwd from first s1 k{kv_heads} r{rounds}"
        for kv_heads, rounds in ways_of_one_pass(1, num_q_heads, num_kv_heads, 1)
        if kv_heads * rounds > FEW_ITEMS
    )
    return (
        f"benchmarks.band.dq_order --seconds 510 --heads {heads} --lengths {lengths} --also "
        f"'{SWEEP_WAYS},{many}' --out {OUT}"
    )


def run(study: str, options: str = "") -> str:
    """The command that measures cells of a study."""
    return f"longca run {study} {options} --progress plain --results {OUT}"


def rest(study: str, options: str = "", gpu: str = "h200") -> str:
    """The command that measures what the committed records of a study lack."""
    return run(study, f"{options} --known reports/{gpu}/{study}.parquet")


@dataclass(frozen=True)
class Part:
    """One command, as of `python -m`."""

    about: str
    command: str
    all_gpus: bool = False
    files: tuple[str, ...] = ()
    """what it writes elsewhere in the checkout, if it does"""


HALVES = {  # of the masks, with about as much work each: all kernels run one mask on one GPU
    "a": "full,causal_document,sliding_window,shared_question,prefix_lm,global_sliding_window",
    "b": "causal,full_document,causal_sliding_window,causal_blockwise,prefix_lm_document,block_causal_document",  # noqa: E501
}
PARTS: Mapping[str, Part] = {
    "band": Part("band attention beside its rivals: 32K, 8K and 128K", COMPARE),
    "orders": Part(
        "ways to the gradients, also with other numbers of heads at once",
        "benchmarks.band.dq_order --seconds 300 --also 'bwd from last k2,bwd from first s1 k4 r1,bwd from "
        "first s1 k1 r1,"
        f"bwd from first s1 k1 r2' --out {OUT}",
    ),
    "orders-few": Part(
        "ways to the gradients with the few heads of a chunk of Ulysses",
        f"benchmarks.band.dq_order --seconds 400 --heads 8:1,16:2,24:3 --out {OUT}",
    ),
    "orders-equal": Part(
        "ways to the gradients with a query head for each KV head, few KV heads at once as well",
        "benchmarks.band.dq_order --seconds 300 --heads 64:64 --also 'bwd two dq k1,bwd two dq k16,bwd two "
        f"dq k64' --out {OUT}",
    ),
    **{
        f"ways-{heads.replace(':', '-')}": Part(
            f"ways to the gradients at 24 lengths, {heads} heads", sweep(heads)
        )
        for heads in ("64:8", "32:8", "16:2", "64:64")
    },
    **{
        f"ways-{half}-{heads.replace(':', '-')}": Part(
            f"ways to the gradients from {lengths.partition(',')[0]} tokens on, {heads} heads",
            sweep(heads, lengths),
        )
        for heads in ("64:8", "32:8", "16:2", "64:64")
        for half, lengths in (("middle", SWEEP_MIDDLE), ("long", SWEEP_LONG))
    },
    "dense-equal": Part(
        "band in h100-dense with a query head for each KV head",
        run("h100-dense", "-k band,band_atomic --heads 64:64"),
    ),
    "dense": Part("band in h200-dense", run("h200-dense", "-k band,band_atomic")),
    "sparse": Part("band in h200-sparse", run("h200-sparse", "-k band,band_atomic")),
    "dense-rest": Part("what reports/h200/h200-dense.parquet lacks", rest("h200-dense")),
    "sparse-rest": Part("what reports/h200/h200-sparse.parquet lacks", rest("h200-sparse")),
    "power-rest": Part("what reports/h200/power.parquet lacks", rest("power")),
    "deterministic": Part("backward in a fixed order: band and its rivals", run("deterministic")),
    "kv-cache": Part("what reports/h200/kv-cache.parquet lacks", rest("kv-cache")),
    **{  # on an H100, as the study has it
        f"as-study-{name}": Part(
            f"what reports/h100/as-study.parquet lacks of {kernels}, {heads} heads",
            rest(
                "as-study",
                f"-k {kernels} --heads {heads} --known reports/h100/h100-dense.parquet --no-playoff",
                "h100",
            ),
        )
        for name, kernels, heads in (
            ("packages", "fa2,fa3", "64:8"),
            ("graph", "cudnn_graph", "64:8"),
            ("torch", "as_released_sdpa,as_released_naive,sdpa", "64:8"),
            ("released", "as_released_fa3,flex", "64:8"),
            ("sparse", "flashinfer,vsa*,as_released_flex", "64:8"),
            ("equal", "fa2,fa3,cudnn_graph,sdpa,as_released_naive", "64:64"),
        )
    },
    "single": Part("band in h200-cp on one GPU", run("h200-cp", "-w 1 -k band")),
    "cp": Part("band in h200-cp on two GPUs", run("h200-cp", "-w 2 -k band --seed 0"), all_gpus=True),
    "draws": Part(
        "ten draws of documents on two GPUs",
        run(
            "h200-cp",
            "-w 2 --seed 0..9 -m full_document,causal_document "
            "-c ring_p2p,ring_allgather,paper_style* -s 16K",
        ),
        all_gpus=True,
    ),
    **{
        f"h100-dense-{half}": Part(
            f"what reports/h100/h100-dense.parquet lacks, half {half} of the masks",
            rest("h100-dense", f"-m {masks}", "h100"),
        )
        for half, masks in HALVES.items()
    },
    **{
        f"h100-sparse-{half}": Part(
            f"what reports/h100/h100-sparse.parquet lacks with {heads} heads",
            rest("h100-sparse", f"--heads {heads}", "h100"),
        )
        for half, heads in (("a", "64:8"), ("b", "64:64"))
    },
    "h100-fwd": Part("band forward in h100-cp on one GPU", run("h100-cp", "-w 1 -d fwd")),
    "h100-bwd": Part("band backward in h100-cp on one GPU", run("h100-cp", "-w 1 -d bwd")),
    "h100-cp": Part("band in h100-cp on two GPUs", run("h100-cp", "-w 2 --seed 0"), all_gpus=True),
    "h100-draws": Part(
        "more draws of documents in h100-cp", run("h100-cp", "-w 2 --seed 1..9"), all_gpus=True
    ),
    "ahead": Part("what was predicted ahead", run("ahead"), all_gpus=True),
    "public": Part("the public face beside cells", f"benchmarks.cp.public --out {OUT}", all_gpus=True),
    "curves": Part(
        "training on one and two GPUs",
        "tools.training_curves --run --gpus",
        all_gpus=True,
        files=("docs/guide/training/gpu_curves.csv", "docs/guide/training/gpu_runs.csv"),
    ),
    "composition": Part(
        "context parallelism beside FSDP2 and tensor parallelism",
        "pytest tests/gpu/test_composition_on_gpus.py -q -s -p no:cacheprovider",
        all_gpus=True,
    ),
    "tests": Part("the tests on GPUs", "pytest tests/gpu -q -p no:cacheprovider", all_gpus=True),
}


class Running:
    """A part at work on some GPUs, in a process group of its own."""

    def __init__(self, name: str, part: Part, gpus: Sequence[int]) -> None:
        self.name = name
        self.gpus = gpus
        self._part = part
        self._start = time.monotonic()
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [argument.replace(OUT, str(folder)) for argument in shlex.split(part.command)]
        visible = (
            os.environ.get(VISIBLE, "").split(",")
            if os.environ.get(VISIBLE)
            else list(map(str, range(max(gpus) + 1)))
        )
        self._log = (folder / "log.txt").open("a", encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
            env={**os.environ, VISIBLE: ",".join(visible[gpu] for gpu in gpus)},
        )
        say(f"{name} begins on GPU {' and '.join(map(str, gpus))}: {part.about}")

    def is_over(self) -> bool:
        """Tells whether it has ended, and says so once."""
        if self._process.poll() is None:
            return False
        say(
            f"{self.name} ends after {time.monotonic() - self._start:.0f} s with exit code "
            f"{self._process.returncode}"
        )
        self._log.close()
        (FOLDER / self.name / ENDED).write_text(self._part.command, encoding="utf-8")
        return True

    def interrupt(self) -> None:
        """Asks it to end, as Ctrl-C does."""
        say(f"{self.name} is interrupted")
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self, seconds: float) -> None:
        """Waits for its end, and kills what is left after so long."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


def _heed_interrupts() -> None:
    """Undo what a script does to a command that it starts in the background: the command, and all that it
    starts, ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def has_ended(name: str, part: Part) -> bool:
    """True if this very part has ended by itself on this machine, whatever became of its cells."""
    file = FOLDER / name / ENDED
    return file.is_file() and file.read_text(encoding="utf-8") == part.command


def renew(parts: Mapping[str, Part], num_gpus: int, seconds: float) -> list[str]:
    """Runs the parts within the time. Returns the names of those that ended by themselves."""
    todo = list(parts)
    running = list[Running]()
    ended = list[str]()
    end_s = time.monotonic() + seconds
    while (todo or running) and time.monotonic() < end_s:
        for process in [process for process in running if process.is_over()]:
            running.remove(process)
            ended.append(process.name)
        free = sorted(set(range(num_gpus)) - {gpu for process in running for gpu in process.gpus})
        wanted = (num_gpus if parts[todo[0]].all_gpus else 1) if todo else num_gpus + 1
        if len(free) >= wanted:
            running.append(Running(todo[0], parts[todo.pop(0)], free[:wanted]))
        else:
            time.sleep(POLL_S)
    for process in running:
        process.interrupt()
    killed_s = time.monotonic() + GRACE_S
    for process in running:  # all at once have the same time to end
        process.end(killed_s - time.monotonic())
    if todo:
        say(f"not begun: {', '.join(todo)}")
    return ended


def pack(parts: Mapping[str, Part], target: Path) -> None:
    """Puts what each part has written into `<part>.tar.gz`, by its path in the checkout."""
    target.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        existing = [path for path in (FOLDER / name, *(ROOT / file for file in part.files)) if path.exists()]
        if existing:
            with tarfile.open(target / f"{name}.tar.gz", "w:gz") as archive:
                for path in existing:
                    archive.add(path, path.relative_to(ROOT))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.renew", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all of it (3600)")
    parser.add_argument("--pack", type=Path, help="folder for an archive of each part")
    parser.add_argument(
        "--next",
        metavar="CAMPAIGN",
        help="the next parts of this campaign: see `python -m benchmarks.campaign`",
    )
    parser.add_argument("--list", action="store_true", help="say what each part is")
    options = parser.parse_args(arguments)
    if options.list or not (options.parts or options.next):
        for name, part in PARTS.items():
            print(f"{name:<12} {'all GPUs' if part.all_gpus else 'one GPU '}  {part.about}")
        return 0
    import torch

    if strange := [name for name in options.parts if name not in PARTS]:
        parser.error(str(unknown("part", strange[0], PARTS)))
    chosen = {name: PARTS[name] for name in options.parts}
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        parser.error("there is no GPU here")
    if options.next:
        from benchmarks.campaign import parts_that_fit  # which takes its parts from here

        try:
            chosen |= parts_that_fit(options.next, options.seconds, num_gpus, has_ended)
        except UserError as error:
            parser.error(str(error))
    ended = renew(chosen, num_gpus, options.seconds)
    if options.pack:
        pack(chosen, options.pack)
    return int(len(ended) < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
