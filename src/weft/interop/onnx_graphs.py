"""What is exported: for each kind of model its graphs, with inputs, outputs and samples of inputs to check them with.

Shapes: B batch size, S sequence length, W words, C characters, D hidden size, K labels or tags, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.interop.onnx_ops import exportable
from weft.models.encoder import EncoderInput
from weft.models.tagger import TaggerInput

Axes = tuple[str | int, ...]  # the name of each axis of variable size, the size of the others
Inputs = dict[str, Tensor]


class Graph(NamedTuple):
    """One file of an export."""

    name: str  # of the file, without .onnx
    module: nn.Module  # called with a dict of its inputs; returns a tuple of its outputs
    reference: nn.Module  # the same, with the modules of the run
    inputs: Mapping[str, Axes]
    outputs: Mapping[str, Axes]
    sample: Callable[[int, int], Inputs]  # random inputs with this number of rows and tokens
    masks: Mapping[
        str, str
    ] = {}  # outputs that have any value on padding, and the input that tells: True on axis -2 is a token


def token_mask(rows: int, length: int) -> Tensor:
    """Rows of different lengths, bool (rows, length): the first is the longest, none is empty."""
    lengths = (length - torch.arange(rows) * max(1, length // 3)).clamp(min=1)
    return torch.arange(length) < lengths[:, None]


def random_tokens(rows: int, length: int, vocab_size: int) -> Tensor:
    return torch.randint(min(3, vocab_size - 1), vocab_size, (rows, length))


# ---- encoders


class EncoderGraph(nn.Module):
    """An output of a model that reads `EncoderInput`."""

    def __init__(self, model: nn.Module, output: Callable[[Any, EncoderInput], Tensor]) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (self.output(self.model, EncoderInput(inputs["tokens"], inputs["token_mask"], inputs.get("segments"))),)


TEXT: Mapping[str, Axes] = {"tokens": ("batch", "length"), "token_mask": ("batch", "length")}


def encoder_graph(
    model: nn.Module,
    output: Callable[[Any, EncoderInput], Tensor],
    *,
    name: str = "model",
    result: tuple[str, Axes],
    vocab_size: int,
    segments: bool,
) -> Graph:
    """The graph of a model that reads one text or two. `result` is the name of its output with its axes."""

    def sample(rows: int, length: int) -> Inputs:
        mask = token_mask(rows, length)
        inputs = {"tokens": random_tokens(rows, length, vocab_size).masked_fill(~mask, 0), "token_mask": mask}
        return {**inputs, "segments": (torch.arange(length) >= length // 2) * mask.long()} if segments else inputs

    inputs = {**TEXT, "segments": ("batch", "length")} if segments else TEXT
    masks = {result[0]: "token_mask"} if "length" in result[1] else {}
    parts = (EncoderGraph(exportable(model), output), EncoderGraph(model, output))
    return Graph(name, *parts, inputs, dict([result]), sample, masks)


# ---- taggers


class TaggerGraph(nn.Module):
    """The emission scores of a tagger."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        model: Any = self.model
        tokens, mask, first, word_mask = (inputs[name] for name in ("tokens", "token_mask", "first", "word_mask"))
        words = TaggerInput(tokens, mask, first, word_mask, inputs.get("char_ids"), inputs.get("char_mask"))
        return (model.head.scores(model(words)),)


def tagger_graph(model: Any, *, vocab_size: int, char_vocab_size: int | None, num_tags: int) -> Graph:
    """The graph of a tagger; `char_vocab_size` is None without a character encoder."""

    def sample(rows: int, length: int) -> Inputs:
        mask = torch.cat([torch.ones(rows, 2, dtype=torch.bool), token_mask(rows, length)], dim=1)  # <s>, tokens, </s>
        words = max(1, (length + 1) // 2)  # of two tokens; the last one may have one
        word_mask = torch.arange(words) * 2 + 1 < mask.sum(1, keepdim=True) - 1
        inputs = {
            "tokens": random_tokens(rows, length + 2, vocab_size).masked_fill(~mask, 0),
            "token_mask": mask,
            "first": (torch.arange(words) * 2 + 1).expand(rows, -1).masked_fill(~word_mask, 0),
            "word_mask": word_mask,
        }
        if char_vocab_size is None:
            return inputs
        char_mask = token_mask(rows * words, length + 3).view(rows, words, -1)
        char_ids = random_tokens(rows * words, length + 3, char_vocab_size).view(rows, words, -1)
        return {**inputs, "char_ids": char_ids.masked_fill(~char_mask, 0), "char_mask": char_mask}

    inputs: dict[str, Axes] = {**TEXT, "first": ("batch", "words"), "word_mask": ("batch", "words")}
    if char_vocab_size is not None:
        inputs |= dict.fromkeys(("char_ids", "char_mask"), ("batch", "words", "characters"))
    outputs: Mapping[str, Axes] = {"emissions": ("batch", "words", num_tags)}
    return Graph(
        "model", TaggerGraph(exportable(model)), TaggerGraph(model), inputs, outputs, sample, {"emissions": "word_mask"}
    )


# ---- speech recognizers


class RecognizerGraph(nn.Module):
    """The log-probabilities of CTC; padding is blank."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        model: Any = self.model
        memory = model.encoder(inputs["frames"], inputs["frame_mask"])
        log_probs = model.ctc_head(memory.values)
        is_blank = torch.arange(log_probs.size(2)) == model.blank
        padding = torch.where(is_blank, 0.0, IMPOSSIBLE)
        return (torch.where(memory.token_mask[..., None], log_probs, padding),)


IMPOSSIBLE = -1e4  # log-probability of all tokens but the blank on padding


def recognizer_graph(model: Any, *, vocab_size: int, hop: int) -> Graph:
    """The graph of a recognizer with CTC, for frames of `hop` samples."""

    def sample(rows: int, length: int) -> Inputs:
        mask = token_mask(rows, length)
        samples = torch.randint(-8000, 8000, (rows, length, hop)).float()
        return {"frames": samples.masked_fill(~mask[..., None], 0.0), "frame_mask": mask}

    inputs: Mapping[str, Axes] = {"frames": ("batch", "length", hop), "frame_mask": ("batch", "length")}
    outputs: Mapping[str, Axes] = {"log_probs": ("batch", "positions", vocab_size)}
    return Graph("model", RecognizerGraph(exportable(model)), RecognizerGraph(model), inputs, outputs, sample)


def shapes(limit: int | None, longer: Sequence[int] = ()) -> Sequence[tuple[int, int]]:
    """Rows and tokens of the inputs of a check: a single token, single rows, single columns, and more; `limit` is the largest
    number of tokens, and `longer` are numbers of tokens of interest."""
    candidates = [(1, 1), (1, 6), (3, 2), (2, 13), (5, 31), *((2, length) for length in longer)]
    return list(dict.fromkeys((rows, length if limit is None else min(length, limit)) for rows, length in candidates))
