"""The task of readers: answer a question by a part of a passage, or say that it has no answer.

In each window an answer is worth the score of its first and of its last token, less the two of <s>, which stand for none: its
log odds against none. Scores of one window have no common zero with those of another; odds have. Of windows that share an
answer the larger odds count, the best answer of all windows is that of the passage, and it is said if its odds pass the
threshold. Softmax over the odds of all answers and of none, 0, gives probabilities.

Shapes: N questions, M windows, B rows, S positions, T tokens of a passage, L tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.data.batching import map_tensors
from weft.data.bucketing import length_batches
from weft.data.corpus import lines_of
from weft.metrics.metric import Metric, values
from weft.metrics.qa import ANSWERS, answer_items, answer_metrics, best_overlap, best_threshold, without_answer
from weft.models.encoder import EncoderInput
from weft.tasks.qa.answer import AnswerPrediction
from weft.tasks.qa.batching import Passages, QABatch, question_tokens
from weft.text.offsets import text_between, token_offsets
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH = 8192  # positions read at once
TOGETHER = 512  # questions whose windows are batched by length


class Found(NamedTuple):
    """The best answers of N passages, said or not."""

    first: np.ndarray  # int64 (N,): tokens of the passage
    last: np.ndarray
    margins: np.ndarray  # float64 (N,): log odds against none
    log_totals: np.ndarray  # float64 (N,): log of the sum of all answers' odds and 1, that of none


class SpanLogits(NamedTuple):
    """What a window says of its tokens."""

    begin: int  # the token of the passage that it begins with
    first: np.ndarray  # float64 (T,)
    last: np.ndarray


def span_scores(odds: SpanLogits, max_length: int) -> np.ndarray:
    """float64 (T, L): of the answer that starts at t and has l + 1 tokens; -inf where it would leave the window."""
    ends = np.concatenate([odds.last, np.full(max_length - 1, -np.inf)])
    scores: np.ndarray = odds.first[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_length)
    return scores


def best_window(windows: Sequence[SpanLogits], max_length: int) -> tuple[int, int, float, float]:
    """First and last token of the best answer, its odds, and the log of all odds; of a passage without tokens 0, 0, -inf, 0."""
    size = max(span.begin + len(span.first) for span in windows)
    if not size:
        return 0, 0, -np.inf, 0.0
    max_length = min(max_length, size)
    spans = np.full((size, max_length), -np.inf)
    for span in windows:
        part = spans[span.begin : span.begin + len(span.first)]
        np.maximum(part, span_scores(span, max_length), out=part)
    window = int(spans.argmax())
    best = float(spans.flat[window])
    top = max(0.0, best)
    total = top + float(np.log(np.exp(spans - top).sum() + np.exp(-top)))
    return window // max_length, window // max_length + window % max_length, best, total


def _read(model: Any, data: Passages, members: np.ndarray, device: torch.device) -> Iterator[tuple[int, SpanLogits]]:
    """The question of each of these windows, and its output."""
    batch = data.batch(members)
    text = map_tensors(EncoderInput(batch.tokens, batch.token_mask, batch.segments), lambda part: part.to(device))
    scores = model(text).double().cpu().numpy()
    scores = scores - scores[:, :1]
    rows = zip(members.tolist(), data.before(members).tolist(), scores, strict=True)
    for index, before, row in rows:
        part = row[before : before + int(data.passage_windows.size[index])]
        yield (
            int(data.passage_windows.question[index]),
            SpanLogits(int(data.passage_windows.begin[index]), part[:, 0], part[:, 1]),
        )


def best_spans(
    model: Any, data: Passages, *, longest_answer: int, device: torch.device, progress: ProgressCallback | None = None
) -> Found:
    """The best answer to each question, over all windows of its passage."""
    lengths, total = data.lengths(), len(data.spans)
    rows = np.zeros((total, 4))
    edges = np.searchsorted(data.passage_windows.question, np.arange(total + 1))
    order = np.argsort(np.diff(edges), kind="stable")  # those of like numbers of windows together
    for low in range(0, total, TOGETHER):
        question = order[low : low + TOGETHER]
        members = np.concatenate([np.arange(edges[index], edges[index + 1]) for index in question.tolist()])
        eval_set: dict[int, list[SpanLogits]] = {}
        for group in length_batches(lengths[members], batch_tokens=BATCH):
            for number, odds in _read(model, data, members[group], device):
                eval_set.setdefault(number, []).append(odds)
        for number, windows in eval_set.items():
            rows[number] = best_window(windows, longest_answer)
        if progress is not None:
            progress(low + len(question), total)
    return Found(rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64), rows[:, 2], rows[:, 3])


def char_spans(found: Found, passages: Sequence[str], places: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Where in each passage its best answer starts and stops, by characters; `places` are those of its tokens (T, 2)."""
    rows = zip(passages, places, found.first.tolist(), found.last.tolist(), strict=True)
    return [text_between(text, index, first, last) if len(index) else (0, 0) for text, index, first, last in rows]


