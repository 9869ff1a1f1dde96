"""The captioning task: texts for images and video."""

from __future__ import annotations

from collections.abc import Mapping

from weft.decode.predict_options import DEFAULT_BEAM_SIZE
from weft.decode.prediction import Prediction
from weft.metrics.captioning import CAPTIONING, CAPTIONING_VALIDATION
from weft.tasks.captioning.compare import COMPARE
from weft.tasks.captioning.data import CaptionDataConfig
from weft.tasks.captioning.lines import CaptionLines
from weft.tasks.captioning.predict import (
    CaptionEvaluation,
    CaptionOptions,
    encode_source,
    evaluate,
    is_file,
    max_new_tokens,
    predict,
    predictor,
    score,
)
from weft.tasks.captioning.presets import PRESETS
from weft.tasks.captioning.recipe import recipes
from weft.tasks.data_spec import Data
from weft.tasks.media_data import check, columns, in_memory, limit_lengths, open_input, pairs, target_texts
from weft.tasks.spec import Decode, FileView, InputSpec, Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig


def file_views() -> Mapping[str, FileView]:
    from weft.tasks.captioning.explain import VIEWS

    return VIEWS


DATA = Data(
    data_config=CaptionDataConfig,
    tokenizer_config=TokenizerConfig,
    vocabulary=TokenizerOnly(target_texts),
    columns=columns,
    check=check,
    open_input=open_input,
    in_memory=in_memory,
    input_output_pairs=pairs,
    limit_lengths=limit_lengths,
)
CAPTIONING_TASK: Task[object, Prediction] = Task(
    name="captioning",
    model_noun="captioner",
    description="describes images and video",
    loss_unit="token",
    progress_unit="files",
    output_noun="captions",
    example_input="photo.jpg",
    data=DATA,
    presets=PRESETS,
    eval_suites=(CAPTIONING,),
    validation_suites=(CAPTIONING_VALIDATION,),
    ranking_metrics=("cider_d",),
    compare=COMPARE,
    predictor=predictor,
    evaluate=evaluate,
    predict=predict,
    is_single=is_file,
    inputs=lambda config: InputSpec(config.data.media, (config.data.media,)),
    predict_options=CaptionOptions,
    line_format=CaptionLines,
    evaluate_options=CaptionEvaluation,
    decode=Decode(
        score,
        prompt_ids=lambda run, value: [run.vocabulary.bos_id],
        max_new_tokens=max_new_tokens,
        eos_id=lambda run: run.vocabulary.eos_id,
        suppressed_tokens=lambda run: [run.vocabulary.unk_id, run.vocabulary.bos_id],
        beam_size=DEFAULT_BEAM_SIZE,
        length_penalty=0.0,
        encode_source=encode_source,
        scores_pairs=True,
    ),
    recipes=recipes,
    supports_r_drop=True,
    supports_ensembles=True,
    file_views=file_views,
)
TASK = CAPTIONING_TASK  # the name that the registry imports
