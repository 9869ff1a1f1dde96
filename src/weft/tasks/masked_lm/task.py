"""Masked language models: predict tokens that are masked, from both sides."""

from __future__ import annotations

from weft.metrics.masked import MASKED, PSEUDO
from weft.tasks.masked_lm.compare import COMPARE
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
    suites=(PSEUDO,),
    validation=(MASKED,),
    decides=("pseudo_nats_per_token",),
    compare=COMPARE,
    reader=MaskedReader,
    evaluate=evaluate,
    predict=predict,
    predict_options=FillOptions,
    embed=embed,
)
TASK = MASKED_LM
