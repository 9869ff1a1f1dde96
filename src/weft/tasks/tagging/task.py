"""Taggers: give each word of a sentence a tag."""

from __future__ import annotations

from weft.tasks.material import TaggedTexts
from weft.tasks.spec import LabelOptions, Task
from weft.tasks.tagging.explain import EXPLAIN
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
    reader=TaggerReader,
    evaluate=evaluate,
    predict=predict,
    evaluate_options=LabelOptions,
    embed=embed,
    explain=EXPLAIN,
    labels=lambda run: run.vocabulary.labels.names,
    sizes=lambda run: {"labels": list(run.labels)},
)
TASK = TAGGING
