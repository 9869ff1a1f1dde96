"""Training readers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from weft.data.grouped import ExampleOrder
from weft.errors import ConfigError
from weft.metrics.answers import ANSWERS
from weft.metrics.metric import metric_names
from weft.models.span import SpanModel, span_model
from weft.tasks.qa.files import Record
from weft.tasks.qa.objective import Held, SpanTask
from weft.tasks.qa.order import Passages, SpanBatch
from weft.text.offsets import token_places, tokens_between
from weft.text.tokenizers import Tokenizer
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings


def with_places(records: Iterator[Record], tokenizer: Tokenizer) -> Iterator[tuple[Record, np.ndarray]]:
    """Each question with the characters (T, 2) where the tokens of its passage stand."""
    text, places = None, np.zeros((0, 2), np.int64)
    for record in records:
        if record.passage != text:  # questions beside each other often share theirs
            text, places = record.passage, token_places(tokenizer, record.passage)
        yield record, places


def answer_tokens(record: Record, places: np.ndarray) -> tuple[int, int]:
    """The first and the last token of the first right answer; -1 where there is none."""
    if not record.answers:
        return -1, -1
    answer = record.answers[0]
    return tokens_between(places, answer.start, answer.start + len(answer.text)) or (-1, -1)


def passages(job: Job, split: str) -> Held:
    """A split as tokens, with its answers as tokens; texts and places are kept of what is scored by, not of train."""
    source, data = job.settings.datasets[split], job.settings.data
    kept: list[tuple[Record, np.ndarray]] = []
    spans: list[tuple[int, int]] = []
    for record, places in with_places(source.records(), job.tokenizer):
        spans.append(answer_tokens(record, places))
        if split != "train":
            kept.append((record, places))
        job.watcher.working(f"finding answers of {split}", len(spans), job.corpora[f"{split}.questions"].lines)
    asked, about = (job.corpora[f"{split}.{side}"] for side in ("questions", "passages"))
    read = Passages(asked, about, np.array(spans, np.int64).reshape(-1, 2), data.longest, data.stride)
    references = [[answer.text for answer in record.answers] for record, _ in kept]
    return Held(read, [record.passage for record, _ in kept], [places for _, places in kept], references)


class Reading:
    """Networks that answer questions by a part of a passage."""

    def check(self, settings: Settings) -> None:
        if settings.train.label_smoothing:
            raise ConfigError(
                f"train.label_smoothing={settings.train.label_smoothing:g}: answers are learned as they are given; drop it"
            )

    def alike(self, settings: Settings) -> bool:
        return False

    def build(self, settings: Settings, tokenizer: Tokenizer) -> Callable[[], SpanModel]:
        return lambda: span_model(settings.model, words=tokenizer.size + 1, longest=settings.data.longest)

    def order(self, job: Job) -> ExampleOrder[SpanBatch]:
        train, read = job.settings.train, passages(job, "train").data
        self._tell(job, read)
        return ExampleOrder(read, batch_tokens=train.batch_tokens, seed=job.settings.seed)

    def _tell(self, job: Job, read: Passages) -> None:
        """Say what of the answers can't be learned or said: nothing in the scores shows why."""
        data, sizes = job.settings.data, np.diff(read.spans, axis=1)[:, 0] + 1
        answered = read.spans[:, 0] >= 0
        if long := int((sizes[answered] > data.longest_answer).sum()):
            most = f"data.longest_answer = {data.longest_answer}"
            job.watcher.note(f"train: {long:,} answers have more than {most} tokens; none so long is said")
        whole = np.zeros(len(read.spans), dtype=bool)
        every = np.arange(len(read.cut.question))
        whole[read.cut.question[read.targets(every)[:, 0] > 0]] = True
        if torn := int((answered & ~whole).sum()):
            job.watcher.note(f"train: {torn:,} answers are whole in no window; lower data.stride, or raise data.longest")

    def task(self, job: Job, model: nn.Module) -> SpanTask:
        valid = passages(job, "valid") if "valid.questions" in job.corpora else None
        self._check_monitor(job, valid)
        return SpanTask(
            valid=valid,
            longest_answer=job.settings.data.longest_answer,
            device=pick_device(job.settings.train.device),
        )

    def _check_monitor(self, job: Job, valid: Held | None) -> None:
        """Refuse to be decided by a score that the data does not have."""
        monitor = job.settings.train.monitor
        if valid is None or monitor is None or monitor in metric_names([ANSWERS]):
            return
        if len({bool(right) for right in valid.references}) < 2:
            raise ConfigError(
                f"train.monitor: {monitor!r} is about questions with and without an answer, but data.valid has only one sort; "
                "use 'answer_f1'"
            )
