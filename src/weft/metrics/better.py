"""Which of two values of a score is the better one."""

from __future__ import annotations

from typing import Literal

from weft.metrics import language, masked

BETTER: dict[str, Literal["higher", "lower"]] = {
    **dict.fromkeys(language.SCORES, "lower"),
    "exact_match": "higher",
    "edit_rate": "lower",
    "character_error_rate": "lower",
    "bleu": "higher",
    "bleu_lc": "higher",
    "chrf": "higher",
    **dict.fromkeys(masked.SCORES, "lower"),
    "masked_nats": "lower",
    "masked_accuracy": "higher",
    **dict.fromkeys(("accuracy", "macro_f1", "micro_f1"), "higher"),
    **dict.fromkeys(("log_loss", "brier", "calibration_error"), "lower"),
    **dict.fromkeys(("token_accuracy", "sentence_accuracy", "oov_accuracy"), "higher"),
    **dict.fromkeys(("span_f1", "span_precision", "span_recall"), "higher"),
    **dict.fromkeys(("answer_f1", "has_answer_f1", "no_answer_accuracy"), "higher"),
}


def is_better(name: str, value: float, than: float) -> bool:
    return value > than if BETTER[name] == "higher" else value < than
