"""A comparison of a run file: from what was asked for to runs that are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.comparison import shared_tokenizer as tokens
from weft.comparison import tune
from weft.comparison.architectures import ALL, told, usual
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
from weft.comparison.train import Outcome, ParallelTrainer, ThreadBudget
from weft.data.config import training
from weft.errors import ConfigError, UsageError
from weft.lock import Lock
from weft.runs.finished import is_finished, remove_on_failure
from weft.runs.resolve import resolve
from weft.runs.run_dir import make_directory
from weft.runs.status import best
from weft.tasks.registry import find_task
from weft.training.config import BUDGETS
from weft.training.device import pick_device

TUNE = "tune"


class Place(NamedTuple):
    """Where a comparison is made, and with what."""

    output_dir: Path
    jobs: int
    threads: int
    overwrite: bool


class TrainedComparison(NamedTuple):
    rows: dict[str, list[Path]]  # the runs of each variant that were trained
    failures: list[FailedRun]
    tuned: dict[str, Any]  # the search of each variant, where there was one: its trials, and which was chosen


class ComparisonRunner:
    """One comparison on its way."""

    def __init__(self, values: dict[str, Any], options: ComparisonOptions, place: Place, *, base: Path) -> None:
        model = values.get("model", {})
        # a run file that names no kind is one for the kinds that are asked for
        if options.models and options.models[0] != ALL and isinstance(model, dict):
            values = {**values, "model": {"arch": options.models[0], **model}}
        self.values = with_absolute_paths(values, base=base)
        config = resolve(self.values, base=base)
        self.chosen: str | None = None  # what is said of kinds that nobody named
        if not options.models and not options.grid:  # a grid is of the run file's own kind
            options = options._replace(models=usual(self.values))
            self.chosen = told(self.values, options.models)
        training(config.datasets)
        pick_device(config.train.device)
        if not {"valid", "test"} & config.datasets.keys():
            raise UsageError("compare", "the run file has no test or validation data to compare by", "give data.test")
        self.task, self.seed = config.task, config.seed
        self.options, self.place = options, place
        self.tuned: dict[str, Any] = {}
        self.found: Variants = variants(self.values, options, base=base)
        if options.match_params is not None and any(option == "model.hidden_size" for option, _ in options.grid):
            raise UsageError("--match-params", "chooses the width, and so does --grid model.hidden_size", "drop one of them")
        if options.tune_trials is not None:
            tune.check(self.found.variants, options.tune_trials, base=base)

    @property
    def about(self) -> dict[str, str]:
        """What all runs have in common: their tokenizer and their budget, in words."""
        config = resolve(self.found.variants[0].values, base=self.place.output_dir)
        table = config.to_dict()["tokenizer"]
        told = [_tokenizer(table[side]) for side in ("source", "target") if side in table] or [_tokenizer(table)]
        budget = [f"{value:,g} {name}" for name in BUDGETS if (value := getattr(config.train, name)) is not None]
        return {"tokenizer": " / ".join(dict.fromkeys(told)), "budget": ", ".join(budget)}

    @property
    def alone(self) -> str | None:
        """What to say where one model would be compared with nothing."""
        if len(self.found.variants) != 1:
            return None
        (one,) = self.found.variants
        kinds = ",".join(kind for kind in find_task(self.task).presets if kind != one.arch)
        return f"{one.name} is compared with nothing: add --models {one.arch},{kinds}, a part of them, or --models all"

    def refuse_policy(self, context: str | None) -> None:
        """Refuse a context policy that one of the rows can't follow, before anything is trained."""
        if context is None:
            return
        for variant in self.found.variants:
            check_context(resolve(variant.values, base=self.place.output_dir), context, variant.name)

    def train(self, observer: Observer) -> TrainedComparison:
        """Tokenizer, sizes, settings, and then all runs; what an earlier process did is kept."""
        output_dir = self.place.output_dir
        plan = to_toml(self.values, self.options)
        with remove_on_failure(output_dir):
            make_directory(output_dir)
            check_is_comparison(output_dir)
            with Lock(output_dir):
                if self.place.overwrite:  # before anything makes room for the new one
                    check_files_exist(self.values)
                    check_unused(output_dir)
                with restore_on_failure(output_dir, overwrite=self.place.overwrite):
                    begin(output_dir, plan, overwrite=self.place.overwrite)
                    chosen = self._prepared(observer)
        observer.saving()  # from here on a signal lets the runs save
        with Lock(output_dir):
            chosen = self._tuned(chosen, observer)
            runs = plan_runs(chosen, range(self.seed, self.seed + self.options.seeds), output_dir)
            outcomes = self._trainer(observer, "training", output_dir / RUN_FILES).train(runs)
            observer.clear()
        return self._trained(chosen, outcomes)

    def _prepared(self, observer: Observer) -> list[Variant]:
        """The variants with their one tokenizer, and with the size that is wanted."""
        output_dir, variants = self.place.output_dir, self.found.variants
        for note in [*([] if self.chosen is None else [self.chosen]), *self.found.notes]:
            observer.line(note)
        tokenizer = tokens.train_once(output_dir, [variant.values for variant in variants], observer.training())
        observer.clear()
        given = tokens.given_tokenizer(output_dir)
        variants = [variant._replace(values={**variant.values, "tokenizer": given}) for variant in variants]
        if self.options.match_params is None:
            return variants
        return [self._sized(variant, self.options.match_params, tokenizer, observer) for variant in variants]

    def _sized(self, variant: Variant, target: int, tokenizer: Any, observer: Observer) -> Variant:
        if not resolve(variant.values, base=self.place.output_dir).preset.estimator.by_steps:
            observer.line(f"{variant.name}: --match-params does not apply: the data decides its size")
            return variant
        try:
            found = match_num_params(variant.values, target, tokenizer, base=self.place.output_dir)
        except ConfigError as error:
            raise ConfigError(variant.name, f"{error}") from None
        observer.line(f"{variant.name}: width {found.hidden_size}, {found.parameters:,} parameters")
        return variant._replace(values=found.values)

    def _tuned(self, variants: Sequence[Variant], observer: Observer) -> list[Variant]:
        """The variants with the settings that won."""
        if self.options.tune_trials is None:
            return list(variants)
        output_dir = self.place.output_dir / TUNE
        files.own_directory(output_dir)
        trainer = self._trainer(observer, "tuning", output_dir / RUN_FILES)
        search = tune.Search(self.options.tune_trials, self._fixed(), self.seed, output_dir, trainer.train, best)
        winners = {one.variant.name: one for one in tune.tune(variants, search)}
        files.write_json(output_dir / "trials.json", {name: one.trials for name, one in winners.items()})
        self.tuned = {name: one.to_json() for name, one in winners.items()}
        observer.clear()
        for name, one in winners.items():
            observer.line(_won(name, one))
        return [winners[variant.name].variant for variant in variants]

    def _fixed(self) -> list[str]:
        """What the search leaves alone: what the grid or --match-params decides."""
        named = {"train.lr": "lr", "model.dropout": "dropout", "model.hidden_size": "width"}
        fixed = [named.get(option, option.removeprefix("model.")) for option, _ in self.options.grid]
        return fixed + (["width"] if self.options.match_params is not None else [])

    def _trainer(self, observer: Observer, what: str, run_files: Path) -> ParallelTrainer:
        room = ThreadBudget(run_files, self.place.jobs, self.place.threads)
        return ParallelTrainer(room, observer.runs(what), is_finished)

    def _trained(self, chosen: Sequence[Variant], outcomes: Sequence[Outcome]) -> TrainedComparison:
        rows: dict[str, list[Path]] = {variant.name: [] for variant in chosen}
        failures = list(self.found.failed)
        for outcome in outcomes:
            one: PlannedRun = outcome.planned
            if outcome.code == 0:
                rows[one.variant.name].append(one.output_dir)
            else:
                failures.append(FailedRun(one.variant.name, one.seed, outcome.reason, outcome.code))
        return TrainedComparison({name: runs for name, runs in rows.items() if runs}, failures, self.tuned)


def _tokenizer(table: Mapping[str, Any]) -> str:
    """'char', 'bpe of 8,000', or the name of a file."""
    size = f" of {table['size']:,}" if isinstance(table.get("size"), int) else ""
    return Path(table["file"]).name if "file" in table else f"{table.get('kind', '')}{size}"


def _told(value: Any) -> str:
    """A setting as a line shows it: 0.1, true, 1-2."""
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _won(name: str, tuned: tune.TunedVariant) -> str:
    config = ", ".join(f"{option} {_told(value)}" for option, value in tuned.trial.options.items())
    return f"{name}: tuned: {config or 'its own settings are the best that were tried'}"
