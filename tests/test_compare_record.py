"""A task that declares only its metrics can be compared: results, table, breakdowns and page."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_evaluations import COST

from weft.comparison.minimal_pairs import check_task
from weft.comparison.results import RunResults, load, save
from weft.comparison.scores import check_metric
from weft.comparison.to_json import to_document
from weft.errors import UsageError
from weft.metrics.items import ItemStatistics, Score
from weft.metrics.metric import Metric
from weft.report.page import page
from weft.tasks import registry
from weft.tasks.compare_spec import Compare
from weft.tasks.registry import find_task

MEAN_ERROR = Metric("mean_error", lambda totals: totals["error"] / totals["items"], "lower")


@pytest.fixture
def numbers(monkeypatch):
    """A task that gives texts numbers, in the registry as long as a test lasts."""
    own = {"eval_suites": ((MEAN_ERROR,),), "validation_suites": (), "ranking_metrics": (), "compare": Compare()}
    made = replace(find_task("classification"), name="number", model_noun="counter", **own)
    monkeypatch.setitem(sys.modules, "counters.task", SimpleNamespace(TASK=made))
    entry = registry.TaskEntry("counters", "lstm", "give a text a number")
    monkeypatch.setattr(registry, "TASKS", {**registry.TASKS, "number": entry})
    find_task.cache_clear()
    yield made
    find_task.cache_clear()


def evidence(error: np.ndarray, **more) -> RunResults:
    items = ItemStatistics(
        np.arange(len(error)), {"error": error, "items": np.ones(len(error))}, [f"{value:.1f}" for value in error]
    )
    values = {"run": Path("runs/x"), "arch": "lstm", "seed": 0, "task": "number", "items": items, "cost": COST, "item": "text"}
    values["scores"] = [Score("mean_error", float(error.mean()), None, None, "weft:test")]
    values |= {"inputs": [f"text {at}" for at in range(len(error))], "references": ["0"] * len(error)}
    return RunResults(**{**values, "lengths": np.arange(1, len(error) + 1), **more})


def test_metrics_and_lengths_are_enough(numbers, tmp_path):
    rng = np.random.default_rng(0)
    better, worse = rng.uniform(0, 1, 200), rng.uniform(1, 2, 200)
    groups = {"worse": [evidence(worse)], "better": [evidence(better)]}
    found = to_document(groups)
    assert found["metric"] == {"name": "mean_error", "better": "lower"}
    assert [(row["name"], row["score"]["value"]) for row in found["rows"]] == [
        ("better", pytest.approx(better.mean())),
        ("worse", pytest.approx(worse.mean())),
    ]
    assert found["rows"][1]["p"] < 0.01
    (lengths,) = found["breakdowns"]
    assert lengths["by"] == "input length in tokens" and sum(lengths["counts"]) == 200
    first = lengths["counts"][0]
    assert lengths["values"]["worse"][0] == pytest.approx(worse[:first].mean())
    assert (found["confusions"], found["context"]) == (None, None)
    shown = page(found)
    assert '<p class="about">2 counters (200 texts)</p>' in shown and "mean error" in shown
    kept = tmp_path / "kept"
    save(groups["better"][0], kept)
    assert load(kept).scores == groups["better"][0].scores


def test_missing_features_are_refused(numbers):
    with pytest.raises(UsageError) as caught:
        check_metric("number", "mean_eror")
    assert str(caught.value) == "metric: unknown metric 'mean_eror'; did you mean 'mean_error'?"
    with pytest.raises(UsageError) as caught:
        check_task("number")
    assert str(caught.value) == ("minimal_pairs: not available for task 'number'; it requires task 'lm' or 'masked-lm'")
