"""Plans of accidents: from a seed and a number of kills, the same trials each time."""

import random
import signal
from dataclasses import dataclass

from tests.chaos.processes import KINDS

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LONGEST_DELAY_S = {
    "snakemake": 12.0,
    "runner": 8.0,
    "worker": 6.0,
    "rank": 6.0,
}  # from when a victim is there: it starts, measures, ends
KILLS_OF_A_TRIAL = 5
OTHERS = ("stop", "full disk", "clock", "folder deleted")


@dataclass(frozen=True)
class Accident:
    """Something that happens to a run at a random moment."""

    what: str
    """"kill", or one of OTHERS"""
    victim: str = ""
    """kind of process, of a kill or a stop"""
    signal: str = ""
    """of a kill"""
    delay_s: float = 0.0
    """after the victim was seen, or after the last accident"""
    amount: float = 0.0
    """seconds of a stop or of a full disk; seconds by which the clock jumps"""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.what, self.victim, self.signal)))


@dataclass(frozen=True)
class TrialPlan:
    """One folder of results, from nothing to the last cell, and the accidents on the way."""

    number: int
    way: str
    """"snakemake" or "longca run": what is started, and started again"""
    accidents: tuple[Accident, ...]


def plan(seed: int, kills: int) -> list[TrialPlan]:
    """Trials of `KILLS_OF_A_TRIAL` kills each, the last of what is left. All victims and signals are equally
    frequent.

    A trial with a kill of snakemake runs under snakemake, others under either. Each trial has one accident of
    another kind.
    """
    generator = random.Random(seed)
    pairs: list[tuple[str, signal.Signals]] = []
    while len(pairs) < kills:
        every = [(victim, number) for victim in KINDS for number in SIGNALS]
        pairs += generator.sample(every, len(every))
    trials = []
    for number, start in enumerate(range(0, kills, KILLS_OF_A_TRIAL)):
        chosen = pairs[start : min(start + KILLS_OF_A_TRIAL, kills)]
        way = (
            "snakemake"
            if any(victim == "snakemake" for victim, _ in chosen)
            else generator.choice(("snakemake", "longca run"))
        )
        accidents = [
            Accident("kill", victim, name.name, generator.uniform(0, LONGEST_DELAY_S[victim]))
            for victim, name in chosen
        ]
        accidents.insert(
            generator.randint(0, len(accidents)), _other(OTHERS[number % len(OTHERS)], way, generator)
        )
        trials.append(TrialPlan(number, way, tuple(accidents)))
    return trials


def _other(what: str, way: str, generator: random.Random) -> Accident:
    delay_s = generator.uniform(0, 6)
    if what == "stop":
        victim = generator.choice(KINDS if way == "snakemake" else KINDS[1:])
        return Accident(what, victim, delay_s=delay_s, amount=generator.uniform(0.5, 4))
    if what == "clock":
        return Accident(
            what, delay_s=delay_s, amount=generator.choice((-1, 1)) * generator.choice((90, 3600, 30 * 86400))
        )
    return Accident(what, delay_s=delay_s, amount=generator.uniform(0.5, 4))
