"""The language modeling task: predict the next token of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.data.config import TextDataConfig
from weft.data.input_files import open_text
from weft.metrics.lm import LANGUAGE, LANGUAGE_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.lm.compare import COMPARE
from weft.tasks.lm.data import choose_bos, reads_windows
from weft.tasks.lm.mixture import fit_weights
from weft.tasks.lm.predict import (
    LanguageModelPredictor,
    LanguageOptions,
    evaluate,
    frame_prompts,
    generate,
    prompt_ids,
    score,
    stream,
    suppressed_tokens,
    unknown_tokens,
)
from weft.tasks.lm.presets import PRESETS
from weft.tasks.lm.recipe import recipes
from weft.tasks.lm.samples import SAMPLES
from weft.tasks.lm.weights import WEIGHTS
from weft.tasks.plain_text import check, columns, in_memory, lines, texts
from weft.tasks.spec import Decode, Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig

if TYPE_CHECKING:
    from weft.decode.cache_options import Cache, CacheConfig
    from weft.runs.run import Run
    from weft.tasks.spec import Explain

BEAM_SIZE, MAX_NEW_TOKENS = 3, 12  # of the beam-search view of `weft explain`: running text has no EOS token


def find_explain() -> Explain:
    from weft.tasks.lm.explain import EXPLAIN

    return EXPLAIN


def fit_cache(run: Run[str, None], config: CacheConfig) -> Cache:
    from weft.tasks.lm import cache

    return cache.fit_cache(run, config)


DATA = Data(
    data_config=TextDataConfig,
    tokenizer_config=TokenizerConfig,
    vocabulary=TokenizerOnly(texts),
    columns=columns,
    check=check,
    open_input=open_text,
    input_output_pairs=lines,
    in_memory=in_memory,
    on_prepared=choose_bos,
    uses_windows=reads_windows,
)
LM: Task[str, None] = Task(
    name="lm",
    model_noun="language model",
    description="continues texts",
    loss_unit="token",
    progress_unit="tokens",
    output_noun="tokens",
    command="generate",
    example_input='"A prompt"',
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    eval_suites=(LANGUAGE,),
    validation_suites=(LANGUAGE_VALIDATION,),
    ranking_metrics=("loss", "bits_per_char"),
    compare=COMPARE,
    recipes=recipes,
    predictor=LanguageModelPredictor,
    evaluate=evaluate,
    evaluate_options=LanguageOptions,
    unknown_tokens=unknown_tokens,
    decode=Decode(
        score,
        prompt_ids,
        max_new_tokens=lambda run, text: MAX_NEW_TOKENS,
        eos_id=lambda run: run.predictor.eos_id,
        suppressed_tokens=suppressed_tokens,
        beam_size=BEAM_SIZE,
        generate=generate,
        stream=stream,
        frame_prompts=frame_prompts,
        invalid_prompts=lambda run, prompts, options: run.predictor.invalid_prompts(prompts, options),
        is_single_line=lambda run: run.predictor.reads_lines,
    ),
    explain=find_explain,
    supports_ensembles=True,
    supports_distillation=True,
    supports_r_drop=True,
    fit_weights=fit_weights,
    fit_cache=fit_cache,
)
TASK = LM  # the name that the registry imports
