"""Attention over images and clips for each word of an output, or the frames of its most probable CTC path.

Shapes: N words, T frames, h and w the height and width of the grid of a frame, S = T * h * w positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weft.errors import UsageError
from weft.explain.alignment import check_source_attention, recorded_attention
from weft.nn import ctc
from weft.plots.frames import film_strip, image_attention
from weft.plots.heatmap import heatmap
from weft.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class FrameAlignment:
    """The words of an output, and the weight of each place for them."""

    words: list[str]
    weights: np.ndarray  # (N, T, h, w); those of a word sum to 1
    frames: np.ndarray | None  # uint8 (T, H, W, C); None for features
    is_attention: bool = True  # otherwise, the weights are the frames of each word on a CTC path

    def to_json(self) -> dict[str, Any]:
        return {"words": self.words, "weights": np.round(self.weights, 4).tolist()}

    def _repr_html_(self) -> str:
        """The picture as HTML, for notebooks."""
        return self.to_svg("") if self.words else ""

    def to_svg(self, title: str) -> str:
        """The image once per word, a film strip with a row per word, or a heat map of features."""
        times = self.weights.sum((2, 3))
        if self.frames is None:
            columns = [str(position + 1) for position in range(times.shape[1])]
            return heatmap(times, rows=self.words, columns=columns, title=title, axes=("output", "position"))
        if len(self.frames) == 1:
            return image_attention(self.frames[0], self.words, self.weights[:, 0], title=title)
        note = "darker: more attention" if self.is_attention else "the frames of each word on the most probable path of CTC"
        return film_strip(self.frames, self.words, times, title=title, note=note)


def word_numbers(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[int]:
    """The word that each token of an output belongs to, from 0."""
    return [max(0, len(tokenizer.decode(list(token_ids[: end + 1])).split()) - 1) for end in range(len(token_ids))]


def by_word(weights: np.ndarray, numbers: Sequence[int], num_words: int) -> np.ndarray:
    """Weights of tokens (tokens, S) as those of words (N, S): the mean over the tokens of a word."""
    index = np.array(numbers, dtype=int)
    rows = [
        weights[index == word].mean(0) if (index == word).any() else np.zeros(weights.shape[1]) for word in range(num_words)
    ]
    return np.stack(rows) if rows else np.zeros((0, weights.shape[1]))


def check_alignable(model: Any, layer: int | None, head: int | None) -> None:
    """Refuse models with neither attention nor CTC."""
    if model.decoder is not None:
        check_source_attention(model)
    elif layer is not None or head is not None:
        raise UsageError("layer", "the model has no attention: words are aligned by CTC", "remove layer and head")


@torch.inference_mode()
def token_weights(
    model: Any, source: tuple[torch.Tensor, torch.Tensor], tokens: list[int], *, layer: int | None, head: int | None
) -> np.ndarray:
    """The weights (tokens, S) of an output without <s> and </s>, for one file. One pass over the output gives the same weights
    as the search that generated it."""
    memory = model.encoder(*source)
    if model.decoder is not None:
        inputs = torch.tensor([[model.bos_id, *tokens[:-1]]], device=source[0].device)  # <s> alone if the output is empty
        state = model.decoder.stack.init_state(memory)
        recorded = recorded_attention(model, lambda: model.decoder(inputs, state), layer=layer, head=head)
        weights: np.ndarray = recorded[0].float().cpu().numpy()
        return weights[: len(tokens)]
    if not tokens:
        return np.zeros((0, memory.values.size(1)), np.float32)
    weights = np.zeros((len(tokens), memory.values.size(1)), np.float32)
    spans = ctc.align(model.frame_log_probs(memory)[0].cpu(), tokens, blank=model.blank)
    for row, span in enumerate(spans):
        weights[row, span.start : span.end] = 1.0 / max(1, span.end - span.start)
    return weights
