"""Settings by successive halving (Jamieson & Talwalkar 2016): many short runs, the better half of them again and longer.

A model that is counted or solved in one go has no budget to halve: each of its trials is a whole run (comparison/search_space.py).
Only validation data chooses; trials have no test files to read. Each rung trains anew: a learning rate falls over the whole
of a run's budget, so a run that was planned short and then goes on is not the run that is planned long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.comparison import search_space as spaces
from weft.comparison.applicable_options import everywhere, try_config, with_option
from weft.comparison.plan import PlannedRun, Variant, directory_name
from weft.comparison.shared_tokenizer import without_test
from weft.comparison.train import Outcome
from weft.errors import ConfigError, UsageError
from weft.metrics.metric import Metric
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.training.config import BUDGETS, TrainConfig

FACTOR = 5.0  # the rate is drawn from a fifth to five times its own
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)  # of the width: half to four times the weights
WHOLE = 8  # widths are multiples of it
MAX_DRAWS = 100  # how often a setting is drawn that fits

Best = tuple[Metric, float]  # what a run is judged by, and its best value
Train = Callable[[Sequence[PlannedRun]], list[Outcome]]


class Trial(NamedTuple):
    """Settings that are tried."""

    number: int
    options: dict[str, Any]  # by name: lr, dropout, width; of a model that is counted its options: C, features.ngrams
    values: dict[str, Any]  # a run file


class TunedVariant(NamedTuple):
    variant: Variant  # with the winner's settings
    trial: Trial
    trials: list[dict[str, Any]]  # every run of the search: rung, trial, settings, budget, score

    def to_json(self) -> dict[str, Any]:
        """The search as comparison.json has it."""
        return {"chosen": self.trial.number, "trials": self.trials}


def check(variants: Sequence[Variant], tune: int, *, base: Path) -> None:
    """Refuse a search that could choose by nothing, or from nothing."""
    if tune < 2:
        raise UsageError(f"--tune-trials {tune}", "there is nothing to choose from", "try at least 2 settings")
    config = [resolve(variant.values, base=base) for variant in variants]
    if any(one.data.valid is None for one in config):
        raise UsageError("--tune-trials", "chooses by validation data, and the run file has none", "give data.valid")


# ---- what is tried


def _draw(config: RunConfig, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """Settings around those of the run file, in an order that is always the same: the seed decides all of them."""
    if not config.preset.estimator.by_steps:
        return spaces.sample_config(config, fixed, random)
    factor = float(FACTOR ** random.uniform(-1.0, 1.0))
    dropout, scale = float(random.choice(DROPOUTS)), float(random.choice(SCALES))
    drawn = {"lr": float(f"{config.train.lr * factor:.3g}"), "dropout": dropout}
    drawn["width"] = max(WHOLE, WHOLE * round(scale * config.model.hidden_size / WHOLE))
    return {name: value for name, value in drawn.items() if name not in fixed}


def own(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """What the run file has of what is searched."""
    if not config.preset.estimator.by_steps:
        return spaces.own_dimensions(config, fixed)
    found = {"lr": config.train.lr, "dropout": config.model.dropout, "width": config.model.hidden_size}
    return {name: value for name, value in found.items() if name not in fixed}


def changed(values: Mapping[str, Any], config: RunConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with what was drawn; where matrices have a rate of their own, it goes with the other."""
    if not config.preset.estimator.by_steps:
        return spaces.changed(values, config, chosen)
    new = dict(values)
    for name in ("dropout", "hidden_size"):
        if name in chosen:
            new = everywhere(new, name, chosen[name])
    if "lr" in chosen:
        new = with_option(new, "train.lr", chosen["lr"])
        if config.train.muon_lr is not None:
            rate = config.train.muon_lr * chosen["lr"] / config.train.lr
            new = with_option(new, "train.muon_lr", float(f"{rate:.3g}"))
    return new


def trials(variant: Variant, number: int, fixed: Sequence[str], *, seed: int, base: Path) -> list[Trial]:
    """`number` different settings; the first are the variant's own, so that a search never ends below them unseen."""
    config = resolve(variant.values, base=base)
    random = np.random.default_rng(np.random.SeedSequence((seed, *variant.name.encode())))
    found, seen = [Trial(0, {}, variant.values)], [config]
    for _ in range(MAX_DRAWS * number):
        if len(found) == number:
            break
        chosen = _draw(config, fixed, random)
        values = changed(variant.values, config, chosen)
        meant = try_config(values, base=base)
        if not isinstance(meant, ConfigError) and meant not in seen:
            found.append(Trial(len(found), chosen, values))
            seen.append(meant)
    return found


# ---- how long


