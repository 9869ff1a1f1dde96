"""The candidates of `weft.fit`, and the time of each: baselines first, then networks, which share the time that is left."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.comparison.applicable_options import applicable_options, with_option
from weft.comparison.architectures import default_archs
from weft.comparison.observer import Observer
from weft.comparison.plan import COMPARISON, FailedRun, PlannedRun, Variant, Variants, directory_name
from weft.comparison.table_text import format_seconds
from weft.comparison.train import Outcome
from weft.config import BUDGETS
from weft.errors import UsageError
from weft.runs.recommend import recommend
from weft.runs.run_dir import RunDir
from weft.runs.status import read_run_status, read_timing
from weft.runs.trial import MARGIN, MIN_STEPS, TimeTooShort, recommend_within
from weft.tasks.registry import find_task

RESERVE = 0.08  # of the time, for evaluation and report
MIN_RESERVE_SECONDS = 10.0
MIN_SHARE = 0.5  # of the minimum that a network was planned with; its measurement is uncertain
STARTUP_SECONDS = 5.0  # of a process that trains: it imports PyTorch and reads the data


class Comparison(NamedTuple):
    """Candidates that are trained and validated on the same data."""

    directory: Path
    values: dict[str, Any]  # the run file
    overwrite: bool  # start over

    def begun_run(self, arch: str) -> RunDir | None:
        """The run of an earlier process that is to be resumed, if there is one."""
        run = RunDir(self.directory / f"{directory_name(arch)}-{self.values.get('seed', 0)}")
        return run if run.resolved.is_file() and not self.overwrite else None

    def earlier_failures(self) -> list[FailedRun]:
        """The failures of a finished search: the same command does not try them again."""
        path = self.directory / COMPARISON
        if self.overwrite or not path.is_file():
            return []
        document = files.read_json(path)
        failures: Any = document.get("failures") if isinstance(document, dict) else None
        is_intact = isinstance(failures, list) and all(
            isinstance(failure, dict) and failure.keys() == set(FailedRun._fields) for failure in failures
        )
        return [FailedRun(**failure) for failure in failures] if is_intact else []

    def is_trained(self, arch: str) -> bool:
        run = self.begun_run(arch)
        return run is not None and read_run_status(run.path).done


def split_comparisons(values: Mapping[str, Any], output_dir: Path, folds: int | None, *, overwrite: bool) -> list[Comparison]:
    """One comparison, or one for each fold of the training data."""
    if folds is None:
        return [Comparison(output_dir, dict(values), overwrite)]
    return [
        Comparison(output_dir / f"fold-{index}", with_option(values, "data.fold", [index, folds]), overwrite)
        for index in range(1, folds + 1)
    ]


def with_recommended_arch(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The run file with an architecture: its own, the recommended one, or the first network to try."""
    model, task = dict(values.get("model", {})), find_task(values["task"])
    if "arch" not in model:
        recommendation = recommend(values, base=base)
        is_known = bool(recommendation.options) or not task.fit_archs
        model["arch"] = recommendation.config.arch if is_known else task.fit_archs[0]
    return {**values, "model": model}


class CandidateArchs(NamedTuple):
    """The architectures that are tried."""

    baselines: list[str]
    networks: list[str]


def candidate_archs(values: Mapping[str, Any]) -> CandidateArchs:
    """The baselines of the task, the architecture of the run file, and other promising networks."""
    task = find_task(values["task"])
    archs = dict.fromkeys([values["model"]["arch"], *task.fit_archs] if task.fit_archs else default_archs(values))
    baselines = [arch for arch, preset in task.presets.items() if not preset.estimator.by_steps]
    return CandidateArchs(baselines, [arch for arch in archs if arch not in baselines])


class NetworkTime(NamedTuple):
    """The time of a network, in seconds."""

    planned: float
    minimum: float  # with less, it would not learn anything


