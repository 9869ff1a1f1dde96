"""Tagging: a tag for each word of a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.metrics.tagging import TAGS
from weft.tasks.data_spec import Data
from weft.tasks.spec import InputSpec, LabelOptions, Task
from weft.tasks.tagging.compare import COMPARE
from weft.tasks.tagging.data import (
    TaggedDataConfig,
    TaggedVocabulary,
    WhitespaceTokenizerConfig,
    check,
    columns,
    fit,
    has_char_encoder,
    lines,
)
from weft.tasks.tagging.lines import TagLines
from weft.tasks.tagging.memory import in_memory
from weft.tasks.tagging.predict import Sentence, TaggerPredictor, TagPrediction, embed, evaluate, predict
from weft.tasks.tagging.presets import PRESETS
from weft.tasks.tagging.recipe import recipes
from weft.tasks.tagging.records import open_tagged
from weft.tasks.tagging.weights import WEIGHTS

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.tagging.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    data_config=TaggedDataConfig,
    tokenizer_config=WhitespaceTokenizerConfig,
    vocabulary=TaggedVocabulary(),
    columns=columns,
    check=check,
    open_input=open_tagged,
    input_output_pairs=lines,
    limit_lengths=fit,
    in_memory=in_memory,
    has_extended_vocabulary=has_char_encoder,
)
TAGGING: Task[Sentence, TagPrediction] = Task(
    name="tagging",
    model_noun="tagger",
    description="gives words tags",
    loss_unit="word",
    progress_unit="sentences",
    output_noun="tags",
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    eval_suites=(TAGS,),
    validation_suites=(TAGS,),
    ranking_metrics=("span_f1", "token_accuracy"),
    compare=COMPARE,
    recipes=recipes,
    predictor=TaggerPredictor,
    evaluate=evaluate,
    predict=predict,
    line_format=TagLines,
    inputs=lambda config: InputSpec("words", ("words",)),
    evaluate_options=LabelOptions,
    embed=embed,
    explain=find_explain,
    supports_distillation=True,
    supports_r_drop=True,
    labels=lambda run: run.vocabulary.labels.names,
    vocab_info=lambda run: {"labels": list(run.labels)},
)
TASK = TAGGING