def halving_rounds(number: int, *, by_steps: bool = True) -> list[tuple[int, float]]:
    """How many trials each rung has, and its share of the budget: twice that of the one before, half of it in the last. What
    does not learn step by step has one rung, and no budget to share."""
    if not by_steps:
        return [(number, 1.0)]
    count = math.ceil(math.log2(number))
    return [(math.ceil(number / 2**rung), 2.0 ** (rung - count)) for rung in range(count)]


def with_budget(values: Mapping[str, Any], table: TrainConfig, fraction: float) -> dict[str, Any]:
    """The run file with a share of its budget."""
    if fraction == 1.0:
        return dict(values)
    name = next(name for name in BUDGETS if getattr(table, name) is not None)
    whole = getattr(table, name)
    part = max(1, round(whole * fraction)) if name in ("max_steps", "max_tokens") else whole * fraction
    return with_option(values, f"train.{name}", part)


def _place(variant: Variant, rung: int, trial: Trial, output_dir: Path) -> Path:
    return output_dir / f"{directory_name(variant.name)}-rung{rung}-{trial.number}"


class _Left(NamedTuple):
    """What is left of the trials of a variant, the best first."""

    variant: Variant
    trials: list[Trial]
    halving_rounds: list[tuple[int, float]]  # how many of them have which share of the budget, rung by rung
    own: dict[str, Any]  # the settings of the run file, as far as they are searched

    def at(self, rung: int) -> list[Trial]:
        """Those that are tried on a rung: none where the variant has no more."""
        return self.trials[: self.halving_rounds[rung][0]] if rung < len(self.halving_rounds) else []


def _rung(tuned: Sequence[_Left], rung: int, *, seed: int, output_dir: Path) -> list[PlannedRun]:
    planned = []
    for left in tuned:
        for trial in left.at(rung):
            table = resolve({**trial.values, "seed": seed}, base=output_dir).train
            values = without_test(with_budget(trial.values, table, left.halving_rounds[rung][1]))
            planned.append(PlannedRun(Variant(left.variant.name, values), seed, _place(left.variant, rung, trial, output_dir)))
    return planned


def _ranked(scored: Sequence[tuple[Trial, Best | None]]) -> list[Trial]:
    """The best first; of equals the one that was drawn first; those that failed last."""
    found: list[tuple[Trial, Best | None]] = []
    for trial, best in scored:
        place = len(found)
        while place and _beats(best, found[place - 1][1]):
            place -= 1
        found.insert(place, (trial, best))
    return [trial for trial, _ in found]


def _beats(score: Best | None, than: Best | None) -> bool:
    return score is not None and (than is None or score[0].is_better(score[1], than[1]))


class Search(NamedTuple):
    """What a search works with."""

    number: int  # of trials for each variant
    fixed: Sequence[str]  # what is not to be changed: lr, dropout, width
    seed: int
    output_dir: Path  # where the trials go
    train: Train
    best: Callable[[Path], Best | None]  # of the validation data of a run


def _begun(variant: Variant, search: Search) -> _Left:
    config = resolve(variant.values, base=search.output_dir)
    found = trials(variant, search.number, search.fixed, seed=search.seed, base=search.output_dir)
    steps = halving_rounds(search.number, by_steps=config.preset.estimator.by_steps)
    return _Left(variant, found, steps, own(config, search.fixed))


def tune(variants: Sequence[Variant], search: Search) -> list[TunedVariant]:
    """The winner of each variant's trials, rung by rung, those of all variants together."""
    state = [_begun(variant, search) for variant in variants]
    history: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
    for rung in range(max((len(left.halving_rounds) for left in state), default=0)):
        planned = _rung(state, rung, seed=search.seed, output_dir=search.output_dir)
        ended = {outcome.planned.output_dir: outcome for outcome in search.train(planned)}
        for at, left in enumerate(state):
            places = {trial.number: _place(left.variant, rung, trial, search.output_dir) for trial in left.at(rung)}
            scored = [
                (trial, None if ended[place].code else search.best(place))
                for trial in left.at(rung)
                for place in [places[trial.number]]
            ]
            history[left.variant.name] += [
                _record(rung, left, trial, best, ended[places[trial.number]].reason) for trial, best in scored
            ]
            state[at] = left._replace(trials=_ranked(scored)) if scored else left
    return [
        TunedVariant(Variant(left.variant.name, left.trials[0].values), left.trials[0], history[left.variant.name])
        for left in state
    ]


def _record(rung: int, left: _Left, trial: Trial, best: Best | None, reason: str) -> dict[str, Any]:
    """A trial as trials.json has it."""
    score = {"score": None} if best is None else {"score": {"name": best[0].name, "value": best[1]}}
    failed = {"reason": reason} if reason else {}
    config = trial.options or left.own
    return {"rung": rung, "budget": left.halving_rounds[rung][1], "trial": trial.number, "settings": config, **score, **failed}
