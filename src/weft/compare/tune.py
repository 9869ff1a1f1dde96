"""Settings by successive halving (Jamieson & Talwalkar 2016): many short runs, the better half of them again and longer.

Only validation data chooses; trials have no test files to read. Each rung trains anew: a learning rate falls over the whole
of a run's budget, so a run that was planned short and then goes on is not the run that is planned long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.compare.fitting import everywhere, learns, tried, with_option
from weft.compare.plan import Planned, Variant, folder_name
from weft.compare.tokens import without_test
from weft.compare.train import Outcome
from weft.errors import ConfigError, UsageError
from weft.metrics.better import is_better
from weft.train.settings import Settings, resolve
from weft.train.tables import BUDGETS, TrainTable

FACTOR = 5.0  # the rate is drawn from a fifth to five times its own
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)  # of the width: half to four times the weights
WHOLE = 8  # widths are multiples of it
DRAWS = 100  # how often a setting is drawn that fits

Best = Callable[[Path], tuple[str, float] | None]  # a run's best validation score
Train = Callable[[Sequence[Planned]], list[Outcome]]


class Trial(NamedTuple):
    """Settings that are tried."""

    number: int
    chosen: dict[str, float]  # by name: lr, dropout, width
    values: dict[str, Any]  # a run file


class Tuned(NamedTuple):
    variant: Variant  # with the winner's settings
    trial: Trial
    tried: list[dict[str, Any]]  # every run of the search: rung, trial, settings, budget, score


def check(variants: Sequence[Variant], tune: int, *, base: Path) -> None:
    """Refuse a search that could choose by nothing, or from nothing."""
    if tune < 2:
        raise UsageError(f"--tune {tune}: there is nothing to choose from; try at least 2 settings")
    settings = [resolve(variant.values, base=base) for variant in variants]
    if any(one.data.valid is None for one in settings):
        raise UsageError("--tune: chooses by validation data, and the run file has none; give data.valid")
    if all(learns(one.preset) is None for one in settings):
        raise UsageError("--tune: searches learning rate, dropout and width, and no model here has them; drop it")


# ---- what is tried


def _draw(settings: Settings, fixed: Sequence[str], random: np.random.Generator) -> dict[str, float]:
    """Settings around those of the run file, in an order that is always the same: the seed decides all of them."""
    factor = float(FACTOR ** random.uniform(-1.0, 1.0))
    dropout, scale = float(random.choice(DROPOUTS)), float(random.choice(SCALES))
    drawn = {"lr": float(f"{settings.train.lr * factor:.3g}"), "dropout": dropout}
    drawn["width"] = max(WHOLE, WHOLE * round(scale * width_of(settings) / WHOLE))
    return {name: value for name, value in drawn.items() if name not in fixed}


def width_of(settings: Settings) -> int:
    """The width of a network; of an encoder-decoder, of its encoder."""
    model = settings.model
    return int(model.encoder.width if settings.task == "translate" else model.width)


def changed(values: Mapping[str, Any], settings: Settings, chosen: Mapping[str, float]) -> dict[str, Any]:
    """The run file with what was drawn; where matrices have a rate of their own, it goes with the other."""
    new = dict(values)
    for name in ("dropout", "width"):
        if name in chosen:
            new = everywhere(new, name, chosen[name])
    if "lr" in chosen:
        new = with_option(new, "train.lr", chosen["lr"])
        if settings.train.matrix_lr is not None:
            rate = settings.train.matrix_lr * chosen["lr"] / settings.train.lr
            new = with_option(new, "train.matrix_lr", float(f"{rate:.3g}"))
    return new


def trials(variant: Variant, number: int, fixed: Sequence[str], *, seed: int, base: Path) -> list[Trial]:
    """`number` different settings; the first are the variant's own, so that a search never ends below them unseen."""
    settings = resolve(variant.values, base=base)
    random = np.random.default_rng(np.random.SeedSequence((seed, *variant.name.encode())))
    found = [Trial(0, {}, variant.values)]
    for _ in range(DRAWS * number):
        if len(found) == number:
            break
        chosen = _draw(settings, fixed, random)
        values = changed(variant.values, settings, chosen)
        fits = not isinstance(tried(values, base=base), ConfigError)
        if fits and values not in [trial.values for trial in found]:
            found.append(Trial(len(found), chosen, values))
    return found


