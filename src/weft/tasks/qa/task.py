"""The question answering task: predict the span of a passage that answers a question, or that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.metrics.qa import ANSWERS, ANSWERS_OR_NONE
from weft.tasks.data_spec import Data
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.compare import COMPARE
from weft.tasks.qa.data import QADataConfig, check, columns, in_memory, limit_lengths, lines
from weft.tasks.qa.lines import AnswerLines
from weft.tasks.qa.predict import Pair, embed, evaluate, is_single, predict, predictor
from weft.tasks.qa.presets import PRESETS
from weft.tasks.qa.recipe import recipes
from weft.tasks.qa.records import open_questions
from weft.tasks.qa.weights import WEIGHTS
from weft.tasks.spec import InputSpec, Task
from weft.tasks.vocabulary import TokenizerOnly, WordTokenizerConfig, all_texts

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.qa.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    data_config=QADataConfig,
    tokenizer_config=WordTokenizerConfig,
    vocabulary=TokenizerOnly(all_texts),
    columns=columns,
    check=check,
    open_input=open_questions,
    input_output_pairs=lines,
    limit_lengths=limit_lengths,
    in_memory=in_memory,
)
QA: Task[Pair, AnswerPrediction] = Task(
    name="qa",
    model_noun="question answering model",
    description="answers questions about passages",
    loss_unit="window",
    progress_unit="questions",
    output_noun="answers",
    data=DATA,
    presets=PRESETS,
    recipes=recipes,
    weights=WEIGHTS,
    eval_suites=(ANSWERS, ANSWERS_OR_NONE),
    validation_suites=(ANSWERS, ANSWERS_OR_NONE),
    ranking_metrics=("f1",),
    compare=COMPARE,
    predictor=predictor,
    evaluate=evaluate,
    predict=predict,
    is_single=is_single,
    inputs=lambda config: InputSpec("pair", ("question", "passage")),
    line_format=AnswerLines,
    embed=embed,
    explain=find_explain,
)
TASK = QA
