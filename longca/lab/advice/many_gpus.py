"""The study's figure over many GPUs, predicted: five strategies, four masks, 8 to 1024 GPUs; and the verdicts
that follow.

`many_gpus.csv` beside this file is made by `python -m tools.many_gpus --again`. Every number in it is
predicted.
No record has more than 4 GPUs. Under documents, times are means over several draws: strategies change places
from one sequence to another.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.core import format_length, load_hardware
from longca.cp.forecast import links_of
from longca.lab.advice.draws import NETWORK_RANGE, interval_s, with_range
from longca.lab.advice.option import Candidate, candidate_of, mean_forecast, predict_each
from longca.lab.advice.question import question_of
from longca.lab.claims import all_claims
from longca.lab.studies import DRAWS
from longca.masks import build_mask
from longca.predict.fitted import fitted_on

if TYPE_CHECKING:
    import pandas as pd

    from longca.lab.advice.option import OptionForecast
    from longca.lab.advice.question import AdviceQuestion
    from longca.lab.claims import Claim, Verdict

FILE = Path(__file__).parent / "many_gpus.csv"
STRATEGIES = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain")
MASKS: Mapping[str, str | None] = {
    "full": None,
    "causal": None,
    "full_document": "prolong512k_long",
    "causal_document": "prolong512k_long",
}
WORLDS = (8, 16, 32, 64, 96, 1024)
# tokens of a GPU and heads are the study's
PER_RANK = 8192
HEADS = (64, 8)
KERNEL = "band"
PROFILE = "h100-ib400"
FACTORS = (1.0, *NETWORK_RANGE)  # of the rate between nodes
MOST_OF_STUDY = 96  # GPUs: claims are judged up to there
FEWER_DRAWS = {1024: 1}  # GPUs → draws, where planning one sequence takes minutes
CLAIMS = (15, 17, 18, 21)  # those that need several nodes, and that times decide


@dataclass(frozen=True)
class PredictedCell:
    """One strategy in one setting, predicted; without numbers where it cannot run."""

    strategy: str
    mask: str
    world: int
    direction: str
    network_factor: float
    """of the rate between nodes"""
    status: str
    reason: str
    ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    tflops: float | None = None
    """of a GPU"""
    tflops_low: float | None = None
    tflops_high: float | None = None
    exposed: float | None = None
    straggler: float | None = None
    memory_bytes: float | None = None
    inter_node_bytes: float | None = None
    draws: int | None = None
    """sequences that times are means over"""
    first_in: int | None = None
    """number of draws in which no strategy is faster"""


@dataclass(frozen=True)
class PredictedVerdict:
    """The judgement of a claim by predictions, and whether it hangs on the network that is assumed."""

    claim: Claim
    verdict: Verdict
    others: tuple[Verdict, ...]
    """with the slowest and the quickest rate between nodes that intervals allow"""

    @property
    def text(self) -> str:
        """ "holds (predicted, with 0.6 and 1.25 times the rate between nodes, too): …"."""
        rates = " and ".join(f"{factor:g}" for factor in NETWORK_RANGE)
        statuses = {verdict.status for verdict in self.others} - {self.verdict.status}
        sure = (
            f"with {rates} times the rate between nodes, too"
            if not statuses
            else f"but {' or '.join(sorted(statuses))} with {rates} times the rate between nodes"
        )
        return f"{self.verdict.status} (predicted, {sure}): {self.verdict.finding}"


def make(
    worlds: Sequence[int] = WORLDS,
    masks: Sequence[str] = tuple(MASKS),
    strategies: Sequence[str] = STRATEGIES,
) -> Iterator[PredictedCell]:
    """Predicts all cells anew, both directions of each with all rates between nodes."""
    for world in worlds:
        for name in masks:
            mask = build_mask(name, seqlen=PER_RANK * world, corpus=MASKS[name])
            question = question_of(
                mask,
                gpus=world,
                num_q_heads=HEADS[0],
                num_kv_heads=HEADS[1],
                profile=PROFILE,
                kernels=[KERNEL],
                draws=FEWER_DRAWS.get(world, DRAWS),
            )
            drawn = [question.drawn(number) for number in range(question.num_draws)]
            plans = [_planned(of_draw, strategies) for of_draw in drawn]
            for direction in ("fwd", "bwd"):
                asked = [replace(of_draw, directions=(direction,)) for of_draw in drawn]
                yield from _cells(
                    asked, plans, strategies, {"mask": name, "world": world, "direction": direction}
                )


def _planned(question: AdviceQuestion, strategies: Sequence[str]) -> dict[str, Candidate | str]:
    """Each strategy with its plan of one draw, or the reason why it cannot run."""
    shared = dict[Any, Any]()
    return {strategy: candidate_of(question, strategy, KERNEL, shared) for strategy in strategies}


def _cells(
    questions: Sequence[AdviceQuestion],
    plans: Sequence[dict[str, Candidate | str]],
    strategies: Sequence[str],
    setting: dict[str, Any],
) -> Iterator[PredictedCell]:
    """The cells of one mask, world and direction.

    Args:
        questions: of each draw, in this direction.
        plans: of each draw.
    """
    first = questions[0]
    speeds = with_range(links_of(first.network))
    forecasts: dict[str, list[list[OptionForecast]]] = {}  # strategy → draw → rate between nodes
    refused: dict[str, str] = {}
    for question, of_draw in zip(questions, plans, strict=True):
        for strategy in strategies:
            candidate = of_draw[strategy]
            if isinstance(candidate, str):
                refused[strategy] = candidate
            else:
                forecasts.setdefault(strategy, []).append(predict_each(candidate, question, speeds))
    works = [question.flops(question.directions[0]) / first.gpus / 1e12 for question in questions]
    work = sum(works) / len(works)
    best = (
        [
            min(forecasts[strategy][draw][0].seconds for strategy in strategies if strategy not in refused)
            for draw in range(len(questions))
        ]
        if len(refused) < len(strategies)
        else []
    )
    for strategy in strategies:
        if strategy in refused:
            yield from (
                PredictedCell(
                    **setting,
                    strategy=strategy,
                    network_factor=factor,
                    status="unsupported",
                    reason=refused[strategy],
                )
                for factor in FACTORS
            )
            continue
        of_draws = forecasts[strategy]
        spans = [
            interval_s(candidate, of_draw, question)
            for question, planned, of_draw in zip(questions, plans, of_draws, strict=True)
            if isinstance(candidate := planned[strategy], Candidate)
        ]
        for index, factor in enumerate(FACTORS):
            mean = mean_forecast([of_draw[index] for of_draw in of_draws])
            assumed = factor == 1
            low, high = (
                (min(low for low, _ in spans), max(high for _, high in spans)) if assumed else (None, None)
            )
            rates = [(done / high, done / low) for done, (low, high) in zip(works, spans, strict=True)]
            yield PredictedCell(
                **setting,
                strategy=strategy,
                network_factor=factor,
                status="ok",
                reason="",
                ms=mean.seconds * 1e3,
                low_ms=low * 1e3 if low else None,
                high_ms=high * 1e3 if high else None,
                tflops=work / mean.seconds,
                tflops_low=min(rate for rate, _ in rates) if assumed else None,
                tflops_high=max(rate for _, rate in rates) if assumed else None,
                exposed=mean.exposed,
                straggler=mean.straggler,
                memory_bytes=mean.memory_bytes,
                inter_node_bytes=mean.inter_node_bytes,
                draws=len(questions) if assumed else None,
                first_in=sum(of_draw[0].seconds <= best[draw] for draw, of_draw in enumerate(of_draws))
                if assumed
                else None,
            )


def save(cells: Sequence[PredictedCell], path: Path = FILE) -> None:
    """Writes the cells, numbers to five digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(cells[0])), lineterminator="\n")
        writer.writeheader()
        for cell in cells:
            writer.writerow(
                {
                    name: f"{value:.5g}" if isinstance(value, float) else value
                    for name, value in asdict(cell).items()
                }
            )


