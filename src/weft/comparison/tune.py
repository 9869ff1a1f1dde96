"""Hyperparameter search by successive halving (Jamieson & Talwalkar 2016): many short runs, then longer ones of the best half.

A model that is fitted in one pass has no budget to halve: each of its trials is a complete run (comparison/search_space.py).
Only validation data is used for the choice; trials have no test files. Each rung trains from scratch: the learning rate decays
over the whole budget of a run, so a short run that continues is not the same as a long run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.comparison import search_space
from weft.comparison.applicable_options import try_config, with_model_option, with_option
from weft.comparison.plan import PlannedRun, Variant, directory_name
from weft.comparison.shared_tokenizer import without_test
from weft.comparison.train import Outcome
from weft.errors import ConfigError, UsageError
from weft.metrics.metric import Metric
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.training.config import BUDGETS, TrainConfig

LR_FACTOR = 5.0  # the learning rate is drawn between 1/5 and 5 times that of the run file
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)  # of the hidden size: 1/4 to 4 times the number of parameters
SIZE_MULTIPLE = 8  # hidden sizes are multiples of it
MAX_DRAWS = 100  # attempts per trial to draw a valid one

Best = tuple[Metric, float]  # the monitored metric and its best value
Train = Callable[[Sequence[PlannedRun]], list[Outcome]]


class Trial(NamedTuple):
    """One set of hyperparameters."""

    number: int
    options: dict[str, Any]  # lr, dropout and hidden_size; for a model fitted in one pass, others such as features.ngram_range
    values: dict[str, Any]  # a run file


class TunedVariant(NamedTuple):
    variant: Variant  # with the hyperparameters of the best trial
    trial: Trial
    trials: list[dict[str, Any]]  # every run of the search: rung, trial, options, budget, score

    def to_json(self) -> dict[str, Any]:
        """The search in comparison.json."""
        return {"chosen": self.trial.number, "trials": self.trials}


def check(variants: Sequence[Variant], num_trials: int, *, base: Path) -> None:
    """Raise UsageError for a search with fewer than two trials or without validation data."""
    if num_trials < 2:
        raise UsageError("tune_trials", f"must be at least 2, got {num_trials}")
    configs = [resolve(variant.values, base=base) for variant in variants]
    if not all(config.data.has_valid for config in configs):
        raise UsageError("tune_trials", "requires validation data", "set data.valid")


# ---- trials


def _draw(config: RunConfig, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """Draw hyperparameters around those of the run file, always in the same order, so that the seed determines all of them."""
    if not config.preset.estimator.by_steps:
        return search_space.sample_config(config, fixed, random)
    factor = float(LR_FACTOR ** random.uniform(-1.0, 1.0))
    dropout, scale = float(random.choice(DROPOUTS)), float(random.choice(SCALES))
    drawn = {"lr": float(f"{config.train.lr * factor:.3g}"), "dropout": dropout}
    drawn["hidden_size"] = max(SIZE_MULTIPLE, SIZE_MULTIPLE * round(scale * config.model.hidden_size / SIZE_MULTIPLE))
    return {name: value for name, value in drawn.items() if name not in fixed}


def initial_options(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """The run file's values of the hyperparameters that are searched."""
    if not config.preset.estimator.by_steps:
        return search_space.initial_values(config, fixed)
    options = {"lr": config.train.lr, "dropout": config.model.dropout, "hidden_size": config.model.hidden_size}
    return {name: value for name, value in options.items() if name not in fixed}


