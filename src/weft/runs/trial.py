"""Settings for a given time: the best model that can be trained in some minutes on this machine, measured by short trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from weft.config import BUDGETS
from weft.errors import UsageError
from weft.runs.config import RunConfig
from weft.runs.job import Job, JobCallback
from weft.runs.recommend import CPU_FLOPS, Recommendation, recommend_ladder
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.runs.teachers import load_teachers
from weft.tasks.prepare import prepare
from weft.training.duration import budget_steps, format_minutes, seconds_per_step
from weft.training.neural import NeuralTrainer

MIN_SHARE = 0.5  # of a recommended budget that must fit into the time: a larger model trained for less is worse
MIN_STEPS = 100  # of a run that learns anything
MAX_SLOWDOWN = 10  # the estimate of the operations per second may be wrong by this factor
MARGIN = 1.3  # a recommended budget is kept if the time is this much longer: few batches are measured, and no validation


class Trial(NamedTuple):
    """The result of a trial."""

    chosen: int  # index of the settings
    fits: bool  # whether their whole budget certainly fits into the time
    seconds: float  # that their budget would take
    step_seconds: float


class TimeTooShort(UsageError):
    """The time is too short for a model."""

    def __init__(self, minutes: float, arch: str, step_seconds: float) -> None:
        self.arch, self.seconds = arch, MIN_STEPS * step_seconds  # the last are enough
        needed = max(0.1, round(self.seconds / 60 + 0.05, 1))
        problem = f"{minutes:.2g} is too short for {arch}: a step takes {step_seconds:.2g} seconds"
        super().__init__("minutes", problem, f"use at least {needed:g}")


def recommend_within(values: Mapping[str, Any], minutes: float, *, base: Path, callback: JobCallback) -> Recommendation:
    """The recommended settings for a run of this many minutes on this machine. They replace a budget of the run file."""
    train = {name: value for name, value in values.get("train", {}).items() if name not in BUDGETS}
    ladder = _worth_trying(recommend_ladder({**values, "train": train}, base=base), minutes)
    trial = choose_by_trial([step.config for step in ladder], minutes, callback)
    chosen = ladder[trial.chosen]._replace(step_seconds=trial.step_seconds)
    if trial.fits:
        return chosen
    kept = {name: value for name, value in chosen.values.get("train", {}).items() if name not in BUDGETS}
    new = {**chosen.values, "train": {**kept, "max_minutes": minutes}}
    options = {name: value for name, value in chosen.options.items() if name.removeprefix("train.") not in BUDGETS}
    if trial.seconds > 60 * minutes:
        whole, part = format_minutes(trial.seconds), format_minutes(60 * minutes)
        callback.on_note(f"{chosen.config.arch}: the recommended training would take {whole}; it will end after {part}")
    return chosen._replace(values=new, config=resolve(new, base=base), options={**options, "train.max_minutes": minutes})


def _worth_trying(ladder: Sequence[Recommendation], minutes: float) -> Sequence[Recommendation]:
    """The ladder without models that are far too large for the time on a CPU: even a few batches of them would take minutes."""
    if ladder[0].profile is None or ladder[0].profile.is_gpu:
        return ladder
    limit = MAX_SLOWDOWN * CPU_FLOPS * 60 * minutes
    return [step for step in ladder[:-1] if step.flops <= limit] + [ladder[-1]]


def choose_by_trial(configs: Sequence[RunConfig], minutes: float, callback: JobCallback) -> Trial:
    """The first settings, the best, of which at least half of the budget can be trained in this time; else the last.

    Raises:
        TimeTooShort: The time is too short even for those.
    """
    with TemporaryDirectory(prefix="weft-trial-") as directory:
        for index, config in enumerate(configs):
            callback.on_progress("measuring the speed of training", index, len(configs))
            if not config.preset.estimator.by_steps:
                return Trial(index, fits=True, seconds=0.0, step_seconds=0.0)
            seconds, step_seconds = _measure(config, RunDir(Path(directory)), callback)
            if 60 * minutes >= MIN_SHARE * seconds:
                return Trial(index, 60 * minutes >= MARGIN * seconds, seconds, step_seconds)
        if 60 * minutes < MIN_STEPS * step_seconds:
            raise TimeTooShort(minutes, configs[-1].arch, step_seconds)
    return Trial(len(configs) - 1, fits=False, seconds=seconds, step_seconds=step_seconds)


def _measure(config: RunConfig, directory: RunDir, callback: JobCallback) -> tuple[float, float]:
    """The seconds of the whole budget and of one step. The directory keeps the tokens for the next trial."""
    task = config.preset.estimator.network_task
    if task is None:
        return 0.0, 0.0
    vocabulary, columns = prepare(config.spec, config, directory, callback)
    loop = NeuralTrainer(task).loop(Job(config, directory, vocabulary, columns, callback, load_teachers(config)))
    step_seconds = seconds_per_step(loop) or 0.0
    return (budget_steps(loop) or 0) * step_seconds, step_seconds
