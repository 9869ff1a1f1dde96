"""Question answering: a part of a passage as the answer, or none."""

from __future__ import annotations

from weft.metrics.answers import ANSWERS, ANSWERS_OR_NONE
from weft.tasks.data_spec import Data
from weft.tasks.qa.compare import COMPARE
from weft.tasks.qa.data import AskedTable, check, columns, fit, in_memory, lines
from weft.tasks.qa.explain import EXPLAIN
from weft.tasks.qa.lines import AnswerLines
from weft.tasks.qa.network import WEIGHTS
from weft.tasks.qa.objective import Answer
from weft.tasks.qa.predict import Pair, embed, evaluate, is_single, predict, reader
from weft.tasks.qa.presets import PRESETS
from weft.tasks.qa.records import open_questions
from weft.tasks.spec import Task
from weft.tasks.vocabulary import TokenizerOnly, WordTable, all_texts

DATA = Data(
    table=AskedTable,
    tokenizer=WordTable,
    vocabulary=TokenizerOnly(all_texts),
    columns=columns,
    check=check,
    open=open_questions,
    lines=lines,
    fit=fit,
    in_memory=in_memory,
)
QA: Task[Pair, Answer] = Task(
    name="span",
    noun="reader",
    does="answers questions about passages",
    item="window",
    counts="questions",
    says="answers",
    use="predict",
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    suites=(ANSWERS, ANSWERS_OR_NONE),
    validation=(ANSWERS, ANSWERS_OR_NONE),
    decides=("answer_f1",),
    compare=COMPARE,
    reader=reader,
    evaluate=evaluate,
    predict=predict,
    is_single=is_single,
    lines=lambda settings, options: AnswerLines(options),
    embed=embed,
    explain=EXPLAIN,
)
TASK = QA
