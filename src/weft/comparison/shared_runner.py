"""A comparison that workers share: from its plan to trained runs, by this worker or as recorded by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import __version__, files
from weft.comparison import tune
from weft.comparison.cells import Cells
from weft.comparison.lease import Worker
from weft.comparison.observer import Observer
from weft.comparison.plan import COMPARISON, RUN_FILES, PlannedRun, Variant, plan_runs
from weft.comparison.runner import TUNE, ComparisonRunner, TrainedComparison, collect, run_search
from weft.comparison.shared_plan import Failure, PlannedVariant, SharedPlan, code_checksum, data_checksums
from weft.comparison.train import Outcome, ThreadBudget
from weft.comparison.worker import SharedTrainer, WorkerOptions
from weft.runs.machine import host_name
from weft.runs.status import best

TRAINING, TUNING = "training", "tuning"
Train = Callable[[Sequence[PlannedRun]], list[Outcome]]
MakeTrain = Callable[[str, Path], Train]  # from a phase and the directory of its runs to the function that trains them


class Description(NamedTuple):
    """How the table of a comparison is made, once its runs are trained."""

    title: str
    command: str
    metric: str | None = None
    tokenize: str | None = None
    context: str | None = None
    minimal_pairs: Sequence[Path] = ()


def plan_for_workers(runner: ComparisonRunner, observer: Observer, description: Description) -> SharedPlan:
    """Prepare a comparison and write workers.json; nothing is trained but the tokenizer."""
    plans = list[SharedPlan]()

    def write(variants: list[Variant]) -> None:
        plan = SharedPlan(
            weft=__version__,
            code=code_checksum(),
            host=host_name(),
            title=description.title,
            command=description.command,
            task=runner.task,
            seed=runner.seed,
            seeds=runner.options.seeds,
            tune_trials=runner.options.tune_trials,
            fixed=runner.fixed_options(),
            metric=description.metric,
            tokenize=description.tokenize,
            context=description.context,
            minimal_pairs=[str(path.resolve()) for path in description.minimal_pairs],
            about=runner.about,
            variants=[PlannedVariant(name=variant.name, values=variant.values) for variant in variants],
            failed=[Failure(**failure._asdict()) for failure in runner.plan.failed],
            data=data_checksums([variant.values for variant in variants]),
        )
        plan_runs(variants, [runner.seed], runner.runner_config.output_dir)  # refuses names that are not unique
        files.remove(runner.runner_config.output_dir / COMPARISON)  # its table may differ
        plan.write(runner.runner_config.output_dir)
        plans.append(plan)

    runner.prepare(observer, write)
    return plans[0]


def train_shared(plan: SharedPlan, output_dir: Path, make_train: MakeTrain, observer: Observer) -> TrainedComparison:
    """Tune and train with the functions that `make_train` returns. All workers plan the same runs: a search depends only on
    the runs that they have trained together."""
    variants, tuned = plan.planned_variants(output_dir), dict[str, Any]()
    if plan.tune_trials is not None:
        root = output_dir / TUNE
        files.make_subdirectory(root)
        search = tune.Search(plan.tune_trials, plan.fixed, plan.seed, root, make_train(TUNING, root), best)
        variants, tuned = run_search(variants, search, observer)
    runs = plan_runs(variants, range(plan.seed, plan.seed + plan.seeds), output_dir)
    outcomes = make_train(TRAINING, output_dir)(runs)
    observer.clear()
    return collect(variants, outcomes, plan.failures(), tuned)


class WorkerConfig(NamedTuple):
    """The resources of a worker."""

    worker: Worker
    lease_seconds: float
    jobs: int
    threads: int


def worker_train(config: WorkerConfig, observer: Observer, options: WorkerOptions) -> MakeTrain:
    """Training by this worker, together with others; only runs of the table are evaluated."""

    def make(phase: str, root: Path) -> Train:
        budget = ThreadBudget(root / RUN_FILES, config.jobs, config.threads)
        evaluate = options.evaluate if phase == TRAINING else None
        cells = Cells(root, config.worker, config.lease_seconds)
        return lambda plan: SharedTrainer(budget, observer.runs(phase), cells, options._replace(evaluate=evaluate)).train(plan)

    return make


class Unfinished(Exception):
    """Some of the runs have not ended."""


class RecordedRuns:
    """The outcomes that workers have recorded; nothing is trained."""

    def __init__(self, worker: Worker, lease_seconds: float) -> None:
        self.worker, self.lease_seconds = worker, lease_seconds
        self.phase = ""
        self.plan: Sequence[PlannedRun] = ()  # of the last phase
        self.cells: Cells | None = None

    def make_train(self, phase: str, root: Path) -> Train:
        cells = Cells(root, self.worker, self.lease_seconds)

        def train(plan: Sequence[PlannedRun]) -> list[Outcome]:
            self.phase, self.plan, self.cells = phase, plan, cells
            outcomes = [outcome for planned in plan if (outcome := cells.outcome(planned)) is not None]
            if len(outcomes) < len(plan):
                raise Unfinished
            return outcomes

        return train
