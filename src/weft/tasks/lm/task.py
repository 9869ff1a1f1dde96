"""Language models: predict the next token of a text."""

from __future__ import annotations

from weft.metrics.language import LANGUAGE, LANGUAGE_VALIDATION
from weft.tasks.lm.compare import COMPARE
from weft.tasks.lm.predict import LanguageOptions, LanguageReader, evaluate, generate, score, stream
from weft.tasks.lm.presets import PRESETS
from weft.tasks.material import Texts
from weft.tasks.spec import Decode, Task

LM: Task[str, None] = Task(
    name="lm",
    noun="language model",
    does="continues texts",
    item="token",
    counts="tokens",
    says="tokens",
    use="generate",
    data=Texts(),
    presets=PRESETS,
    suites=(LANGUAGE,),
    validation=(LANGUAGE_VALIDATION,),
    decides=("nats_per_token", "bits_per_character"),
    compare=COMPARE,
    reader=LanguageReader,
    evaluate=evaluate,
    evaluate_options=LanguageOptions,
    decode=Decode(score, generate, stream),
)
TASK = LM