@dataclass(frozen=True)
class Held(Passages):
    """Questions with what scoring needs: the passages as texts, the offsets of their tokens, and the gold answers;
    none of these where they are only learned from."""

    texts: Sequence[str] = ()
    places: Sequence[np.ndarray] = ()
    references: Sequence[Sequence[str]] = ()


class QATask:
    """Nats of the first and last token of each window's answer."""

    unit = "window"
    inner_steps, prepare = 0, None

    def __init__(self, *, valid: Held | None, longest_answer: int, device: torch.device) -> None:
        self.valid, self.longest_answer, self.device = valid, longest_answer, device
        self.monitors: Sequence[Metric] = ANSWERS
        if valid is not None:
            self.monitors = answer_metrics(without_answer(valid.references))

    def loss(self, model: Any, batch: QABatch, carry: None) -> Loss:
        nats = model.head.loss(model(EncoderInput(batch.tokens, batch.token_mask, batch.segments)), batch.spans)
        return Loss(nats.sum(), torch.tensor(len(nats), device=nats.device), None, batch.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Scores of the validation questions; on them the head's threshold is set, too, so that the weights that are kept know
        when to say nothing."""
        if self.valid is None:
            return None
        eval_set = self.valid
        spans = best_spans(model, eval_set, longest_answer=self.longest_answer, device=self.device, progress=progress)
        places = char_spans(spans, eval_set.texts, eval_set.places)
        texts = [text[start:stop] for text, (start, stop) in zip(eval_set.texts, places, strict=True)]
        shared = np.array([best_overlap(text, gold) for text, gold in zip(texts, eval_set.references, strict=True)])
        none = np.array([best_overlap("", gold) for gold in eval_set.references])
        model.head.threshold.fill_(best_threshold(spans.margins, shared, none))
        threshold = float(model.head.threshold)
        answers = [text if margin > threshold else "" for text, margin in zip(texts, spans.margins.tolist(), strict=True)]
        return values(answer_items(answers, eval_set.references, np.arange(len(answers))), self.monitors)


class QAModel:
    """A reader of texts."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, data: Any, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.data = data  # the run's [data]: how long windows and answers are

    @property
    def threshold(self) -> float:
        """How much better than none an answer must be to be said, in log odds: 0 where nothing was fitted."""
        return float(self.model.head.threshold)

    @torch.inference_mode()
    def answers(self, asked: Sequence[tuple[str, str]], progress: ProgressCallback | None = None) -> list[AnswerPrediction]:
        """The answer to each question about its passage."""
        texts = [passage for _, passage in asked]
        questions, passages = lines_of(self.tokenizer, [question for question, _ in asked]), lines_of(self.tokenizer, texts)
        data = Passages(questions, passages, np.full((len(asked), 2), -1), self.data.max_length, self.data.doc_stride)
        sizes = np.diff(questions.line_starts()) - 1
        truncated = (question_tokens(sizes, self.data.max_length) < sizes).tolist()
        spans = best_spans(self.model, data, longest_answer=self.data.max_answer_length, device=self.device, progress=progress)
        places = char_spans(spans, texts, [token_offsets(self.tokenizer, text) for text in texts])
        rows = zip(texts, places, spans.margins.tolist(), spans.log_totals.tolist(), strict=True)
        answer = [self._prediction(text, place, margin, total) for text, place, margin, total in rows]
        return [one._replace(truncated=shortened) for one, shortened in zip(answer, truncated, strict=True)]

    def _prediction(self, text: str, place: tuple[int, int], margin: float, total: float) -> AnswerPrediction:
        start, stop = place
        if not margin > self.threshold or start == stop:
            return AnswerPrediction("", None, None, float(np.exp(-total)))
        return AnswerPrediction(text[start:stop], start, stop, float(np.exp(margin - total)))
