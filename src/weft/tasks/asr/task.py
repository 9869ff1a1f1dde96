"""The asr task: automatic speech recognition."""

from __future__ import annotations

from collections.abc import Mapping

from weft.decode.predict_options import DEFAULT_BEAM_SIZE
from weft.decode.prediction import Prediction
from weft.metrics.speech import SPEECH, SPEECH_VALIDATION
from weft.tasks.asr.compare import COMPARE
from weft.tasks.asr.data import SpeechDataConfig
from weft.tasks.asr.lines import RecordingLines
from weft.tasks.asr.predict import (
    SpeechEvaluation,
    SpeechOptions,
    encode_source,
    evaluate,
    is_recording,
    max_new_tokens,
    predict,
    predict_stream,
    predictor,
    score,
)
from weft.tasks.asr.presets import PRESETS
from weft.tasks.asr.recipe import recipes
from weft.tasks.data_spec import Data
from weft.tasks.media_data import check, columns, in_memory, limit_lengths, open_input, pairs, target_texts
from weft.tasks.spec import Decode, FileView, InputSpec, Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig


def file_views() -> Mapping[str, FileView]:
    from weft.tasks.asr.explain import VIEWS

    return VIEWS


DATA = Data(
    data_config=SpeechDataConfig,
    tokenizer_config=TokenizerConfig,
    vocabulary=TokenizerOnly(target_texts),
    columns=columns,
    check=check,
    open_input=open_input,
    in_memory=in_memory,
    input_output_pairs=pairs,
    limit_lengths=limit_lengths,
)
ASR: Task[object, Prediction] = Task(
    name="asr",
    model_noun="speech recognizer",
    description="writes what is said in recordings",
    loss_unit="token",
    progress_unit="recordings",
    output_noun="transcripts",
    example_input="recording.wav",
    data=DATA,
    presets=PRESETS,
    eval_suites=(SPEECH,),
    validation_suites=(SPEECH_VALIDATION,),
    ranking_metrics=("wer",),
    compare=COMPARE,
    recipes=recipes,
    supports_r_drop=True,
    predictor=predictor,
    evaluate=evaluate,
    predict=predict,
    is_single=is_recording,
    inputs=lambda config: InputSpec("audio", ("audio",)),
    predict_options=SpeechOptions,
    line_format=RecordingLines,
    evaluate_options=SpeechEvaluation,
    decode=Decode(
        score,
        prompt_ids=lambda run, value: [run.vocabulary.bos_id],
        max_new_tokens=max_new_tokens,
        eos_id=lambda run: run.vocabulary.eos_id,
        suppressed_tokens=lambda run: [run.vocabulary.unk_id, run.vocabulary.bos_id],
        beam_size=DEFAULT_BEAM_SIZE,
        length_penalty=0.0,
        encode_source=encode_source,
        predict_stream=predict_stream,
        scores_pairs=True,
    ),
    supports_ensembles=True,
    file_views=file_views,
)
TASK = ASR  # the name that the registry imports
