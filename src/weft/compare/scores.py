"""Which scores a task has, which of them decides, and which says most of a single item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from weft.config import no_such
from weft.errors import UsageError
from weft.metrics import answers, labels, language, masked, spans, translation
from weft.metrics.better import BETTER
from weft.metrics.items import Array, Function, Items, Score

LOSSES = {name: function for name, (unit, function) in language.SCORES.items() if unit == "tokens"}
FUNCTIONS: Mapping[str, Mapping[str, Function]] = {
    "lm": {name: function for name, (_, function) in language.SCORES.items()},
    "masked-lm": masked.SCORES,
    "classify": labels.SCORES,
    "tag": {name: function for name, (_, function) in spans.SCORES.items()},
    "translate": {**translation.SCORES, **LOSSES},
    "span": answers.SCORES,
}
# the first that was measured decides
DECIDES: Mapping[str, tuple[str, ...]] = {
    "lm": ("nats_per_token",),
    "masked-lm": ("pseudo_nats_per_token",),
    "classify": ("accuracy", "exact_match"),
    "tag": ("span_f1", "token_accuracy"),
    "translate": ("chrf",),  # of lines shorter than four tokens BLEU says nothing, and bins of such lines there will be
    "span": ("answer_f1",),
}
# scores that say nothing, or the wrong thing, of one item alone: a perfect line of three words has a BLEU of 0
OF_ONE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bleu", "bleu_lc"), ("chrf",)),
    **dict.fromkeys(("span_f1", "span_precision", "span_recall", "oov_accuracy"), ("token_accuracy",)),
    **dict.fromkeys(("macro_f1", "micro_f1"), ("accuracy", "exact_match")),
    "calibration_error": ("log_loss",),
    "has_answer_f1": ("answer_f1",),
    "no_answer_accuracy": ("exact_match",),
}
PER_TOKEN = (*LOSSES, *masked.SCORES)  # tokens of two tokenizers are not of one size
_TOKENIZER = re.compile(r"\|tokenizer:(\w+)")


def functions(task: str, scores: Sequence[Score]) -> dict[str, Function]:
    """How each of the scores of a task follows from sums; exact match instead of accuracy tells of several labels."""
    names = [score.name for score in scores]
    several = task == "classify" and "exact_match" in names
    table = labels.SEVERAL_SCORES if several else FUNCTIONS[task]
    return {name: table[name] for name in names if name in table}


def _tokenizers(scores: Iterable[Score]) -> frozenset[str]:
    return frozenset(found for score in scores for found in _TOKENIZER.findall(score.signature))


def refuse_others(task: str, wanted: str | None) -> None:
    """Refuse a score that no run of the task has: before anything is trained or measured for it."""
    known = [*FUNCTIONS[task], *(name for name in labels.SEVERAL_SCORES if task == "classify")]
    if wanted is not None and wanted not in known:
        raise UsageError(f"--score: {no_such('score', wanted, dict.fromkeys(known))}")


def has_several_tokenizers(runs: Iterable[Sequence[Score]]) -> bool:
    return len(set(map(_tokenizers, runs))) > 1


def deciding(task: str, runs: Sequence[Sequence[Score]], wanted: str | None) -> str:
    """The score that runs are compared by: the one that is wanted, else the task's own."""
    common = [score.name for score in runs[0] if all(score.name in {other.name for other in run} for run in runs)]
    if wanted is not None:
        if wanted not in common:
            raise UsageError(f"--score: {no_such('score', wanted, common)}")
        candidates = [wanted]
    else:
        candidates = [*DECIDES[task], "bits_per_character", *common]
    several = has_several_tokenizers(runs)
    fair = [name for name in candidates if name in common and not (several and name in PER_TOKEN)]
    if not fair:
        raise UsageError(
            "compare: the runs have tokenizers of their own, and scores of a token do not compare; "
            "choose another --score, or train with one tokenizer (weft train --tokenizer-from RUN)"
        )
    return fair[0]


def better(name: str) -> Literal["higher", "lower"]:
    return BETTER[name]


def of_items(name: str, known: Mapping[str, Function]) -> str:
    """The score that single items are told apart by, where runs are compared by `name`."""
    return next((other for other in OF_ONE.get(name, ()) if other in known), name)


def each(items: Items, function: Function) -> Array:
    """(N,): the score of every item by itself."""
    with np.errstate(invalid="ignore", over="ignore"):
        return function(items.statistics)