def load(path: Path = FILE) -> list[PredictedCell]:
    """Reads the cells that `save` has written."""
    kinds = {
        name: int if "int" in kind else float
        for name, kind in PredictedCell.__annotations__.items()
        if "str" not in kind
    }

    def value(name: str, text: str) -> Any:
        return (kinds[name](text) if text else None) if name in kinds else text

    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [PredictedCell(**{name: value(name, text) for name, text in row.items()}) for row in rows]


def table(cells: Sequence[PredictedCell], factor: float = 1.0) -> pd.DataFrame:
    """The cells of one rate between nodes as the derived table has them, so that claims can judge them.

    A spread within one setting is left out: intervals of strategies on one network go up and down together.
    """
    import pandas as pd

    from longca.lab.store.table import derived

    gpu = question_of(build_mask("causal", seqlen=PER_RANK), gpus=1, num_q_heads=1, profile=PROFILE).gpu
    empty = derived([])
    rows = []
    for cell in cells:
        if cell.network_factor != factor:
            continue
        seqlen = PER_RANK * cell.world
        rows.append(
            {
                "cell_id": f"predicted {cell.strategy} {cell.mask} {cell.world} {cell.direction}",
                "study": "predicted",
                "kind": "cp",
                "method": f"{cell.strategy}+{KERNEL}",
                "strategy": cell.strategy,
                "kernel": KERNEL,
                "world": cell.world,
                "mask": cell.mask,
                "corpus": MASKS[cell.mask] or "",
                "seqlen": seqlen,
                "new_tokens": seqlen,
                "num_q_heads": HEADS[0],
                "num_kv_heads": HEADS[1],
                "head_dim": 128,
                "dtype": "bf16",
                "direction": cell.direction,
                "seed": 0,
                "input_values": "normal",
                "sustained": False,
                "is_control": False,
                "status": cell.status,
                "reason": cell.reason,
                "time_ms_median": cell.ms,
                "tflops_per_device": cell.tflops,
                "tflops_per_device_low": cell.tflops,
                "tflops_per_device_high": cell.tflops,
                "straggler_percent": None if cell.straggler is None else round(100 * cell.straggler, 3),
                "device": gpu.gpu_names[0],
                "device_type": "cuda",
                "num_nodes": -(-cell.world // 8),
                "peak_tflops": gpu.peak_tflops.value,
                "mask_params": "",
                "strategy_params": "",
                "mask_family": "documents" if MASKS[cell.mask] else "no documents",
            }
        )
    return pd.DataFrame(rows).reindex(columns=empty.columns)


def verdicts(cells: Sequence[PredictedCell] | None = None) -> dict[int, PredictedVerdict]:
    """Number of a claim → its predicted verdict, on as many GPUs as the study has."""
    known = [cell for cell in (load() if cells is None else cells) if cell.world <= MOST_OF_STUDY]
    tables = [table(known, factor) for factor in FACTORS]
    predicted = {}
    for claim in all_claims():
        if claim.number in CLAIMS:
            first, *others = (claim.judge(table_of_factor) for table_of_factor in tables)
            predicted[claim.number] = PredictedVerdict(claim, first, tuple(others))
    return predicted


def setting() -> str:
    """The settings that all cells share, in words."""
    hardware = load_hardware()
    gpu = hardware.named(next(network.gpu for network in hardware.networks if network.name == PROFILE))
    own = fitted_on(gpu.gpu_names)
    kernel = (
        f"{KERNEL} as fitted on records of it"
        if own is not None and KERNEL in own.kernels
        else f"{KERNEL} by the share of peaks"
    )
    return (
        f"{format_length(PER_RANK)} tokens a GPU ({gpu.name}), {HEADS[0]}:{HEADS[1]} heads, kernel "
        f"{kernel}, network {PROFILE}; documents of {MASKS['causal_document']}"
    )
