"""The denoising task: restore a corrupted text, to pre-train encoder-decoders (BART, T5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.decode.predict_options import DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY
from weft.decode.prediction import Prediction
from weft.metrics.denoising import DENOISING, DENOISING_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.denoising.compare import COMPARE
from weft.tasks.denoising.data import (
    DenoisingDataConfig,
    check,
    columns,
    in_memory,
    limit_lengths,
    lines,
    open_texts,
    texts,
)
from weft.tasks.denoising.examples import training_examples
from weft.tasks.denoising.lines import RestoredLines
from weft.tasks.denoising.predict import DenoisingEvaluation, DenoisingOptions, evaluate, predict, predictor, prepare_search
from weft.tasks.denoising.presets import PRESETS
from weft.tasks.denoising.recipe import recipes
from weft.tasks.denoising.samples import SAMPLES
from weft.tasks.denoising.weights import WEIGHTS
from weft.tasks.encoder_decoder.predict import encode_source, max_new_tokens, score, unknown_tokens
from weft.tasks.spec import Decode, Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from dataclasses import replace

    from weft.tasks.encoder_decoder.explain import EXPLAIN

    # texts of files have no noise: a line with masks is an input, and long texts are split
    return replace(EXPLAIN, reads_records=False, max_tokens=lambda run: int(run.config.data.max_length) - 1)


DATA = Data(
    data_config=DenoisingDataConfig,
    tokenizer_config=TokenizerConfig,
    vocabulary=TokenizerOnly(texts),
    columns=columns,
    check=check,
    open_input=open_texts,
    input_output_pairs=lines,
    limit_lengths=limit_lengths,
    training_examples=training_examples,
    in_memory=in_memory,
)
DENOISING_TASK: Task[str, Prediction] = Task(
    name="denoising",
    model_noun="denoising model",
    example_input='"A <mask> text"',
    description="restores corrupted texts",
    loss_unit="token",
    progress_unit="texts",
    output_noun="texts",
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    eval_suites=(DENOISING,),
    validation_suites=(DENOISING_VALIDATION,),
    ranking_metrics=("chrf",),  # does not depend on the tokenizer
    compare=COMPARE,
    recipes=recipes,
    predictor=predictor,
    evaluate=evaluate,
    predict=predict,
    predict_options=DenoisingOptions,
    line_format=RestoredLines,
    unknown_tokens=unknown_tokens,
    evaluate_options=DenoisingEvaluation,
    decode=Decode(
        score,
        prompt_ids=lambda run, line: run.vocabulary.start_tokens.target,
        max_new_tokens=max_new_tokens,
        eos_id=lambda run: run.vocabulary.eos_id,
        suppressed_tokens=lambda run: [run.vocabulary.unk_id, run.vocabulary.bos_id, *run.predictor.suppressed_tokens],
        beam_size=DEFAULT_BEAM_SIZE,
        length_penalty=DEFAULT_LENGTH_PENALTY,
        encode_source=encode_source,
        prepare_search=prepare_search,
        scores_pairs=True,
        target_tokenizer=lambda run: run.predictor.tokenizer.target,
    ),
    explain=find_explain,
    supports_ensembles=True,
)
TASK = DENOISING_TASK  # the name that the registry imports
