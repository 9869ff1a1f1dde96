"""Encoder-decoders: write a text for a text."""

from __future__ import annotations

from weft.decode.predict import Prediction
from weft.metrics.language import LOSSES
from weft.metrics.translation import TRANSLATION, TRANSLATION_VALIDATION
from weft.tasks.material import PairsOfTexts
from weft.tasks.seq2seq.compare import COMPARE
from weft.tasks.seq2seq.predict import Seq2SeqEvaluation, Seq2SeqOptions, Translator, evaluate, predict, score
from weft.tasks.seq2seq.presets import PRESETS
from weft.tasks.spec import Decode, Task

SEQ2SEQ: Task[str, list[Prediction]] = Task(
    name="translate",
    noun="run of task 'translate'",
    does="writes outputs for sources",
    item="token",
    counts="lines",
    says="outputs",
    use="predict",
    data=PairsOfTexts(),
    presets=PRESETS,
    suites=((*TRANSLATION, *LOSSES),),
    validation=(TRANSLATION_VALIDATION,),
    decides=("chrf",),  # of lines shorter than four tokens BLEU says nothing, and bins of such lines there will be
    compare=COMPARE,
    reader=Translator,
    evaluate=evaluate,
    predict=predict,
    predict_options=Seq2SeqOptions,
    evaluate_options=Seq2SeqEvaluation,
    decode=Decode(score),
    joins=True,
    sizes=lambda run: {"vocabulary": {"source": run.vocabulary.source.size, "target": run.vocabulary.target.size}},
)
TASK = SEQ2SEQ
