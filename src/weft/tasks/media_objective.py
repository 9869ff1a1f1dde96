"""Examples and training objective of models that write a text for frames: CTC, attention, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.data.bucketing import by_length
from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.frame_batching import FrameBatch, FrameExamples
from weft.data.frames import Frames
from weft.data.manifest import MediaRecord
from weft.decode.predict import PredictionRequest, predict
from weft.decode.predict_options import PredictionConfig
from weft.errors import DataError
from weft.metrics.metric import Metric
from weft.nn import ctc
from weft.nn.state import select
from weft.parallel.group import ALONE
from weft.parallel.sharing import merge, share, sum_arrays
from weft.tasks.media_data import references, target_texts
from weft.text.reading import subject
from weft.text.tokenizers import Tokenizer
from weft.training.distillation import Outputs, smoothed_nll
from weft.training.objective import Loss, ProgressCallback

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

MAX_NAMED = 3  # files in a note
BATCH_FRAMES = 16_384  # validated at once
GREEDY = PredictionConfig(beam_size=1)
# the scores of outputs with references, by the name of the metric
OutputScores = Callable[[Sequence[str], Sequence[Sequence[str]]], dict[str, float]]


@dataclass(frozen=True)
class MediaExamples(FrameExamples):
    """Files with references; training data has none."""

    references: Sequence[Sequence[str]] = ()
    # int64 (M,): records whose file was read, but has too few positions for the CTC path of its text
    left_out: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


def left_out_notes(config: RunConfig, split: str, examples: MediaExamples, *, fix: str = "") -> list[str]:
    """A remark on the files of a split that are left out, because their texts are too long for CTC."""
    dataset, left_out = config.datasets[split], examples.left_out
    if not len(left_out):
        return []
    shown = ", ".join(dataset.location(record) for record in left_out[:MAX_NAMED].tolist())
    more = ", ..." if len(left_out) > MAX_NAMED else ""
    count = subject(len(left_out), f"{'training' if split == 'train' else 'validation'} file", "is", "are")
    return [f"{count} too short for CTC to write the text and skipped ({shown}{more}){fix}"]


def make_examples(
    dataset: Dataset[MediaRecord],
    columns: Sequence[Any],
    positions: Callable[[np.ndarray], np.ndarray],
    *,
    has_ctc: bool,
    learned: bool,
) -> MediaExamples:
    """The files of a data set with enough positions for their texts. `positions` are those of the encoder for numbers of frames
    (N,). Files with several references are evaluated once."""
    source: Frames
    target: Corpus
    source, target = columns
    lengths = source.lengths()
    needed = _positions_needed(target) if has_ctc else np.zeros(len(lengths))
    usable = (lengths > 0) & (positions(lengths) >= needed)
    if not usable.any():
        raise DataError(
            dataset.name, "no file is long enough for its text", "check the texts: CTC writes at most one token per position"
        )
    if learned:
        if not any(text.strip() for text in target_texts(dataset)):
            raise DataError(dataset.name, "all texts are empty", "check the column of the texts")
        return MediaExamples(source, target, np.flatnonzero(usable), left_out=np.flatnonzero((lengths > 0) & ~usable))
    texts = list(references(dataset).values())
    _, first = np.unique(source.index, return_index=True)
    records = first[usable[first]]
    left_out = first[(lengths[first] > 0) & ~usable[first]]
    return MediaExamples(source, target, records, [texts[source.index[record]] for record in records], left_out)


def _positions_needed(target: Corpus) -> np.ndarray:
    """int64 (N,): the least positions that CTC needs for each text."""
    starts = target.line_starts()
    return np.array([ctc.frames_needed(target.tokens[low : high - 1]) for low, high in pairwise(starts)])


def _loss(losses: torch.Tensor, target_mask: torch.Tensor, penalties: torch.Tensor | None = None) -> Loss:
    """The summed loss and penalty of rows (B,). A file that an augmentation made too short for its text has no path and is left
    out; NaN stays, so that the training loop sees it."""
    penalty = None if penalties is None else penalties.sum()
    return Loss(losses.masked_fill(losses.isposinf(), 0.0).sum(), target_mask.sum(), None, penalty=penalty)


class MediaObjective:
    """(1 - w) cross-entropy of attention + w negative log-likelihood of CTC, per token; in training, plus a penalty on the
    attention weights of models that have one."""

    unit = "token"
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(
        self,
        *,
        valid: MediaExamples | None,
        tokenizer: Tokenizer,
        device: torch.device,
        smoothing: float,
        score: OutputScores,
        monitors: Sequence[Metric],
        search: PredictionConfig = GREEDY,
    ) -> None:
        self.valid, self.tokenizer, self.device, self.smoothing = valid, tokenizer, device, smoothing
        self.search = search  # for outputs, unless there is CTC alone
        self.score, self.monitors = score, monitors  # `score` computes all monitors but the first, the loss

    def loss(self, model: Any, batch: FrameBatch, carry: None) -> Loss:
        memory = model.encoder(batch.source, batch.source_mask)
        with model.recorded_attention() as weights:
            total = self._losses(model, memory, batch, self.smoothing)
        target_mask = batch.token_mask[:, 1:]
        return _loss(total, target_mask, model.attention_penalty(weights, memory, target_mask))

    def outputs(self, model: Any, batch: FrameBatch, carry: None) -> Outputs:
        """The loss, with the distributions of CTC for each frame and those of attention for each token, (B, S + T, V)."""
        memory = model.encoder(batch.source, batch.source_mask)
        targets, target_mask = batch.tokens[:, 1:], batch.token_mask[:, 1:]
        total, parts = torch.zeros(len(targets), device=targets.device), list[tuple[torch.Tensor, torch.Tensor]]()
        penalties: torch.Tensor | None = None
        if model.ctc_weight > 0:
            log_probs = model.frame_log_probs(memory)
            total = total + model.ctc_weight * model.ctc_loss(log_probs, memory.token_mask, targets, target_mask)
            parts.append((log_probs, memory.token_mask))
        if model.ctc_weight < 1:
            with model.recorded_attention() as weights:
                log_probs = model.token_log_probs(memory, batch.tokens, target_mask)
            losses = smoothed_nll(log_probs, targets, self.smoothing)
            total = total + (1 - model.ctc_weight) * losses.masked_fill(~target_mask, 0.0).sum(1)
            penalties = model.attention_penalty(weights, memory, target_mask)
            parts.append((log_probs, target_mask))
        log_probs, mask = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return Outputs(log_probs, _loss(total, target_mask, penalties), mask)

    def _losses(self, model: Any, memory: Any, batch: FrameBatch, smoothing: float) -> torch.Tensor:
        """The loss of each row, (B,)."""
        target_mask, total = batch.token_mask[:, 1:], torch.zeros(len(batch.tokens), device=batch.tokens.device)
        if model.ctc_weight > 0:
            log_probs = model.frame_log_probs(memory)
            total = total + model.ctc_weight * model.ctc_loss(log_probs, memory.token_mask, batch.tokens[:, 1:], target_mask)
        if model.ctc_weight < 1:
            losses = model.attention_loss(memory, batch.tokens, smoothing, target_mask=target_mask)
            total = total + (1 - model.ctc_weight) * losses.masked_fill(~target_mask, 0.0).sum(1)
        return total

    @torch.no_grad()
    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """The exact loss per token, and the error rates of greedy outputs."""
        valid = self.valid
        if valid is None:
            return None
        losses_of, counts, texts = np.zeros(len(valid.records)), np.zeros(len(valid.records)), dict[int, str]()
        done, total = 0, len(valid.records)
        for members, batch in share(by_length(valid, batch_tokens=BATCH_FRAMES), self.group):
            on_device = FrameBatch(*(part.to(self.device) for part in batch))
            memory = model.encoder(on_device.source, on_device.source_mask)
            losses = self._losses(model, memory, on_device, 0.0)
            # a NaN loss is returned as it is: the training loop raises an error
            losses_of[members], counts[members] = losses.double().cpu().numpy(), batch.token_mask[:, 1:].sum(1).numpy()
            texts |= zip(members.tolist(), self._outputs(model, memory), strict=True)
            done += len(members) * self.group.size
            if progress is not None:
                progress(min(done, total), total)
        texts = merge(texts, self.group)
        outputs = [texts.get(member, "") for member in range(total)]
        nll, count = sum_arrays(losses_of, self.group).sum(), sum_arrays(counts, self.group).sum()
        return {self.monitors[0].name: float(nll / max(1, count)), **self.score(outputs, valid.references)}

    def _outputs(self, model: Any, memory: Any) -> list[str]:
        """Greedy outputs."""
        if model.decoder is None:
            paths = ctc.best_path(model.frame_log_probs(memory), memory.token_mask, blank=model.blank)
            return [self.tokenizer.decode(path) for path in paths]
        lengths = memory.token_mask.sum(1).tolist()

        def encode(rows: Sequence[int]) -> Any:
            index = torch.tensor(rows, device=self.device)
            states = tuple(select(state, index) for state in memory.states)
            selected = memory._replace(
                values=memory.values[index],
                token_mask=memory.token_mask[index],
                states=states,
                summary=memory.summary[index],
            )
            return model.start_state(selected)

        request = PredictionRequest(model, self.tokenizer, encode, lengths, [[]] * len(lengths), self.device)
        return [outputs[0].text for outputs in predict(request, self.search)]
