"""Which metrics each task has: suites, of which the data decides one; what decides a comparison; what validation measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.metrics.answers import ANSWERS, ANSWERS_OR_NONE
from weft.metrics.labels import MULTI_LABEL, SINGLE_LABEL
from weft.metrics.language import LANGUAGE, LANGUAGE_VALIDATION, LOSSES
from weft.metrics.masked import MASKED, PSEUDO
from weft.metrics.metric import Suite
from weft.metrics.spans import TAGS
from weft.metrics.translation import TRANSLATION, TRANSLATION_VALIDATION

SUITES: Mapping[str, Sequence[Suite]] = {
    "lm": (LANGUAGE,),
    "masked-lm": (PSEUDO,),
    "classify": (SINGLE_LABEL, MULTI_LABEL),
    "tag": (TAGS,),
    "translate": ((*TRANSLATION, *LOSSES),),
    "span": (ANSWERS, ANSWERS_OR_NONE),
}
VALIDATION: Mapping[str, Sequence[Suite]] = {
    **SUITES,
    "lm": (LANGUAGE_VALIDATION,),
    "masked-lm": (MASKED,),
    "translate": (TRANSLATION_VALIDATION,),
}
# the first that was measured decides, and compares
DECIDES: Mapping[str, tuple[str, ...]] = {
    "lm": ("nats_per_token", "bits_per_character"),
    "masked-lm": ("pseudo_nats_per_token",),
    "classify": ("accuracy", "exact_match"),
    "tag": ("span_f1", "token_accuracy"),
    "translate": ("chrf",),  # of lines shorter than four tokens BLEU says nothing, and bins of such lines there will be
    "span": ("answer_f1",),
}
