"""The objective of question answering, and the search for the best answer.

The score of an answer in a window is the logit of its first token plus that of its last token, minus both logits of <s>, which
stands for "no answer". This is the log odds of the answer against no answer. Unlike logits, log odds are comparable between
windows. An answer that is in several windows has its largest log odds. The best answer of all windows is predicted if its log
odds exceed a threshold. Probabilities are a softmax over the log odds of all answers and of no answer, whose log odds are 0.

Shapes: N questions, M windows, B rows, S positions, T tokens of a passage, L maximum number of tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.data.batching import map_tensors
from weft.data.bucketing import length_batches
from weft.data.corpus import corpus_from_lines
from weft.metrics.metric import Metric, values
from weft.metrics.qa import ANSWERS, answer_items, answer_metrics, best_overlap, best_threshold, without_answer
from weft.models.encoder import EncoderInput
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import sum_arrays
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.batching import QABatch, QAExamples, truncated_lengths
from weft.text.offsets import text_between, token_offsets
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # positions per batch
CHUNK_QUESTIONS = 512  # questions whose windows are batched by length


class BestSpans(NamedTuple):
    """The best answers of N passages, whether or not they exceed the threshold."""

    first: np.ndarray  # int64 (N,): index of the first token in the passage
    last: np.ndarray  # int64 (N,)
    log_odds: np.ndarray  # float64 (N,): against no answer
    log_totals: np.ndarray  # float64 (N,): log of the sum of the odds of all answers and of no answer, which is 1


class WindowScores(NamedTuple):
    """Log odds of the passage tokens of a window as the first and as the last token of the answer."""

    start: int  # index of the first token of the window in the passage
    first: np.ndarray  # float64 (T,)
    last: np.ndarray  # float64 (T,)


def span_scores(window: WindowScores, max_length: int) -> np.ndarray:
    """float64 (T, L): log odds of the answer with l + 1 tokens from token t; -inf if it exceeds the window."""
    last = np.concatenate([window.last, np.full(max_length - 1, -np.inf)])
    scores: np.ndarray = window.first[:, None] + np.lib.stride_tricks.sliding_window_view(last, max_length)
    return scores


def best_span(windows: Sequence[WindowScores], max_length: int) -> tuple[int, int, float, float]:
    """First and last token of the best answer, its log odds, and the log total; 0, 0, -inf, 0 for a passage without tokens."""
    size = max(window.start + len(window.first) for window in windows)
    if not size:
        return 0, 0, -np.inf, 0.0
    max_length = min(max_length, size)
    scores = np.full((size, max_length), -np.inf)
    for window in windows:
        part = scores[window.start : window.start + len(window.first)]
        np.maximum(part, span_scores(window, max_length), out=part)
    first, extra = divmod(int(scores.argmax()), max_length)
    best = float(scores[first, extra])
    largest = max(0.0, best)
    log_total = largest + float(np.log(np.exp(scores - largest).sum() + np.exp(-largest)))
    return first, first + extra, best, log_total


def _window_scores(
    model: Any, data: QAExamples, members: np.ndarray, device: torch.device
) -> Iterator[tuple[int, WindowScores]]:
    """The index of the question and the scores of each of these windows."""
    batch = data.batch(members)
    encoder_input = map_tensors(EncoderInput(batch.tokens, batch.token_mask, batch.segments), lambda part: part.to(device))
    logits = model(encoder_input).double().cpu().numpy()
    log_odds = logits - logits[:, :1]
    for index, position, row in zip(members.tolist(), data.passage_positions(members).tolist(), log_odds, strict=True):
        part = row[position : position + int(data.windows.size[index])]
        yield int(data.windows.question[index]), WindowScores(int(data.windows.start[index]), part[:, 0], part[:, 1])


def best_spans(
    model: Any,
    data: QAExamples,
    *,
    max_answer_length: int,
    device: torch.device,
    progress: ProgressCallback | None = None,
    group: Group = ALONE,
) -> BestSpans:
    """The best answer to each question, over all windows of its passage. The processes of a group share the questions."""
    lengths, num_questions = data.lengths(), len(data.spans)
    rows = np.zeros((num_questions, 4))
    edges = np.searchsorted(data.windows.question, np.arange(num_questions + 1))
    order = np.argsort(np.diff(edges), kind="stable")  # by number of windows
    order, done = order[group.rank :: group.size], 0
    for low in range(0, len(order), CHUNK_QUESTIONS):
        chunk = order[low : low + CHUNK_QUESTIONS]
        members = np.concatenate([np.arange(edges[index], edges[index + 1]) for index in chunk.tolist()])
        windows_by_question: dict[int, list[WindowScores]] = {}
        for batch in length_batches(lengths[members], batch_tokens=BATCH_TOKENS):
            for index, window in _window_scores(model, data, members[batch], device):
                windows_by_question.setdefault(index, []).append(window)
        for index, windows in windows_by_question.items():
            rows[index] = best_span(windows, max_answer_length)
        done += len(chunk) * group.size
        if progress is not None:
            progress(min(done, num_questions), num_questions)
    sum_arrays(rows, group)
    return BestSpans(rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64), rows[:, 2], rows[:, 3])


def char_spans(spans: BestSpans, passages: Sequence[str], offsets: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Start and end of each best answer in characters; `offsets` are those of the tokens of each passage (T, 2)."""
    rows = zip(passages, offsets, spans.first.tolist(), spans.last.tolist(), strict=True)
    return [
        text_between(passage, token_spans, first, last) if len(token_spans) else (0, 0)
        for passage, token_spans, first, last in rows
    ]


