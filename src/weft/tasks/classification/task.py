"""Classification of texts or text pairs, with one label or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.metrics.classification import MULTI_LABEL, SINGLE_LABEL
from weft.tasks.classification.compare import COMPARE
from weft.tasks.classification.data import LabeledDataConfig, LabeledVocabulary, check, columns, fit, in_memory, lines
from weft.tasks.classification.ensemble import combine
from weft.tasks.classification.lines import LabelLines
from weft.tasks.classification.predict import (
    ClassifierPredictor,
    ClassPrediction,
    Texts,
    embed,
    evaluate,
    input_spec,
    is_single,
    predict,
    rewards,
)
from weft.tasks.classification.presets import PRESETS
from weft.tasks.classification.recipe import recipes
from weft.tasks.classification.records import open_labeled
from weft.tasks.classification.weights import WEIGHTS
from weft.tasks.data_spec import Data
from weft.tasks.spec import LabelOptions, Task
from weft.tasks.vocabulary import WordTokenizerConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.classification.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    data_config=LabeledDataConfig,
    tokenizer_config=WordTokenizerConfig,
    vocabulary=LabeledVocabulary(),
    columns=columns,
    check=check,
    open_input=open_labeled,
    input_output_pairs=lines,
    limit_lengths=fit,
    in_memory=in_memory,
)
CLASSIFICATION: Task[Texts, ClassPrediction] = Task(
    name="classification",
    model_noun="classifier",
    description="gives texts labels",
    loss_unit="text",
    progress_unit="texts",
    output_noun="labels",
    data=DATA,
    presets=PRESETS,
    recipes=recipes,
    weights=WEIGHTS,
    eval_suites=(SINGLE_LABEL, MULTI_LABEL),
    validation_suites=(SINGLE_LABEL, MULTI_LABEL),
    fit_archs=("gru", "conv"),  # better than LSTM and Transformer on less than 10,000 texts
    ranking_metrics=("accuracy", "exact_match"),
    compare=COMPARE,
    predictor=ClassifierPredictor,
    evaluate=evaluate,
    predict=predict,
    is_single=is_single,
    inputs=input_spec,
    line_format=LabelLines,
    evaluate_options=LabelOptions,
    embed=embed,
    explain=find_explain,
    supports_ensembles=True,
    supports_distillation=True,
    supports_r_drop=True,
    combine=combine,
    rewards=rewards,
    labels=lambda run: run.vocabulary.labels.names,
    vocab_info=lambda run: {"labels": list(run.labels)},
)
TASK = CLASSIFICATION
