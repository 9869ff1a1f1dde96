"""A comparison of a run file: from what was asked for to runs that are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft import files
from weft.compare import tokens, tune
from weft.compare.contexts import check_context
from weft.compare.kinds import ALL, told, usual
from weft.compare.observer import Observer
from weft.compare.plan import (
    RUN_FILES,
    Asked,
    Planned,
    Refused,
    Variant,
    Variants,
    absolute,
    as_toml,
    begin,
    or_as_it_was,
    planned,
    refuse_missing,
    refuse_strangers,
    refuse_used,
    variants,
)
from weft.compare.sizes import sized
from weft.compare.train import Outcome, Room, Trainer
from weft.data.tables import training
from weft.errors import ConfigError, UsageError
from weft.lock import Lock
from weft.runs.finished import is_finished, leaving_nothing
from weft.runs.folder import make_folder
from weft.runs.resolve import resolve
from weft.runs.story import best
from weft.tasks.registry import find_task
from weft.train.device import pick_device
from weft.train.tables import BUDGETS

TUNE = "tune"


class Place(NamedTuple):
    """Where a comparison is made, and with what."""

    out: Path
    jobs: int
    threads: int
    fresh: bool


class Trained(NamedTuple):
    rows: dict[str, list[Path]]  # the runs of each variant that were trained
    failures: list[Refused]
    tuned: dict[str, Any]  # the search of each variant, where there was one: its trials, and which was chosen


class Comparing:
    """One comparison on its way."""

    def __init__(self, values: dict[str, Any], asked: Asked, place: Place, *, base: Path) -> None:
        model = values.get("model", {})
        # a run file that names no kind is one for the kinds that are asked for
        if asked.models and asked.models[0] != ALL and isinstance(model, dict):
            values = {**values, "model": {"kind": asked.models[0], **model}}
        self.values = absolute(values, base=base)
        settings = resolve(self.values, base=base)
        self.chosen: str | None = None  # what is said of kinds that nobody named
        if not asked.models and not asked.grid:  # a grid is of the run file's own kind
            asked = asked._replace(models=usual(self.values))
            self.chosen = told(self.values, asked.models)
        training(settings.datasets)
        pick_device(settings.train.device)
        if not {"valid", "test"} & settings.datasets.keys():
            raise UsageError("compare: the run file has no test or validation data to compare by; give data.test")
        self.task, self.seed = settings.task, settings.seed
        self.asked, self.place = asked, place
        self.tuned: dict[str, Any] = {}
        self.found: Variants = variants(self.values, asked, base=base)
        if asked.params is not None and any(option == "model.width" for option, _ in asked.grid):
            raise UsageError("--params: chooses the width, and so does --grid model.width; drop one of them")
        if asked.tune is not None:
            tune.check(self.found.variants, asked.tune, base=base)

    @property
    def about(self) -> dict[str, str]:
        """What all runs have in common: their tokenizer and their budget, in words."""
        settings = resolve(self.found.variants[0].values, base=self.place.out)
        table = settings.to_dict()["tokenizer"]
        told = [_tokenizer(table[side]) for side in ("source", "target") if side in table] or [_tokenizer(table)]
        budget = [f"{value:,g} {name}" for name in BUDGETS if (value := getattr(settings.train, name)) is not None]
        return {"tokenizer": " / ".join(dict.fromkeys(told)), "budget": ", ".join(budget)}

    @property
    def alone(self) -> str | None:
        """What to say where one model would be compared with nothing."""
        if len(self.found.variants) != 1:
            return None
        (one,) = self.found.variants
        kinds = ",".join(kind for kind in find_task(self.task).presets if kind != one.kind)
        return f"{one.name} is compared with nothing: add --models {one.kind},{kinds}, a part of them, or --models all"

    def refuse_policy(self, context: str | None) -> None:
        """Refuse a context policy that one of the rows can't follow, before anything is trained."""
        if context is None:
            return
        for variant in self.found.variants:
            check_context(resolve(variant.values, base=self.place.out), context, variant.name)

    def train(self, observer: Observer) -> Trained:
        """Tokenizer, sizes, settings, and then all runs; what an earlier process did is kept."""
        out = self.place.out
        plan = as_toml(self.values, self.asked)
        with leaving_nothing(out):
            make_folder(out)
            refuse_strangers(out)
            with Lock(out):
                if self.place.fresh:  # before anything makes room for the new one
                    refuse_missing(self.values)
                    refuse_used(out)
                with or_as_it_was(out, fresh=self.place.fresh):
                    begin(out, plan, fresh=self.place.fresh)
                    chosen = self._prepared(observer)
        observer.saving()  # from here on a signal lets the runs save
        with Lock(out):
            chosen = self._tuned(chosen, observer)
            runs = planned(chosen, range(self.seed, self.seed + self.asked.seeds), out)
            outcomes = self._trainer(observer, "training", out / RUN_FILES).train(runs)
            observer.clear()
        return self._trained(chosen, outcomes)

    def _prepared(self, observer: Observer) -> list[Variant]:
        """The variants with their one tokenizer, and with the size that is wanted."""
        out, variants = self.place.out, self.found.variants
        for note in [*([] if self.chosen is None else [self.chosen]), *self.found.notes]:
            observer.line(note)
        tokenizer = tokens.train_once(out, [variant.values for variant in variants], observer.training())
        observer.clear()
        given = tokens.given(out)
        variants = [variant._replace(values={**variant.values, "tokenizer": given}) for variant in variants]
        if self.asked.params is None:
            return variants
        return [self._sized(variant, self.asked.params, tokenizer, observer) for variant in variants]

    def _sized(self, variant: Variant, target: int, tokenizer: Any, observer: Observer) -> Variant:
        if not resolve(variant.values, base=self.place.out).preset.estimator.by_steps:
            observer.line(f"{variant.name}: --params does not apply: the data decides its size")
            return variant
        try:
            found = sized(variant.values, target, tokenizer, base=self.place.out)
        except ConfigError as error:
            raise ConfigError(f"{variant.name}: {error}") from None
        observer.line(f"{variant.name}: width {found.width}, {found.parameters:,} parameters")
        return variant._replace(values=found.values)

    def _tuned(self, variants: Sequence[Variant], observer: Observer) -> list[Variant]:
        """The variants with the settings that won."""
        if self.asked.tune is None:
            return list(variants)
        out = self.place.out / TUNE
        files.own_folder(out)
        trainer = self._trainer(observer, "tuning", out / RUN_FILES)
        search = tune.Search(self.asked.tune, self._fixed(), self.seed, out, trainer.train, best)
        winners = {one.variant.name: one for one in tune.tune(variants, search)}
        files.write_json(out / "trials.json", {name: one.tried for name, one in winners.items()})
        self.tuned = {name: one.to_json() for name, one in winners.items()}
        observer.clear()
        for name, one in winners.items():
            observer.line(_won(name, one))
        return [winners[variant.name].variant for variant in variants]

    def _fixed(self) -> list[str]:
        """What the search leaves alone: what the grid or --params decides."""
        named = {"train.lr": "lr", "model.dropout": "dropout", "model.width": "width"}
        fixed = [named.get(option, option.removeprefix("model.")) for option, _ in self.asked.grid]
        return fixed + (["width"] if self.asked.params is not None else [])

    def _trainer(self, observer: Observer, what: str, run_files: Path) -> Trainer:
        room = Room(run_files, self.place.jobs, self.place.threads)
        return Trainer(room, observer.runs(what), is_finished)

    def _trained(self, chosen: Sequence[Variant], outcomes: Sequence[Outcome]) -> Trained:
        rows: dict[str, list[Path]] = {variant.name: [] for variant in chosen}
        failures = list(self.found.refused)
        for outcome in outcomes:
            one: Planned = outcome.planned
            if outcome.code == 0:
                rows[one.variant.name].append(one.out)
            else:
                failures.append(Refused(one.variant.name, one.seed, outcome.reason, outcome.code))
        return Trained({name: runs for name, runs in rows.items() if runs}, failures, self.tuned)


def _tokenizer(table: Mapping[str, Any]) -> str:
    """'char', 'bpe of 8,000', or the name of a file."""
    size = f" of {table['size']:,}" if isinstance(table.get("size"), int) else ""
    return Path(table["file"]).name if "file" in table else f"{table.get('kind', '')}{size}"


def _told(value: Any) -> str:
    """A setting as a line shows it: 0.1, true, 1-2."""
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _won(name: str, tuned: tune.Tuned) -> str:
    settings = ", ".join(f"{option} {_told(value)}" for option, value in tuned.trial.chosen.items())
    return f"{name}: tuned: {settings or 'its own settings are the best that were tried'}"
