"""The metric registry: direction, format and formula of every metric, and the monitored metrics of each task."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from weft.log import Log
from weft.metrics.classification import MULTI_LABEL, SINGLE_LABEL, label_items, multilabel_items
from weft.metrics.items import ItemStatistics
from weft.metrics.metric import Metric, metric_names, metrics_of, scores, values
from weft.metrics.minimal_pairs import PAIRS
from weft.runs.status import read_run_status
from weft.tasks.registry import TASKS, find_task

LOWER = {
    *("loss", "bits_per_token", "bits_per_char", "bits_per_byte", "bits_per_word"),
    *("perplexity", "word_perplexity", "pseudo_loss", "pseudo_perplexity", "mlm_loss"),
    *("token_error_rate", "character_error_rate", "log_loss", "brier_score", "ece"),
    *("wer", "cer", "substitutions", "deletions", "insertions", "rank_error"),
    *("repetition", "length", "kl"),
}
HIGHER = {
    *("mlm_accuracy", "exact_match", "bleu", "bleu_lc", "chrf", "accuracy", "f1_macro", "f1_micro"),
    *("length_accuracy", "reward", "judge", "objective", "entropy"),
    *("token_accuracy", "sentence_accuracy", "oov_accuracy", "span_f1", "span_precision", "span_recall"),
    *("f1", "f1_has_answer", "accuracy_no_answer", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "word_f1", "cider", "cider_d"),
    *("spearman", "analogy_accuracy", "coverage"),
}
# better if higher, but no percentages
UNLIMITED = {"cider", "cider_d", "spearman", "reward", "judge", "objective", "entropy"}
SINGLE = {  # by task: the metric that compares single items
    "seq2seq": {"bleu": "chrf", "bleu_lc": "chrf"},
    "tagging": dict.fromkeys(("span_f1", "span_precision", "span_recall", "oov_accuracy"), "token_accuracy"),
    "qa": {"f1_has_answer": "f1", "accuracy_no_answer": "exact_match"},
    "word-vectors": {"spearman": "rank_error"},
    "captioning": {f"bleu_{n}": "cider_d" for n in range(1, 5)},
    "lm": {},
    "masked-lm": {},
    "denoising": {},
}
EVERY = [(name, suite) for name in TASKS for suite in (*find_task(name).eval_suites, *find_task(name).validation_suites)]


def test_metric_directions():
    every = [metric for _, suite in EVERY for metric in suite]
    assert {metric.name for metric in every if metric.better == "lower"} == LOWER
    assert {metric.name for metric in every if metric.better == "higher"} == HIGHER
    assert PAIRS[0].better == "higher"
    for metric in every:
        assert metric.is_better(2.0, 1.0) == (metric.name in HIGHER) and not metric.is_better(1.0, 1.0)


def test_percent_metrics_and_maximum_values():
    every = [metric for _, suite in EVERY for metric in suite]
    errors = {"token_error_rate", "wer", "cer", "substitutions", "deletions", "insertions", "repetition"}
    assert {metric.name for metric in every if metric.percent} == (HIGHER - UNLIMITED) | errors
    assert {metric.name for metric in every if metric.max_value == 100.0} == HIGHER - UNLIMITED
    assert {metric.max_value for metric in every if metric.name not in HIGHER - UNLIMITED} == {math.inf}


def test_tokenizer_independent_metrics_and_metrics_with_intervals():
    every = [metric for _, suite in EVERY for metric in suite]
    per_token = {"loss", "bits_per_token", "perplexity", "pseudo_loss", "pseudo_perplexity", "token_accuracy"}
    assert {metric.name for metric in every if metric.per_token} == per_token
    assert {metric.name for metric in every if not metric.interval} == {"ece"}


def test_metrics_for_comparing_single_items():
    for task, expected in SINGLE.items():
        actual = {
            metric.name: metric.item_metric for suite in find_task(task).eval_suites for metric in suite if metric.item_metric
        }
        assert actual == expected, task
    for correct, suite in (("accuracy", SINGLE_LABEL), ("exact_match", MULTI_LABEL)):
        actual = {metric.name: metric.item_metric for metric in suite if metric.item_metric}
        assert actual == {"f1_macro": correct, "f1_micro": correct, "ece": "log_loss"}
        assert {metric.name: metric.tie_breaker for metric in suite if metric.tie_breaker} == {correct: "log_loss"}


@pytest.mark.parametrize(("task", "suite"), EVERY, ids=lambda one: one if isinstance(one, str) else "")
def test_suites_are_complete(task, suite):
    names = [metric.name for metric in suite]
    assert len(set(names)) == len(names) > 0
    assert {other for metric in suite for other in (metric.item_metric, metric.tie_breaker) if other} <= set(names)


def test_every_task_has_a_monitored_metric_and_validation_metrics():
    for name in TASKS:
        task = find_task(name)
        assert (
            task.ranking_metrics and set(task.ranking_metrics) <= set(metric_names(task.eval_suites)) and task.validation_suites
        )
    assert [metric.name for metric in find_task("seq2seq").validation_suites[0]] == [
        "loss",
        "bleu",
        "chrf",
        "exact_match",
        "token_error_rate",
    ]
    assert metric_names(find_task("masked-lm").validation_suites) == ["mlm_loss", "mlm_accuracy"]
    assert metric_names(find_task("lm").validation_suites) == ["loss"]


# ---- two formulas of one name


def test_a_metric_name_is_resolved_by_its_suite():
    """A label that is neither in the data nor predicted is ignored by macro F1 in single-label and counts as 0 in multilabel."""
    single = metrics_of(find_task("classification").eval_suites, ["accuracy", "f1_macro"])["f1_macro"]
    multi = metrics_of(find_task("classification").eval_suites, ["exact_match", "f1_macro"])["f1_macro"]
    gold, predicted = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    log_probs = np.log(np.where(np.arange(3) == predicted[:, None], 0.8, 0.1))
    actual = values(label_items(log_probs, gold, np.arange(4)), [single])["f1_macro"]
    assert actual == pytest.approx(100 * f1_score(gold, predicted, average="macro"))
    expected = np.arange(3) == gold[:, None]
    actual = values(multilabel_items(np.exp(log_probs), expected, np.zeros(4), np.arange(4)), [multi])["f1_macro"]
    reference = f1_score(expected, np.arange(3) == predicted[:, None], average="macro", zero_division=0.0)
    assert actual == pytest.approx(100 * reference)


def test_names_that_are_in_no_common_suite_are_not_resolved():
    assert metrics_of(find_task("classification").eval_suites, ["accuracy", "exact_match"]) == {}
    assert metrics_of(find_task("lm").eval_suites, ["bleu"]) == {} and metrics_of((), ["bleu"]) == {}
    assert list(metrics_of(find_task("tagging").eval_suites, ["span_f1", "token_accuracy"])) == ["span_f1", "token_accuracy"]


# ---- values and scores


def mean(name: str) -> Metric:
    return Metric(name, lambda totals: totals[name] / totals["count"], "lower", requires=name)


def test_metrics_without_counts_are_omitted():
    items = ItemStatistics(np.arange(3), {"count": np.ones(3), "a": np.array([1.0, 2.0, 6.0]), "none": np.full(3, np.nan)})
    metrics = [mean("a"), mean("b"), mean("none"), mean("a")._replace(name="again", interval=False)]
    assert values(items, metrics) == {"a": 3.0, "again": 3.0}
    first, again = scores(items, metrics, {"a": "one", "again": "two"}, samples=50, seed=1)
    assert (first.name, first.value, first.signature) == ("a", 3.0, "one")
    assert first.low is not None and first.low <= 3.0 <= first.high
    assert again == ("again", 3.0, None, None, "two")
    alone = ItemStatistics(np.arange(1), {"count": np.ones(1), "a": np.ones(1)})
    assert scores(alone, metrics[:1], "all") == [("a", 1.0, None, None, "all")]


# ---- directions from files


def counted(path: Path, task: str, records: list[dict[str, float]], monitor: str | None = None) -> Path:
    """A run without training steps, as far as its status needs."""
    path.mkdir()
    train = "" if monitor is None else f"[train]\nmonitor = {json.dumps(monitor)}\n"
    (path / "resolved.toml").write_text(f"task = {json.dumps(task)}\n{train}")
    (path / "model.safetensors").write_bytes(b"")
    with Log(path / "metrics.jsonl") as log:
        for step, record in enumerate(records, 1):
            log.write({"step": step, **{f"valid_{name}": value for name, value in record.items()}})
    return path


def test_run_status_uses_the_metrics_of_the_task(tmp_path):
    rows = [
        {"exact_match": 10.0, "log_loss": 2.0},
        {"exact_match": 30.0, "log_loss": 3.0},
        {"exact_match": 20.0, "log_loss": 1.0},
    ]
    actual = read_run_status(counted(tmp_path / "first", "classification", rows))
    assert actual.best is not None and actual.best_step == 2
    assert actual.best[0] is MULTI_LABEL[0] and actual.best[1] == 30.0
    actual = read_run_status(counted(tmp_path / "named", "classification", rows, "log_loss"))
    assert (actual.best[0].name, actual.best[1], actual.best_step) == ("log_loss", 1.0, 3)
    assert actual.to_json()["best"] == {"name": "log_loss", "value": 1.0, "step": 3}
    other = read_run_status(
        counted(tmp_path / "other", "classification", rows, "bleu")
    )  # not a metric of this task: the first is used
    assert (other.best[0].name, other.best_step) == ("exact_match", 2)


def test_run_status_with_unknown_scores_has_no_best(tmp_path):
    assert read_run_status(counted(tmp_path / "a", "lm", [{"bleu": 1.0}])).best is None
    assert read_run_status(counted(tmp_path / "b", "dance", [{"bleu": 1.0}])).best is None
