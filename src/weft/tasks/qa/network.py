"""Training readers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.errors import ConfigError
from weft.metrics.answers import ANSWERS
from weft.metrics.metric import metric_names
from weft.models.span import SpanModel, span_model
from weft.tasks.qa.files import Record
from weft.tasks.qa.objective import Held, SpanTask
from weft.text.offsets import token_places, tokens_between
from weft.text.tokenizers import Tokenizer
from weft.train.network import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
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


class Reading(NetworkTask[Held]):
    """Networks that answer questions by a part of a passage."""

    def build(self, settings: Settings, vocabulary: Tokenizer) -> Callable[[], SpanModel]:
        return lambda: span_model(settings.model, words=vocabulary.size + 1, longest=settings.data.longest)

    def encode(
        self,
        settings: Settings,
        vocabulary: Tokenizer,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Held:
        """With the answers as tokens; texts and places are kept of what is scored by, not of what is learned from."""
        asked, about = columns
        kept: list[tuple[Record, np.ndarray]] = []
        spans: list[tuple[int, int]] = []
        for record, places in with_places(dataset.records(), vocabulary):
            spans.append(answer_tokens(record, places))
            if not learned:
                kept.append((record, places))
            if progress is not None:
                progress("finding answers", len(spans), asked.lines)
        return Held(
            asked,
            about,
            np.array(spans, np.int64).reshape(-1, 2),
            settings.data.longest,
            settings.data.stride,
            texts=[record.passage for record, _ in kept],
            places=[places for _, places in kept],
            references=[[answer.text for answer in record.answers] for record, _ in kept],
        )

    def notes(self, settings: Settings, train: Held) -> list[str]:
        """What of the answers can't be learned or said: nothing in the scores shows why."""
        data, sizes, found = settings.data, np.diff(train.spans, axis=1)[:, 0] + 1, list[str]()
        answered = train.spans[:, 0] >= 0
        if long := int((sizes[answered] > data.longest_answer).sum()):
            most = f"data.longest_answer = {data.longest_answer}"
            found.append(f"train: {long:,} answers have more than {most} tokens; none so long is said")
        whole = np.zeros(len(train.spans), dtype=bool)
        every = np.arange(len(train.cut.question))
        whole[train.cut.question[train.targets(every)[:, 0] > 0]] = True
        if torn := int((answered & ~whole).sum()):
            found.append(f"train: {torn:,} answers are whole in no window; lower data.stride, or raise data.longest")
        return found

    def objective(
        self, settings: Settings, vocabulary: Tokenizer, train: Held | None, valid: Held | None, device: torch.device
    ) -> SpanTask:
        if valid is not None:
            self._check_monitor(settings.train.monitor, valid)
        return SpanTask(valid=valid, longest_answer=settings.data.longest_answer, device=device)

    def _check_monitor(self, monitor: str | None, valid: Held) -> None:
        """Refuse to be decided by a score that the data does not have."""
        if monitor is None or monitor in metric_names([ANSWERS]):
            return
        if len({bool(right) for right in valid.references}) < 2:
            raise ConfigError(
                f"train.monitor: {monitor!r} is about questions with and without an answer, but data.valid has only one sort; "
                "use 'answer_f1'"
            )
