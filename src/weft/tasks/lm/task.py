"""The language modeling task: predict the next token of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.data.config import TextDataConfig
from weft.data.input_files import open_text
from weft.metrics.lm import LANGUAGE, LANGUAGE_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.lm.compare import COMPARE
from weft.tasks.lm.data import choose_bos, reads_windows
from weft.tasks.lm.predict import (
    LanguageOptions,
    LanguageReader,
    banned_tokens,
    evaluate,
    generate,
    prompt,
    score,
    stream,
    unknown,
)
from weft.tasks.lm.presets import PRESETS
from weft.tasks.lm.samples import SAMPLES
from weft.tasks.lm.weights import WEIGHTS
from weft.tasks.plain_text import check, columns, in_memory, lines, texts
from weft.tasks.spec import Decode, Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig

BEAM_SIZE, MAX_NEW_TOKENS = 3, 12  # of a shown search: running text has no end

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.lm.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    table=TextDataConfig,
    tokenizer=TokenizerConfig,
    vocabulary=TokenizerOnly(texts),
    columns=columns,
    check=check,
    open=open_text,
    lines=lines,
    in_memory=in_memory,
    finish=choose_bos,
    windows=reads_windows,
)
LM: Task[str, None] = Task(
    name="lm",
    noun="language model",
    does="continues texts",
    item="token",
    counts="tokens",
    says="tokens",
    use="generate",
    example_input='"A prompt"',
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    suites=(LANGUAGE,),
    validation=(LANGUAGE_VALIDATION,),
    decides=("loss", "bits_per_char"),
    compare=COMPARE,
    reader=LanguageReader,
    evaluate=evaluate,
    evaluate_options=LanguageOptions,
    unknown=unknown,
    decode=Decode(
        score,
        prompt,
        limit=lambda run, text: MAX_NEW_TOKENS,
        end=lambda run: run.reader.end,
        never=banned_tokens,
        beam=BEAM_SIZE,
        generate=generate,
        stream=stream,
        invalid_prompts=lambda run, prompts, options: run.reader.invalid_prompts(prompts, options),
        lines=lambda run: run.reader.lines,
    ),
    explain=find_explain,
)
TASK = LM
