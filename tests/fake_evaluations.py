"""Evidence of runs that never were, which the tests of comparisons share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.comparison.costs import Cost
from weft.comparison.results import RunResults
from weft.metrics.classification import label_items
from weft.metrics.items import ItemStatistics, Score, total
from weft.tasks.registry import find_task

COST = Cost(1000, 12.5, 900.0, 2_000_000, 4096, 50.0, "tokens/s scored")


def system(rng: np.random.Generator, tokens: np.ndarray, difficulty: np.ndarray, **how: Any) -> list[ItemStatistics]:
    """A kind with `seeds` runs on lines of tokens (N,): what lines add is `difficulty` (N,) for every kind, more for this one,
    and more for each of its seeds."""
    own = rng.normal(0, how.get("own", 0.3), len(tokens))
    found = []
    for _ in range(how.get("seeds", 1)):
        luck = rng.normal(0, how.get("seed_sd", 0.0)) + rng.normal(0, how.get("inner", 0.2), len(tokens))
        rate = how.get("mean", 2.0) + difficulty + own + luck
        found.append(ItemStatistics(np.arange(len(tokens)), {"nats": rate * tokens, "tokens": tokens}))
    return found


def measured(task: str, items: ItemStatistics) -> list[Score]:
    """Every score of the task that the statistics allow."""
    sums, found = total(items.statistics), []
    for metric in find_task(task).eval_suites[0]:
        try:
            found.append(Score(metric.name, metric.compute(sums).item(), None, None, "weft:test|tokenizer:abc"))
        except KeyError:
            continue
    return found


def language(items: ItemStatistics, **more: Any) -> RunResults:
    """A language model on lines."""
    inputs = [f"line {key}" for key in items.keys]
    values = {"run": Path("runs/x"), "arch": "lstm", "seed": 0, "task": "lm", "scores": measured("lm", items), "items": items}
    values |= {"inputs": inputs, "references": [""] * len(inputs), "lengths": items.statistics["tokens"].astype(np.int64)}
    return RunResults(**{**values, "cost": COST, **more})


def labelled(said: list[int], meant: list[int], names: tuple[str, ...], **more: Any) -> RunResults:
    """A classifier that says this, with a probability of 0.9."""
    log_probs = np.log(np.full((len(said), len(names)), 0.1 / max(1, len(names) - 1)))
    log_probs[np.arange(len(said)), said] = np.log(0.9)
    items = label_items(log_probs, np.array(meant), np.arange(len(said)))
    items = ItemStatistics(items.keys, items.statistics, [names[at] for at in said])
    references = [names[at] if at >= 0 else "new" for at in meant]
    values = {
        "run": Path("runs/x"),
        "arch": "lstm",
        "seed": 0,
        "task": "classification",
        "scores": measured("classification", items),
    }
    values |= {"items": items, "inputs": [f"text {at}" for at in range(len(said))], "references": references}
    values |= {"lengths": np.arange(1, len(said) + 1), "cost": COST._replace(inference_unit="texts/s"), "labels": names}
    return RunResults(**{**values, **more})