def with_choices(values: Mapping[str, Any], config: RunConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with the drawn values; muon_lr is scaled with lr."""
    if not config.preset.estimator.by_steps:
        return search_space.with_choices(values, config, chosen)
    new = dict(values)
    for name in ("dropout", "hidden_size"):
        if name in chosen:
            new = with_model_option(new, name, chosen[name])
    if "lr" in chosen:
        new = with_option(new, "train.lr", chosen["lr"])
        if config.train.muon_lr is not None:
            rate = config.train.muon_lr * chosen["lr"] / config.train.lr
            new = with_option(new, "train.muon_lr", float(f"{rate:.3g}"))
    return new


def trials(variant: Variant, number: int, fixed: Sequence[str], *, seed: int, base: Path) -> list[Trial]:
    """`number` different trials; the first has the variant's own options, so that the search includes them."""
    config = resolve(variant.values, base=base)
    random = np.random.default_rng(np.random.SeedSequence((seed, *variant.name.encode())))
    drawn, configs = [Trial(0, {}, variant.values)], [config]
    for _ in range(MAX_DRAWS * number):
        if len(drawn) == number:
            break
        chosen = _draw(config, fixed, random)
        values = with_choices(variant.values, config, chosen)
        result = try_config(values, base=base)
        if not isinstance(result, ConfigError) and result not in configs:
            drawn.append(Trial(len(drawn), chosen, values))
            configs.append(result)
    return drawn


# ---- rungs


def halving_rounds(number: int, *, by_steps: bool = True) -> list[tuple[int, float]]:
    """The number of trials on each rung and its fraction of the budget, which doubles from rung to rung up to one half. A model
    that is fitted in one pass has one rung and no budget."""
    if not by_steps:
        return [(number, 1.0)]
    count = math.ceil(math.log2(number))
    return [(math.ceil(number / 2**rung), 2.0 ** (rung - count)) for rung in range(count)]


def with_budget(values: Mapping[str, Any], table: TrainConfig, fraction: float) -> dict[str, Any]:
    """The run file with a fraction of its budget."""
    if fraction == 1.0:
        return dict(values)
    name = next(name for name in BUDGETS if getattr(table, name) is not None)
    budget = getattr(table, name)
    part = max(1, round(budget * fraction)) if name in ("max_steps", "max_tokens") else budget * fraction
    return with_option(values, f"train.{name}", part)


def _trial_dir(variant: Variant, rung: int, trial: Trial, output_dir: Path) -> Path:
    return output_dir / f"{directory_name(variant.name)}-rung{rung}-{trial.number}"


class _Trials(NamedTuple):
    """The remaining trials of a variant, the best first."""

    variant: Variant
    trials: list[Trial]
    halving_rounds: list[tuple[int, float]]  # number of trials and fraction of the budget, rung by rung
    initial: dict[str, Any]  # the run file's values of the searched hyperparameters

    def on_rung(self, rung: int) -> list[Trial]:
        """The trials of a rung; none if the variant has fewer rungs."""
        return self.trials[: self.halving_rounds[rung][0]] if rung < len(self.halving_rounds) else []


def _plan_rung(searches: Sequence[_Trials], rung: int, *, seed: int, output_dir: Path) -> list[PlannedRun]:
    planned = []
    for searched in searches:
        for trial in searched.on_rung(rung):
            table = resolve({**trial.values, "seed": seed}, base=output_dir).train
            values = without_test(with_budget(trial.values, table, searched.halving_rounds[rung][1]))
            directory = _trial_dir(searched.variant, rung, trial, output_dir)
            planned.append(PlannedRun(Variant(searched.variant.name, values), seed, directory))
    return planned


def _ranked(scored: Sequence[tuple[Trial, Best | None]]) -> list[Trial]:
    """The trials, best first; ties in the order drawn, failed trials last."""
    ranked: list[tuple[Trial, Best | None]] = []
    for trial, best in scored:
        rank = len(ranked)
        while rank and _is_better(best, ranked[rank - 1][1]):
            rank -= 1
        ranked.insert(rank, (trial, best))
    return [trial for trial, _ in ranked]


def _is_better(score: Best | None, other: Best | None) -> bool:
    return score is not None and (other is None or score[0].is_better(score[1], other[1]))


class Search(NamedTuple):
    """The options and callbacks of a search."""

    num_trials: int  # per variant
    fixed: Sequence[str]  # not searched: lr, dropout, hidden_size
    seed: int
    output_dir: Path  # the directory of the trials
    train: Train
    best: Callable[[Path], Best | None]  # the best validation score of a run


def _start_search(variant: Variant, search: Search) -> _Trials:
    config = resolve(variant.values, base=search.output_dir)
    drawn = trials(variant, search.num_trials, search.fixed, seed=search.seed, base=search.output_dir)
    steps = halving_rounds(search.num_trials, by_steps=config.preset.estimator.by_steps)
    return _Trials(variant, drawn, steps, initial_options(config, search.fixed))


def tune(variants: Sequence[Variant], search: Search) -> list[TunedVariant]:
    """Search rung by rung, all variants in parallel; returns the best trial of each variant."""
    searches = [_start_search(variant, search) for variant in variants]
    history: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
    for rung in range(max((len(searched.halving_rounds) for searched in searches), default=0)):
        planned = _plan_rung(searches, rung, seed=search.seed, output_dir=search.output_dir)
        ended = {outcome.planned.output_dir: outcome for outcome in search.train(planned)}
        for i, searched in enumerate(searches):
            directories = {
                trial.number: _trial_dir(searched.variant, rung, trial, search.output_dir) for trial in searched.on_rung(rung)
            }
            scored = [
                (trial, None if ended[path].code else search.best(path))
                for trial in searched.on_rung(rung)
                for path in [directories[trial.number]]
            ]
            history[searched.variant.name] += [
                _record(rung, searched, trial, best, ended[directories[trial.number]].reason) for trial, best in scored
            ]
            searches[i] = searched._replace(trials=_ranked(scored)) if scored else searched
    return [
        TunedVariant(Variant(result.variant.name, result.trials[0].values), result.trials[0], history[result.variant.name])
        for result in searches
    ]


def _record(rung: int, searched: _Trials, trial: Trial, best: Best | None, reason: str) -> dict[str, Any]:
    """A trial in trials.json."""
    score = {"score": None} if best is None else {"score": {"name": best[0].name, "value": best[1]}}
    failed = {"reason": reason} if reason else {}
    budget, options = searched.halving_rounds[rung][1], trial.options or searched.initial
    return {"rung": rung, "budget": budget, "trial": trial.number, "options": options, **score, **failed}
