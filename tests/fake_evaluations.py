"""Simulated evaluation results, for the tests of comparisons."""

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


def simulate_runs(rng: np.random.Generator, tokens: np.ndarray, difficulty: np.ndarray, **options: Any) -> list[ItemStatistics]:
    """Item statistics of one model trained with `seeds` seeds on lines of `tokens` (N,) tokens. The loss of a line is `mean`
    plus its `difficulty` (N,), which all models share, an effect of the model and an effect of the seed."""
    model_effect = rng.normal(0, options.get("own", 0.3), len(tokens))
    runs = []
    for _ in range(options.get("seeds", 1)):
        seed_effect = rng.normal(0, options.get("seed_sd", 0.0)) + rng.normal(0, options.get("inner", 0.2), len(tokens))
        rate = options.get("mean", 2.0) + difficulty + model_effect + seed_effect
        runs.append(ItemStatistics(np.arange(len(tokens)), {"nats": rate * tokens, "tokens": tokens}))
    return runs


def compute_scores(task: str, items: ItemStatistics) -> list[Score]:
    """All scores of the task that can be computed from the statistics."""
    sums, scores = total(items.statistics), []
    for metric in find_task(task).eval_suites[0]:
        try:
            scores.append(Score(metric.name, metric.compute(sums).item(), None, None, "weft:test|tokenizer:abc"))
        except KeyError:
            continue
    return scores


def lm_results(items: ItemStatistics, **fields: Any) -> RunResults:
    """Results of a language model on lines."""
    inputs = [f"line {key}" for key in items.keys]
    values = {
        "run": Path("runs/x"),
        "arch": "lstm",
        "seed": 0,
        "task": "lm",
        "scores": compute_scores("lm", items),
        "items": items,
    }
    values |= {"inputs": inputs, "references": [""] * len(inputs), "lengths": items.statistics["tokens"].astype(np.int64)}
    return RunResults(**{**values, "cost": COST, **fields})


def classification_results(predicted: list[int], gold: list[int], names: tuple[str, ...], **fields: Any) -> RunResults:
    """Results of a classifier that predicts these labels with a probability of 0.9."""
    log_probs = np.log(np.full((len(predicted), len(names)), 0.1 / max(1, len(names) - 1)))
    log_probs[np.arange(len(predicted)), predicted] = np.log(0.9)
    items = label_items(log_probs, np.array(gold), np.arange(len(predicted)))
    items = ItemStatistics(items.keys, items.statistics, [names[label] for label in predicted])
    references = [names[label] if label >= 0 else "new" for label in gold]
    values = {
        "run": Path("runs/x"),
        "arch": "lstm",
        "seed": 0,
        "task": "classification",
        "scores": compute_scores("classification", items),
    }
    values |= {"items": items, "inputs": [f"text {index}" for index in range(len(predicted))], "references": references}
    values |= {"lengths": np.arange(1, len(predicted) + 1), "cost": COST._replace(inference_unit="texts/s"), "labels": names}
    return RunResults(**{**values, **fields})