# ---- how long


def rungs(number: int) -> list[tuple[int, float]]:
    """How many trials each rung has, and its share of the budget: twice that of the one before, half of it in the last."""
    count = math.ceil(math.log2(number))
    return [(math.ceil(number / 2**rung), 2.0 ** (rung - count)) for rung in range(count)]


def shortened(values: Mapping[str, Any], table: TrainTable, share: float) -> dict[str, Any]:
    """The run file with a share of its budget."""
    name = next(name for name in BUDGETS if getattr(table, name) is not None)
    whole = getattr(table, name)
    part = max(1, round(whole * share)) if name in ("steps", "tokens") else whole * share
    return with_option(values, f"train.{name}", part)


def _place(variant: Variant, rung: int, trial: Trial, out: Path) -> Path:
    return out / f"{folder_name(variant.name)}-rung{rung}-{trial.number}"


def _rung(tuned: Sequence[tuple[Variant, list[Trial]]], rung: int, share: float, *, seed: int, out: Path) -> list[Planned]:
    planned = []
    for variant, left in tuned:
        for trial in left:
            table = resolve({**trial.values, "seed": seed}, base=out).train
            values = without_test(shortened(trial.values, table, share))
            planned.append(Planned(Variant(variant.name, values), seed, _place(variant, rung, trial, out)))
    return planned


def _ranked(scored: Sequence[tuple[Trial, tuple[str, float] | None]]) -> list[Trial]:
    """The best first; of equals the one that was drawn first; those that failed last."""
    found: list[tuple[Trial, tuple[str, float] | None]] = []
    for trial, best in scored:
        place = len(found)
        while place and _beats(best, found[place - 1][1]):
            place -= 1
        found.insert(place, (trial, best))
    return [trial for trial, _ in found]


def _beats(score: tuple[str, float] | None, than: tuple[str, float] | None) -> bool:
    return score is not None and (than is None or is_better(score[0], score[1], than[1]))


class Search(NamedTuple):
    """What a search works with."""

    number: int  # of trials for each variant
    fixed: Sequence[str]  # what is not to be changed: lr, dropout, width
    seed: int
    out: Path  # where the trials go
    train: Train
    best: Best


def tune(variants: Sequence[Variant], search: Search) -> list[Tuned]:
    """The winner of each variant's trials, rung by rung, those of all variants together."""
    state = [(variant, trials(variant, search.number, search.fixed, seed=search.seed, base=search.out)) for variant in variants]
    history: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
    for rung, (size, share) in enumerate(rungs(search.number)):
        state = [(variant, left[:size]) for variant, left in state]
        planned = _rung(state, rung, share, seed=search.seed, out=search.out)
        reasons = {outcome.planned.out: outcome.reason for outcome in search.train(planned)}
        after = []
        for variant, left in state:
            places = {trial.number: _place(variant, rung, trial, search.out) for trial in left}
            scored = [(trial, None if reasons[at] else search.best(at)) for trial in left for at in [places[trial.number]]]
            history[variant.name] += [
                _record(rung, share, trial, best, reasons[places[trial.number]]) for trial, best in scored
            ]
            after.append((variant, _ranked(scored)))
        state = after
    return [Tuned(Variant(name, left[0].values), left[0], history[name]) for (name, _), left in state]


def _record(rung: int, share: float, trial: Trial, best: tuple[str, float] | None, reason: str) -> dict[str, Any]:
    """A trial as trials.json has it."""
    score = {"score": None} if best is None else {"score": {"name": best[0], "value": best[1]}}
    failed = {"reason": reason} if reason else {}
    return {"rung": rung, "budget": share, "trial": trial.number, "settings": trial.chosen, **score, **failed}
