"""Networks for question answering: how they are built, and how data is encoded for them."""

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
from weft.tasks.qa.objective import QADataset, QAObjective
from weft.text.offsets import token_offsets, tokens_between
from weft.text.reading import subject
from weft.text.tokenizers import Tokenizer
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.data.dataset import Dataset
    from weft.runs.config import RunConfig


def with_offsets(records: Iterator[Record], tokenizer: Tokenizer) -> Iterator[tuple[Record, np.ndarray]]:
    """Each record with the character offsets (T, 2) of the tokens of its passage."""
    passage, offsets = None, np.zeros((0, 2), np.int64)
    for record in records:
        if record.passage != passage:  # consecutive questions often share a passage
            passage, offsets = record.passage, token_offsets(tokenizer, record.passage)
        yield record, offsets


def answer_tokens(record: Record, offsets: np.ndarray) -> tuple[int, int]:
    """The first and last token of the first reference answer; -1 if there is none."""
    if not record.answers:
        return -1, -1
    answer = record.answers[0]
    return tokens_between(offsets, answer.start, answer.start + len(answer.text)) or (-1, -1)


class QABuilder(NetworkTask[QADataset]):
    """Networks that predict a span of the passage as the answer."""

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
    ) -> QADataset:
        """Map the answers to token spans. Texts, offsets and references are left out of training data."""
        questions, passages = columns
        eval_records: list[tuple[Record, np.ndarray]] = []
        spans: list[tuple[int, int]] = []
        for record, offsets in with_offsets(dataset.records(), vocabulary):
            spans.append(answer_tokens(record, offsets))
            if not learned:
                eval_records.append((record, offsets))
            if progress is not None:
                progress("finding answers", len(spans), questions.lines)
        return QADataset(
            questions,
            passages,
            np.array(spans, np.int64).reshape(-1, 2),
            config.data.max_length,
            config.data.doc_stride,
            texts=[record.passage for record, _ in eval_records],
            offsets=[offsets for _, offsets in eval_records],
            references=[[answer.text for answer in record.answers] for record, _ in eval_records],
        )

    def notes(self, config: RunConfig, train: QADataset) -> list[str]:
        """Notes on answers that cannot be learned or predicted, which the metrics do not show."""
        data, lengths, notes = config.data, np.diff(train.spans, axis=1)[:, 0] + 1, list[str]()
        has_answer = train.spans[:, 0] >= 0
        if num_long := int((lengths[has_answer] > data.max_answer_length).sum()):
            limit = f"data.max_answer_length = {data.max_answer_length}"
            answers = subject(num_long, "answer", "has", "have")
            notes.append(f"train: {answers} more than {limit} tokens; longer answers are never predicted")
        in_window = np.zeros(len(train.spans), dtype=bool)
        all_windows = np.arange(len(train.windows.question))
        in_window[train.windows.question[train.targets(all_windows)[:, 0] > 0]] = True
        if num_split := int((has_answer & ~in_window).sum()):
            answers = subject(num_split, "answer", "is", "are")
            notes.append(f"train: {answers} in no window; lower data.doc_stride or increase data.max_length")
        return notes

    def objective(
        self, config: RunConfig, vocabulary: Tokenizer, train: QADataset | None, valid: QADataset | None, device: torch.device
    ) -> QAObjective:
        if valid is not None:
            self._check_monitor(config.train.monitor, valid)
        return QAObjective(valid=valid, max_answer_length=config.data.max_answer_length, device=device)

    def _check_monitor(self, monitor: str | None, valid: QADataset) -> None:
        """Refuse a monitored metric that the validation data does not have."""
        if monitor is None or monitor in metric_names([ANSWERS]):
            return
        if len({bool(answers) for answers in valid.references}) < 2:
            raise ConfigError(
                "train.monitor",
                f"{monitor!r} needs questions with and without an answer in data.valid",
                "use 'f1'",
            )
