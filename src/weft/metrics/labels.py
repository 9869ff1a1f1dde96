"""Display names and number formats of metrics. No heavy imports: the command line loads this module at startup."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

Style = Literal["percent", "loss", "perplexity"]


class Label(NamedTuple):
    """How tables show a metric."""

    text: str
    style: Style  # percentages have one decimal, losses three; perplexities have three significant digits
    unit: str = ""  # part of the full label
    is_default: bool = True  # False: shown only with --all


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
    "wer": Label("WER", "percent"),
    "cer": Label("CER", "percent"),
    "substitutions": Label("substitutions", "percent"),
    "deletions": Label("deletions", "percent"),
    "insertions": Label("insertions", "percent"),
    "exact_match": Label("exact match", "percent"),
    "token_error_rate": Label("token error rate", "percent"),
    "character_error_rate": Label("character error rate", "percent", is_default=False),
    "bleu": Label("BLEU", "percent"),
    "bleu_lc": Label("BLEU (lowercase)", "percent", is_default=False),
    "chrf": Label("chrF", "percent"),
    "cider_d": Label("CIDEr-D", "loss"),
    "cider": Label("CIDEr", "loss", is_default=False),
    "bleu_4": Label("BLEU-4", "percent"),
    "bleu_3": Label("BLEU-3", "percent", is_default=False),
    "bleu_2": Label("BLEU-2", "percent", is_default=False),
    "bleu_1": Label("BLEU-1", "percent", is_default=False),
    "word_f1": Label("word F1", "percent"),
    "accuracy": Label("accuracy", "percent"),
    "kl": Label("KL divergence", "loss", unit="nats"),
    "entropy": Label("entropy", "loss", unit="nats/token"),
    "length": Label("length", "loss", unit="tokens"),
    "repetition": Label("repetition", "percent"),
    "length_accuracy": Label("accuracy of length alone", "percent"),
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
    "spearman": Label("Spearman correlation", "loss"),
    "analogy_accuracy": Label("analogies", "percent"),
    "precision_at_1": Label("P@1", "percent"),
    "precision_at_5": Label("P@5", "percent"),
    "precision_at_10": Label("P@10", "percent"),
    "mrr": Label("MRR", "loss"),
    "map": Label("MAP", "loss"),
    "coverage": Label("coverage", "percent"),
    "rank_error": Label("rank error", "loss", is_default=False),
}


def label_of(name: str) -> Label:
    """The label of a metric; metrics that are not in the table, such as those of plugins, use their name."""
    return LABELS.get(name) or Label(name.replace("_", " "), "loss")


def format_score(value: float | None, style: Style) -> str:
    """Format a value for tables: '88.9', '0.235', '1.26'; '-' for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if style == "perplexity":
        magnitude = math.floor(math.log10(abs(value))) if value else 0
        return f"{value:.{max(0, 2 - magnitude)}f}"
    return f"{value:.1f}" if style == "percent" else f"{value:.3f}"
