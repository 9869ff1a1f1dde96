"""Reward models: training loss, validation and inference.

Shapes: N texts or pairs, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from weft.data.batch import map_tensors
from weft.data.bucketing import by_length, length_batches
from weft.data.text_batching import pack_rows
from weft.metrics.metric import values
from weft.metrics.preferences import PREFERENCES_VALIDATION, preference_items
from weft.models.encoder import EncoderInput
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.tasks.reward_model.batching import PairBatch, Preferences
from weft.text.tokenizers import Tokenizer
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # in inference, with padding


def pair_rewards(model: Any, batch: PairBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The rewards of the chosen and the rejected texts, (B,) each."""
    return model(EncoderInput(*batch[:3])), model(EncoderInput(*batch[3:]))


class PreferenceObjective:
    """Bradley and Terry (1952): the chosen text wins with the probability sigmoid(r(chosen) - r(rejected)).

    With label smoothing e, it is assumed that a fraction e / 2 of the preferences is wrong.
    """

    unit = "example"
    monitors = PREFERENCES_VALIDATION
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(self, *, valid: Preferences | None, device: torch.device, smoothing: float = 0.0) -> None:
        self.valid, self.device, self.smoothing = valid, device, smoothing

    def loss(self, model: Any, batch: PairBatch, carry: None) -> Loss:
        chosen, rejected = pair_rewards(model, batch)
        margins, wrong = chosen - rejected, self.smoothing / 2
        losses = -(1 - wrong) * F.logsigmoid(margins) - wrong * F.logsigmoid(-margins)
        tokens = batch.chosen_mask.sum() + batch.rejected_mask.sum()
        return Loss(losses.sum(), torch.full((), len(losses), device=losses.device), None, tokens)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        rewards, done = np.zeros((2, len(self.valid.characters))), 0
        for members, batch in share(by_length(self.valid, batch_tokens=2 * BATCH_TOKENS), self.group):
            moved = map_tensors(batch, lambda part: part.to(self.device))
            rewards[:, members] = torch.stack(pair_rewards(model, moved)).double().cpu().numpy()
            done += len(members) * self.group.size
            if progress is not None:
                progress(min(done, rewards.shape[1]), rewards.shape[1])
        sum_arrays(rewards, self.group)
        return values(preference_items(rewards[0], rewards[1], self.valid.characters), PREFERENCES_VALIDATION)


class NeuralReward:
    """A network with its tokenizer."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, max_length: int, device: torch.device, group: Group = ALONE
    ) -> None:
        self.model, self.tokenizer, self.max_length, self.device = model, tokenizer, max_length, device
        self.group = group

    @torch.inference_mode()
    def rewards(
        self, rows: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """float64 (N,): the reward of each text, after its prompt if there is one; bool (N,): which were truncated."""
        eos = np.array([self.tokenizer.eos_id])
        columns = [self.tokenizer.encode_batch(column) for column in zip(*rows, strict=True)]
        tokens = [[np.concatenate([ids, eos]) for ids in row] for row in zip(*columns, strict=True)]
        lengths = np.array([1 + sum(map(len, row)) for row in tokens])
        rewards, done = np.zeros(len(tokens)), 0
        for members in share(length_batches(np.minimum(lengths, self.max_length), batch_tokens=BATCH_TOKENS), self.group):
            batch = EncoderInput(*pack_rows([tokens[index] for index in members.tolist()], max_length=self.max_length))
            rewards[members] = self.model(map_tensors(batch, lambda part: part.to(self.device))).double().cpu().numpy()
            done += len(members) * self.group.size
            if progress is not None:
                progress(min(done, len(tokens)), len(tokens))
        return sum_arrays(rewards, self.group), lengths > self.max_length
