"""Training readers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.errors import ConfigError
from weft.metrics.metric import metric_names
from weft.metrics.qa import ANSWERS
from weft.models.qa import QANetwork, qa_network
from weft.tasks.qa.files import Record
from weft.tasks.qa.objective import Held, QATask
from weft.text.offsets import token_offsets, tokens_between
from weft.text.reading import subject
from weft.text.tokenizers import Tokenizer
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig


def with_places(records: Iterator[Record], tokenizer: Tokenizer) -> Iterator[tuple[Record, np.ndarray]]:
    """Each question with the characters (T, 2) where the tokens of its passage stand."""
    text, places = None, np.zeros((0, 2), np.int64)
    for record in records:
        if record.passage != text:  # questions beside each other often share theirs
            text, places = record.passage, token_offsets(tokenizer, record.passage)
        yield record, places


def answer_tokens(record: Record, places: np.ndarray) -> tuple[int, int]:
    """The first and the last token of the first right answer; -1 where there is none."""
    if not record.answers:
        return -1, -1
    answer = record.answers[0]
    return tokens_between(places, answer.start, answer.start + len(answer.text)) or (-1, -1)


class QABuilder(NetworkTask[Held]):
    """Networks that answer questions by a part of a passage."""

    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], QANetwork]:
        return lambda: qa_network(config.model, vocab_size=vocabulary.vocab_size + 1, max_positions=config.data.max_length)

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[Record],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Held:
        """With the answers as tokens; texts and places are kept of what is scored by, not of what is learned from."""
        questions, about = columns
        windows: list[tuple[Record, np.ndarray]] = []
        spans: list[tuple[int, int]] = []
        for record, places in with_places(dataset.records(), vocabulary):
            spans.append(answer_tokens(record, places))
            if not learned:
                windows.append((record, places))
            if progress is not None:
                progress("finding answers", len(spans), questions.lines)
        return Held(
            questions,
            about,
            np.array(spans, np.int64).reshape(-1, 2),
            config.data.max_length,
            config.data.doc_stride,
            texts=[record.passage for record, _ in windows],
            places=[places for _, places in windows],
            references=[[answer.text for answer in record.answers] for record, _ in windows],
        )

    def notes(self, config: RunConfig, train: Held) -> list[str]:
        """What of the answers can't be learned or said: nothing in the scores shows why."""
        data, sizes, notes = config.data, np.diff(train.spans, axis=1)[:, 0] + 1, list[str]()
        answered = train.spans[:, 0] >= 0
        if long := int((sizes[answered] > data.max_answer_length).sum()):
            limit = f"data.max_answer_length = {data.max_answer_length}"
            notes.append(
                f"train: {subject(long, 'answer', 'has', 'have')} more than {limit} tokens; longer answers are never predicted"
            )
        whole = np.zeros(len(train.spans), dtype=bool)
        every = np.arange(len(train.passage_windows.question))
        whole[train.passage_windows.question[train.targets(every)[:, 0] > 0]] = True
        if torn := int((answered & ~whole).sum()):
            notes.append(
                f"train: {subject(torn, 'answer', 'is', 'are')} in no window; lower data.doc_stride or increase data.max_length"
            )
        return notes

    def objective(
        self, config: RunConfig, vocabulary: Tokenizer, train: Held | None, valid: Held | None, device: torch.device
    ) -> QATask:
        if valid is not None:
            self._check_monitor(config.train.monitor, valid)
        return QATask(valid=valid, longest_answer=config.data.max_answer_length, device=device)

    def _check_monitor(self, monitor: str | None, valid: Held) -> None:
        """Refuse to be decided by a score that the data does not have."""
        if monitor is None or monitor in metric_names([ANSWERS]):
            return
        if len({bool(right) for right in valid.references}) < 2:
            raise ConfigError(
                "train.monitor",
                f"{monitor!r} needs questions with and without an answer in data.valid",
                "use 'f1'",
            )
