"""Masked language models: predict tokens that are masked, from both sides."""

from __future__ import annotations

from weft.tasks.masked_lm.explain import EXPLAIN
from weft.tasks.masked_lm.predict import Filled, FillOptions, MaskedReader, embed, evaluate, predict
from weft.tasks.masked_lm.presets import PRESETS
from weft.tasks.material import Texts
from weft.tasks.spec import Task

MASKED_LM: Task[str, Filled] = Task(
    name="masked-lm",
    noun="masked language model",
    does="fills gaps",
    item="token",
    counts="tokens",
    says="tokens",
    use="fill",
    data=Texts(),
    presets=PRESETS,
    reader=MaskedReader,
    evaluate=evaluate,
    predict=predict,
    predict_options=FillOptions,
    embed=embed,
    explain=EXPLAIN,
)
TASK = MASKED_LM