@dataclass(frozen=True)
class QADataset(QAExamples):
    """Examples with the passages as texts, the character offsets of their tokens (T, 2), and the reference answers. These are
    needed for metrics; training data does not have them."""

    texts: Sequence[str] = ()
    offsets: Sequence[np.ndarray] = ()
    references: Sequence[Sequence[str]] = ()


class QAObjective:
    """The cross-entropy of the first and last token of the answer, per window."""

    unit = "window"
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(self, *, valid: QADataset | None, max_answer_length: int, device: torch.device) -> None:
        self.valid, self.max_answer_length, self.device = valid, max_answer_length, device
        self.monitors: Sequence[Metric] = ANSWERS
        if valid is not None:
            self.monitors = answer_metrics(without_answer(valid.references))

    def loss(self, model: Any, batch: QABatch, carry: None) -> Loss:
        losses = model.head.loss(model(EncoderInput(batch.tokens, batch.token_mask, batch.segments)), batch.spans)
        return Loss(losses.sum(), torch.full((), len(losses), device=losses.device), None, batch.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Metrics on the validation data. This also sets the threshold of the head to the value with the highest F1, so that it
        is saved with the weights."""
        if self.valid is None:
            return None
        valid = self.valid
        limit, group = self.max_answer_length, self.group
        best = best_spans(model, valid, max_answer_length=limit, device=self.device, progress=progress, group=group)
        spans = char_spans(best, valid.texts, valid.offsets)
        texts = [text[start:end] for text, (start, end) in zip(valid.texts, spans, strict=True)]
        f1 = np.array([best_overlap(text, gold) for text, gold in zip(texts, valid.references, strict=True)])
        f1_without_answer = np.array([best_overlap("", gold) for gold in valid.references])
        model.head.threshold.fill_(best_threshold(best.log_odds, f1, f1_without_answer))
        threshold = float(model.head.threshold)
        answers = [text if log_odds > threshold else "" for text, log_odds in zip(texts, best.log_odds.tolist(), strict=True)]
        return values(answer_items(answers, valid.references, np.arange(len(answers))), self.monitors)


class QAPredictor:
    """Answers questions about passages that are given as texts."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, data: Any, device: torch.device, group: Group = ALONE) -> None:
        self.model, self.tokenizer, self.device, self.group = model, tokenizer, device, group
        self.data = data  # [data] of the run, for the lengths of windows and answers

    @property
    def threshold(self) -> float:
        """The log odds that an answer must exceed to be predicted; 0 if there was no validation data to fit it."""
        return float(self.model.head.threshold)

    @torch.inference_mode()
    def answers(self, pairs: Sequence[tuple[str, str]], progress: ProgressCallback | None = None) -> list[AnswerPrediction]:
        """The answer to each pair of a question and a passage."""
        texts = [passage for _, passage in pairs]
        questions, passages = (
            corpus_from_lines(self.tokenizer, [question for question, _ in pairs]),
            corpus_from_lines(self.tokenizer, texts),
        )
        data = QAExamples(questions, passages, np.full((len(pairs), 2), -1), self.data.max_length, self.data.doc_stride)
        lengths = np.diff(questions.line_starts()) - 1
        is_truncated = (truncated_lengths(lengths, self.data.max_length) < lengths).tolist()
        best = best_spans(
            self.model,
            data,
            max_answer_length=self.data.max_answer_length,
            device=self.device,
            progress=progress,
            group=self.group,
        )
        spans = char_spans(best, texts, [token_offsets(self.tokenizer, text) for text in texts])
        rows = zip(texts, spans, best.log_odds.tolist(), best.log_totals.tolist(), strict=True)
        answers = [self._prediction(text, span, log_odds, log_total) for text, span, log_odds, log_total in rows]
        return [answer._replace(truncated=truncated) for answer, truncated in zip(answers, is_truncated, strict=True)]

    def _prediction(self, text: str, span: tuple[int, int], log_odds: float, log_total: float) -> AnswerPrediction:
        start, end = span
        if not log_odds > self.threshold or start == end:
            return AnswerPrediction("", None, None, float(np.exp(-log_total)))
        return AnswerPrediction(text[start:end], start, end, float(np.exp(log_odds - log_total)))
