"""Metrics: a metric is a function of sums of statistics, with everything that callers ask about it.

A task has suites of metrics. Two suites may have metrics with one name and different formulas (macro F1 for single labels and
for multiple labels), so a name alone is ambiguous: it is looked up in the one suite that has all names of the scores beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from weft.metrics.items import Function, ItemStatistics, Score, Sums, interval, resample, total

Suite = Sequence["Metric"]
Style = Literal["percent", "loss", "perplexity"]


class Label(NamedTuple):
    """How people read a metric in tables."""

    text: str
    style: Style  # decimals: percents have one, losses three; perplexities have three significant digits
    unit: str = ""  # in full tables, after the text
    is_default: bool = True  # False: only if all metrics are wanted


LABELS: Mapping[str, Label] = {
    "loss": Label("loss", "loss", "nats/token"),
    "perplexity": Label("perplexity", "perplexity"),
    "bits_per_byte": Label("bits per byte", "loss"),
    "word_perplexity": Label("word perplexity", "perplexity"),
    "bits_per_char": Label("bits per character", "loss", is_default=False),
    "bits_per_token": Label("bits per token", "loss", is_default=False),
    "bits_per_word": Label("bits per word", "loss", is_default=False),
    "pseudo_perplexity": Label("pseudo-perplexity", "perplexity"),
    "pseudo_loss": Label("pseudo-loss", "loss", "nats/token"),
    "mlm_loss": Label("MLM loss", "loss"),
    "mlm_accuracy": Label("MLM accuracy", "percent"),
    "exact_match": Label("exact match", "percent"),
    "token_error_rate": Label("token error rate", "percent"),
    "character_error_rate": Label("character error rate", "percent", is_default=False),
    "bleu": Label("BLEU", "percent"),
    "bleu_lc": Label("BLEU (lowercase)", "percent", is_default=False),
    "chrf": Label("chrF", "percent"),
    "accuracy": Label("accuracy", "percent"),
    "f1_macro": Label("F1 (macro)", "percent"),
    "f1_micro": Label("F1 (micro)", "percent", is_default=False),
    "log_loss": Label("log loss", "loss"),
    "brier_score": Label("Brier score", "loss", is_default=False),
    "ece": Label("ECE", "percent"),
    "token_accuracy": Label("token accuracy", "percent"),
    "sentence_accuracy": Label("sentence accuracy", "percent", is_default=False),
    "oov_accuracy": Label("OOV accuracy", "percent"),
    "span_f1": Label("span F1", "percent"),
    "span_precision": Label("span precision", "percent", is_default=False),
    "span_recall": Label("span recall", "percent", is_default=False),
    "f1": Label("F1", "percent"),
    "f1_has_answer": Label("F1 (answerable)", "percent"),
    "accuracy_no_answer": Label("accuracy (unanswerable)", "percent"),
}


def label_of(name: str) -> Label:
    """The label of a metric; one that the table lacks, as a plugin's may, is called by its name."""
    return LABELS.get(name) or Label(name.replace("_", " "), "loss")


def format_score(value: float | None, style: Style) -> str:
    """A value as tables show it: '88.9', '0.235', '1.26'; '-' if there is none."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if style == "perplexity":
        digits = max(0, 3 - len(f"{abs(value):.0f}")) if abs(value) >= 1 else 3
        return f"{value:.{digits}f}"
    return f"{value:.1f}" if style == "percent" else f"{value:.3f}"


class Metric(NamedTuple):
    """One metric: its name, how its value follows from sums, and how values are read."""

    name: str
    of: Function
    better: Literal["higher", "lower"]
    interval: bool = True  # False: resampling says nothing about it
    single: str | None = None  # the metric that ranks single items, if this one is meaningless for one item alone
    needs: str | None = None  # a statistic that not every evaluation has
    per_token: bool = False  # tokens of two tokenizers differ in size: values are not comparable between them
    percent: bool = False  # from 0 to 100, or an error rate in percent
    finer: str | None = None  # the metric that orders items which this one scores the same

    @property
    def label(self) -> str:
        """How tables name it: 'exact match'."""
        return label_of(self.name).text

    @property
    def full_label(self) -> str:
        """The label with its unit: 'loss (nats/token)'."""
        label = label_of(self.name)
        return f"{label.text} ({label.unit})" if label.unit else label.text

    @property
    def is_default(self) -> bool:
        """Whether `weft evaluate` prints it without --all."""
        return label_of(self.name).is_default

    def format(self, value: float | None) -> str:
        return format_score(value, label_of(self.name).style)

    @property
    def upwards(self) -> bool:
        return self.better == "higher"

    @property
    def most(self) -> float:
        """The largest possible value: 100 for a percentage; an error rate may be larger."""
        return 100.0 if self.percent and self.upwards else math.inf

    def is_better(self, value: float, than: float) -> bool:
        return value > than if self.upwards else value < than


def _values(total: Sums, metrics: Iterable[Metric]) -> list[tuple[Metric, float]]:
    """The values of the metrics that the statistics allow; NaN, the score of an empty set, is skipped."""
    computed = [(metric, metric.of(total).item()) for metric in metrics if metric.needs is None or metric.needs in total]
    return [(metric, value) for metric, value in computed if not math.isnan(value)]


def values(items: ItemStatistics, metrics: Iterable[Metric]) -> dict[str, float]:
    """The value of every metric that the items allow, by name, in their order."""
    return {metric.name: value for metric, value in _values(total(items.statistics), metrics)}


def scores(
    items: ItemStatistics, metrics: Iterable[Metric], signature: str | Mapping[str, str], *, samples: int = 1000, seed: int = 0
) -> list[Score]:
    """The same with confidence intervals if there are several items; one signature for all, or one by metric name."""
    resampled = resample(items.statistics, samples=samples, seed=seed) if len(items.keys) > 1 else None
    results = []
    for metric, value in _values(total(items.statistics), metrics):
        bounds = interval(metric.of(resampled)) if resampled is not None and metric.interval else None
        low, high = bounds or (None, None)
        signed = signature if isinstance(signature, str) else signature[metric.name]
        results.append(Score(metric.name, value, low, high, signed))
    return results


def metric_names(suites: Iterable[Suite]) -> list[str]:
    """Every name that occurs in some suite, once."""
    return list(dict.fromkeys(metric.name for suite in suites for metric in suite))


def metrics_of(suites: Iterable[Suite], names: Iterable[str]) -> dict[str, Metric]:
    """The metrics of the given score names, from the first suite that has all of them; {} if no suite has."""
    wanted = list(names)
    for suite in suites:
        known = {metric.name: metric for metric in suite}
        if known.keys() >= set(wanted):
            return {name: known[name] for name in wanted}
    return {}
