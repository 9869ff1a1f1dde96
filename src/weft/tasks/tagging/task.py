"""Taggers: give each word of a sentence a tag."""

from __future__ import annotations

from weft.metrics.spans import TAGS
from weft.tasks.material import TaggedTexts
from weft.tasks.spec import LabelOptions, Task
from weft.tasks.tagging.compare import COMPARE
from weft.tasks.tagging.predict import Sentence, TaggerReader, Tagging, embed, evaluate, predict
from weft.tasks.tagging.presets import PRESETS

TAGGING: Task[Sentence, Tagging] = Task(
    name="tag",
    noun="tagger",
    does="gives words tags",
    item="word",
    counts="texts",
    says="tags",
    use="predict",
    data=TaggedTexts(),
    presets=PRESETS,
    suites=(TAGS,),
    validation=(TAGS,),
    decides=("span_f1", "token_accuracy"),
    compare=COMPARE,
    reader=TaggerReader,
    evaluate=evaluate,
    predict=predict,
    evaluate_options=LabelOptions,
    embed=embed,
    labels=lambda run: run.vocabulary.labels.names,
    sizes=lambda run: {"labels": list(run.labels)},
)
TASK = TAGGING