class SearchTime:
    """Divides the time: a network gets an equal part of what is left when it starts."""

    def __init__(self, minutes: float, waiting: dict[str, int], *, trains_again: bool, seconds_used: float) -> None:
        """`waiting`: the number of runs of each network that are not trained yet. `trains_again`: one more is trained last."""
        self.minutes, self.waiting, self.trains_again = minutes, waiting, trains_again
        self.start = time.monotonic() - seconds_used
        self.deadline = self.start + 60 * minutes - max(MIN_RESERVE_SECONDS, 60 * minutes * RESERVE)
        self.networks = dict[str, NetworkTime]()  # by architecture
        self.minutes_needed = 0.0  # of a search that has time for the network that was left out last

    @property
    def num_parts(self) -> int:
        return max(1, sum(self.waiting.values()) + self.trains_again)

    def part(self) -> float:
        """The seconds of the next network."""
        return (self.deadline - time.monotonic()) / self.num_parts - STARTUP_SECONDS

    def minutes_for(self, seconds: float) -> float:
        """The time of a search in which each network that is left has some seconds."""
        trained = time.monotonic() - self.start + (seconds + STARTUP_SECONDS) * self.num_parts
        return math.ceil(max(trained + MIN_RESERVE_SECONDS, trained / (1 - RESERVE)) / 6) / 10

    def before_start(self, planned: PlannedRun) -> PlannedRun | Outcome:
        """The run with a budget for the time that is left. One that was begun before keeps its budget."""
        arch = planned.variant.arch
        if arch not in self.networks:
            return planned
        seconds = self.part()
        self.waiting[arch] -= 1
        if RunDir(planned.output_dir).resolved.is_file():
            return planned
        if seconds < MIN_SHARE * self.networks[arch].minimum:
            return Outcome(planned, UsageError.exit_code, "left out, because no time was left for it")
        train = planned.variant.values.get("train", {})
        if "max_minutes" not in train and seconds >= self.networks[arch].planned / MARGIN:
            return planned
        kept = {name: value for name, value in train.items() if name not in BUDGETS}
        values = {**planned.variant.values, "train": {**kept, "max_minutes": round(seconds / 60, 4)}}
        return planned._replace(variant=planned.variant._replace(values=values))


def start_clock(comparisons: Sequence[Comparison], archs: CandidateArchs, minutes: float, *, trains_again: bool) -> SearchTime:
    """The time of a search. What earlier processes trained is deducted."""
    begun = [
        run
        for comparison in comparisons
        for arch in (*archs.baselines, *archs.networks)
        if (run := comparison.begun_run(arch)) is not None
    ]
    waiting = {arch: sum(not comparison.is_trained(arch) for comparison in comparisons) for arch in archs.networks}
    seconds_used = sum(read_timing(run.path)[0] for run in begun)
    return SearchTime(minutes, waiting, trains_again=trains_again, seconds_used=seconds_used)


def plan_candidates(comparison: Comparison, archs: Sequence[str], clock: SearchTime, observer: Observer) -> Variants:
    """The candidates with the best settings for their part of the time. If it is too short for one, the last one is left out,
    so that the others have more."""
    names, failed = list(archs), list[FailedRun]()
    while names:
        variants = list[Variant]()
        try:
            for arch in names:
                variants.append(_variant(comparison, arch, clock, observer))
            return Variants(variants, failed, [])
        except TimeTooShort as error:
            clock.minutes_needed = clock.minutes_for(error.seconds)
            reason = _reason(names[-1], error, clock)
            failed.append(FailedRun(names[-1], None, reason, error.exit_code))
        del clock.waiting[names.pop()]
    return Variants([], failed, [])


def _reason(name: str, error: TimeTooShort, clock: SearchTime) -> str:
    """Why a network is left out: what does not fit into which part of the time."""
    goal = "" if name == error.arch else f" so that {error.arch} has more time"
    planned = clock.networks[error.arch].planned
    time_left = f"its part of the time is {format_seconds(planned)}" if planned > 0 else "no time is left for it"
    steps = f"{MIN_STEPS} steps of {error.arch} take {format_seconds(error.seconds)}"
    return f"left out{goal}: {steps}, and {time_left}; {clock.minutes_needed:g} minutes are enough"


def _variant(comparison: Comparison, arch: str, clock: SearchTime, observer: Observer) -> Variant:
    """A candidate with the best settings for its part of the time. One that was begun before keeps its settings."""
    values, base = comparison.values, comparison.directory
    is_network = find_task(values["task"]).presets[arch].estimator.by_steps
    if is_network:
        clock.networks[arch] = NetworkTime(clock.part(), 0.0)
    if (begun := comparison.begun_run(arch)) is not None:
        return Variant(arch, {name: value for name, value in begun.read_resolved().items() if name != "seed"})
    shared = recommend(values, base=base).values
    given = {name: value for name, value in values.items() if name != "seed"}
    tables = {table: shared[table] for table in ("data", "tokenizer") if table in shared}
    run_file: dict[str, Any] = applicable_options(given, arch, base=base).values | tables
    minutes = clock.part() / 60 if is_network else clock.minutes
    within = recommend_within(run_file, minutes, base=base, callback=observer.training())
    if is_network:
        clock.networks[arch] = NetworkTime(60 * minutes, MIN_STEPS * within.step_seconds)
    return Variant(arch, {**within.values, "recommend": False})


def variants_for(comparison: Comparison, plan: Variants) -> Variants:
    """The candidates with the data of a comparison; those that were begun keep their settings."""
    fold = comparison.values["data"].get("fold")
    if fold is None:
        return plan
    variants = []
    for variant in plan.variants:
        begun = comparison.begun_run(variant.arch)
        values = variant.values if begun is None else begun.read_resolved()
        values = {name: value for name, value in values.items() if name != "seed"}
        variants.append(variant._replace(values=with_option(values, "data.fold", fold)))
    return plan._replace(variants=variants)
