"""Language models: predict the next token of a text."""

from __future__ import annotations

from weft.tasks.lm.explain import EXPLAIN
from weft.tasks.lm.predict import LanguageOptions, LanguageReader, evaluate, generate, never, prompt, score, stream
from weft.tasks.lm.presets import PRESETS
from weft.tasks.material import Texts
from weft.tasks.spec import Decode, Task

BEAM, LENGTH = 3, 12  # of a search; texts need not end

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
    reader=LanguageReader,
    evaluate=evaluate,
    evaluate_options=LanguageOptions,
    decode=Decode(
        score,
        prompt,
        limit=lambda run, text: LENGTH,
        end=lambda run: run.reader.end,
        never=never,
        beam=BEAM,
        generate=generate,
        stream=stream,
    ),
    explain=EXPLAIN,
)
TASK = LM
