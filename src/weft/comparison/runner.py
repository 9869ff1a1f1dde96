"""A comparison of a run file: from its options to trained runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.comparison import shared_tokenizer, tune
from weft.comparison.architectures import ALL, default_archs, describe_choice
from weft.comparison.cells import check_no_workers, this_worker
from weft.comparison.context_policy import check_context
from weft.comparison.match_params import match_num_params
from weft.comparison.observer import Observer
from weft.comparison.plan import (
    RUN_FILES,
    ComparisonOptions,
    FailedRun,
    PlannedRun,
    Variant,
    Variants,
    begin,
    check_files_exist,
    check_is_comparison,
    check_unused,
    plan_runs,
    restore_on_failure,
    to_toml,
    variants,
    with_absolute_paths,
)
from weft.comparison.recommended_options import with_recommended_options
from weft.comparison.shared_plan import is_shared
from weft.comparison.train import BeforeStart, Outcome, ParallelTrainer, ThreadBudget, as_planned
from weft.data.config import training
from weft.errors import ConfigError, UsageError
from weft.lock import Lock
from weft.runs.finished import is_finished, remove_on_failure
from weft.runs.recommend import recommend
from weft.runs.resolve import resolve
from weft.runs.run_dir import make_directory
from weft.runs.status import best
from weft.tasks.registry import find_task
from weft.training.config import BUDGETS
from weft.training.device import pick_device

TUNE = "tune"  # the directory of trials


OnPrepared = Callable[[list[Variant]], None]


def _do_nothing(variants: list[Variant]) -> None:
    pass


class RunnerConfig(NamedTuple):
    """Where a comparison is stored, and the resources it may use."""

    output_dir: Path
    jobs: int
    threads: int
    overwrite: bool


class TrainedComparison(NamedTuple):
    rows: dict[str, list[Path]]  # the trained runs of each variant
    failures: list[FailedRun]
    tuned: dict[str, Any]  # the hyperparameter search of each variant: its trials and the chosen one


class ComparisonRunner:
    """Trains the runs of one comparison."""

    def __init__(
        self,
        values: dict[str, Any],
        options: ComparisonOptions,
        runner_config: RunnerConfig,
        *,
        base: Path,
        plan: Variants | None = None,
    ) -> None:
        """`plan`: the variants with all their options; by default, they follow from the options of the comparison."""
        model = values.get("model", {})
        # a run file without model.arch takes the first of the named architectures
        if options.models and options.models[0] != ALL and isinstance(model, dict):
            values = {**values, "model": {"arch": options.models[0], **model}}
        elif isinstance(model, dict) and "arch" not in model:
            values = {**values, "model": {**model, "arch": recommend(values, base=base).config.arch}}
        self.values = with_absolute_paths(values, base=base)
        config = resolve(self.values, base=base)
        self.default_choice: str | None = None  # describes the default choice of architectures, if it is used
        if not options.models and not options.grid:  # a grid is about the run file's own architecture
            options = options._replace(models=default_archs(self.values))
            self.default_choice = describe_choice(self.values, options.models)
        training(config.datasets)
        pick_device(config.train.device)
        if not {"valid", "test"} & config.datasets.keys():
            raise UsageError("compare", "the run file has no test or validation data", "set data.test or data.valid")
        self.task, self.seed = config.task, config.seed
        self.options, self.runner_config = options, runner_config
        self.tuned: dict[str, Any] = {}
        self.plan = plan or with_recommended_options(variants(self.values, options, base=base), self.values, base=base)
        if options.match_params is not None and any(option == "model.hidden_size" for option, _ in options.grid):
            raise UsageError("match_params", "cannot be combined with model.hidden_size in `grid`", "remove one of them")
        if options.tune_trials is not None:
            tune.check(self.plan.variants, options.tune_trials, base=base)

    @property
    def about(self) -> dict[str, str]:
        """Descriptions of the tokenizer and the budget that all runs share."""
        config = resolve(self.plan.variants[0].values, base=self.runner_config.output_dir)
        table = config.to_dict()["tokenizer"]
        tables = [table[side] for side in ("source", "target") if side in table] or [table]
        names = map(_describe_tokenizer, tables)
        budget = [
            f"{value:,g} {name.removeprefix('max_')}" for name in BUDGETS if (value := getattr(config.train, name)) is not None
        ]
        return {"tokenizer": " / ".join(dict.fromkeys(names)), "budget": ", ".join(budget)}

    @property
    def single_model_note(self) -> str | None:
        """A note if there is only one model to compare."""
        if len(self.plan.variants) != 1:
            return None
        (variant,) = self.plan.variants
        archs = ",".join(arch for arch in find_task(self.task).presets if arch != variant.arch)
        return f"{variant.name} is the only model; set `models` to some of {variant.arch},{archs}, or to all"

    def check_context(self, context: str | None) -> None:
        """Raise UsageError, before anything is trained, if one of the rows cannot apply the context policy."""
        if context is None:
            return
        for variant in self.plan.variants:
            check_context(resolve(variant.values, base=self.runner_config.output_dir), context, variant.name)

    def train(self, observer: Observer, before_start: BeforeStart = as_planned) -> TrainedComparison:
        """Prepare tokenizer, sizes and hyperparameters, then train all runs; the work of an earlier process is reused.
        `before_start` can change a run or leave it out."""
        output_dir = self.runner_config.output_dir
        if is_shared(output_dir) and not self.runner_config.overwrite:
            fix = f"run weft compare {output_dir} --worker, or use `overwrite`"
            raise UsageError(output_dir, "contains a comparison for workers", fix)
        variants = self.prepare(observer)
        observer.saving()  # from here on, runs save when a signal arrives
        with Lock(output_dir):
            variants = self._tune(variants, observer)
            runs = plan_runs(variants, range(self.seed, self.seed + self.options.seeds), output_dir)
            outcomes = self._trainer(observer, "training", output_dir / RUN_FILES, before_start).train(runs)
            observer.clear()
        return collect(variants, outcomes, self.plan.failed, self.tuned)

    def prepare(self, observer: Observer, on_prepared: OnPrepared = _do_nothing) -> list[Variant]:
        """Create the directory of the comparison, or continue an existing one, and prepare tokenizer and sizes.
        `on_prepared(variants)` is called under the lock; if it fails, a replaced comparison is restored."""
        output_dir, overwrite = self.runner_config.output_dir, self.runner_config.overwrite
        plan = to_toml(self.values, self.options)
        with remove_on_failure(output_dir):
            make_directory(output_dir)
            check_is_comparison(output_dir)
            with Lock(output_dir):
                if overwrite:  # before the existing comparison becomes a backup
                    check_files_exist(self.values)
                    check_unused(output_dir)
                    check_no_workers(output_dir, this_worker())
                with restore_on_failure(output_dir, overwrite=overwrite):
                    begin(output_dir, plan, overwrite=overwrite)
                    variants = self._prepare(observer)
                    on_prepared(variants)
        return variants

    def _prepare(self, observer: Observer) -> list[Variant]:
        """The variants with the shared tokenizer and, with match_params, the matched hidden size."""
        output_dir, variants = self.runner_config.output_dir, self.plan.variants
        for note in [*([] if self.default_choice is None else [self.default_choice]), *self.plan.notes]:
            observer.line(note)
        tokenizer = shared_tokenizer.train_once(output_dir, [variant.values for variant in variants], observer.training())
        observer.clear()
        table = shared_tokenizer.tokenizer_table(output_dir)
        variants = [variant._replace(values={**variant.values, "tokenizer": table}) for variant in variants]
        if self.options.match_params is None:
            return variants
        return [self._match_size(variant, self.options.match_params, tokenizer, observer) for variant in variants]

    def _match_size(self, variant: Variant, target: int, tokenizer: Any, observer: Observer) -> Variant:
        if not resolve(variant.values, base=self.runner_config.output_dir).preset.estimator.by_steps:
            observer.line(f"{variant.name}: ignoring `match_params` (its size depends on the data)")
            return variant
        try:
            sized = match_num_params(variant.values, target, tokenizer, base=self.runner_config.output_dir)
        except ConfigError as error:
            raise ConfigError(variant.name, str(error)) from None
        observer.line(f"{variant.name}: hidden_size {sized.hidden_size}, {sized.num_parameters:,} parameters")
        return variant._replace(values=sized.values)

    def _tune(self, variants: Sequence[Variant], observer: Observer) -> list[Variant]:
        """The variants with the hyperparameters of the best trial."""
        if self.options.tune_trials is None:
            return list(variants)
        output_dir = self.runner_config.output_dir / TUNE
        files.make_subdirectory(output_dir)
        trainer = self._trainer(observer, "tuning", output_dir / RUN_FILES)
        search = tune.Search(self.options.tune_trials, self.fixed_options(), self.seed, output_dir, trainer.train, best)
        variants, self.tuned = run_search(variants, search, observer)
        return variants

    def fixed_options(self) -> list[str]:
        """The hyperparameters that the search keeps fixed: those of the grid and of match_params."""
        names = {"train.lr": "lr", "model.dropout": "dropout", "model.hidden_size": "hidden_size"}
        fixed = [names.get(option, option.removeprefix("model.")) for option, _ in self.options.grid]
        return fixed + (["hidden_size"] if self.options.match_params is not None else [])

    def _trainer(
        self, observer: Observer, phase: str, run_files: Path, before_start: BeforeStart = as_planned
    ) -> ParallelTrainer:
        budget = ThreadBudget(run_files, self.runner_config.jobs, self.runner_config.threads)
        return ParallelTrainer(budget, observer.runs(phase), is_finished, before_start)


def collect(
    variants: Sequence[Variant], outcomes: Sequence[Outcome], failed: Sequence[FailedRun], tuned: dict[str, Any]
) -> TrainedComparison:
    """The trained runs of each variant; `failed` are the variants that were not trained at all."""
    rows: dict[str, list[Path]] = {variant.name: [] for variant in variants}
    failures = list(failed)
    for outcome in outcomes:
        run: PlannedRun = outcome.planned
        if outcome.code == 0:
            rows[run.variant.name].append(run.output_dir)
        else:
            failures.append(FailedRun(run.variant.name, run.seed, outcome.reason, outcome.code))
    return TrainedComparison({name: runs for name, runs in rows.items() if runs}, failures, tuned)


def run_search(variants: Sequence[Variant], search: tune.Search, observer: Observer) -> tuple[list[Variant], dict[str, Any]]:
    """The variants with the hyperparameters of their best trials, and the search of each variant for comparison.json."""
    winners = {winner.variant.name: winner for winner in tune.tune(variants, search)}
    files.write_json(search.output_dir / "trials.json", {name: winner.trials for name, winner in winners.items()})
    observer.clear()
    for name, winner in winners.items():
        observer.line(_describe_winner(name, winner))
    tuned = {name: winner.to_json() for name, winner in winners.items()}
    return [winners[variant.name].variant for variant in variants], tuned


def _describe_tokenizer(table: Mapping[str, Any]) -> str:
    """'char', 'bpe (at most 8,000 tokens)', or the name of a file."""
    size = f" (at most {table['vocab_size']:,} tokens)" if isinstance(table.get("vocab_size"), int) else ""
    return Path(table["file"]).name if "file" in table else f"{table.get('type', '')}{size}"


def _format_value(value: Any) -> str:
    """The value of an option: 0.1, true, 1-2."""
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _describe_winner(name: str, tuned: tune.TunedVariant) -> str:
    options = ", ".join(f"{option} {_format_value(value)}" for option, value in tuned.trial.options.items())
    return f"{name}: best trial: {options or 'the options of the run file'}"
