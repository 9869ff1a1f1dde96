"""Which parts of a file an output depends on: the contribution of each number that the model reads to the score of each word.

The score of a word is the log-probability of its tokens: on the most probable CTC path, or of the attention decoder. Integrated
gradients (Sundararajan et al. 2017) follow it from a baseline to the input, and sum to the difference of the scores. Occlusion
(Zeiler and Fergus 2014) is the loss of score without a part of the input.

Shapes: R rows, N tokens of the output, W words; the input of one row may have any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.decode.detokenize import REPLACEMENT_CHAR
from weft.errors import UsageError
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback
from weft.nn import ctc
from weft.nn.memory import Memory
from weft.text.tokenizers import Tokenizer

N_STEPS = 24
MAX_WORDS = 40
UNUSED = ("component", "position", "baseline", "temperature", "top_k", "top_p", "min_p", "max_new_tokens")
OF_ATTENTION, OF_ATTRIBUTION = ("layer", "head"), ("method", "n_steps")
Scores = Callable[[Tensor], Tensor]  # inputs (R, ...) to the log-probability of each token of the output, (R, N)


def check_unused(options: ExplainConfig, names: Sequence[str], noun: str) -> None:
    """Refuse options that no view uses, and those in `names`."""
    for name in (*UNUSED, *names):
        if getattr(options, name) is not None:
            raise UsageError(name, f"not used by explanations of {noun}", "remove it")


def check_options(options: ExplainConfig, methods: Sequence[str], noun: str) -> None:
    """Refuse options that attribution does not use. The first method is the default."""
    check_unused(options, OF_ATTENTION, noun)
    if options.method not in (None, *methods):
        raise UsageError("method", f"{options.method} is not available for {noun}", f"use {' or '.join(methods)}")
    if options.n_steps is not None and (options.method or methods[0]) != "integrated-gradients":
        raise UsageError("n_steps", f"not used by method {options.method or methods[0]}", "remove it")


def target_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of an output to explain."""
    tokens: list[int] = tokenizer.encode(text).tolist()
    if tokenizer.unk_id in tokens:
        raise UsageError("target", f"{text!r} contains a token that is not in the vocabulary")
    return tokens


def word_tokens(token_ids: list[int], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """The words of an output, each with the indices of its tokens."""
    words: list[tuple[str, list[int]]] = []
    text, incomplete = "", list[int]()
    for index in range(len(token_ids)):
        new_text = tokenizer.decode(token_ids[: index + 1])
        incomplete.append(index)
        if new_text.endswith(REPLACEMENT_CHAR) and index + 1 < len(token_ids):
            continue  # the first bytes of a character
        added, starts_word = new_text[len(text) :], not text or text[-1:].isspace()
        for number, part in enumerate(added.split(" ")):
            if not part:
                continue
            if words and not starts_word and number == 0:
                words[-1] = words[-1][0] + part, [*words[-1][1], *incomplete]
            else:
                words.append((part, incomplete))
        text, incomplete = new_text, []
    return words


def token_scores(model: Any, encode: Callable[[Tensor], Memory], inputs: Tensor, tokens: list[int]) -> Scores | None:
    """The scores of an output; None if it is too long for CTC. `encode` is a function from inputs (R, ...) to the memory; the
    path of CTC is that of `inputs`, one row."""
    if model.ctc_head is None:
        ids = torch.tensor([[model.bos_id, *tokens]], device=inputs.device)
        return lambda x: -model.attention_loss(encode(x), ids.expand(len(x), -1))
    with torch.no_grad():
        log_probs = model.frame_log_probs(encode(inputs))[0]
    spans = ctc.align(log_probs.cpu(), tokens, blank=model.blank)
    if not spans:
        return None

    def path_scores(x: Tensor) -> Tensor:
        log_probs = model.frame_log_probs(encode(x))
        return torch.stack([log_probs[:, span.start : span.end, span.label].sum(1) for span in spans], 1)

    return path_scores


def attribute(
    scores: Scores, inputs: Tensor, baseline: Tensor, words: list[list[int]], steps: int, progress: ProgressCallback
) -> np.ndarray:
    """The contributions (W, ...) of inputs (1, ...) to the words, which are lists of tokens, by integrated gradients. A single
    step is (input - baseline) x gradient."""
    shares = [1.0] if steps == 1 else ((torch.arange(steps) + 0.5) / steps).tolist()
    total = torch.zeros(len(words), *inputs.shape[1:], device=inputs.device)
    difference = inputs - baseline
    # cuDNN has no gradients of recurrent layers outside of training
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for number, share in enumerate(shares):
            x = (baseline + share * difference).requires_grad_()
            by_token = scores(x)[0]
            for word, tokens in enumerate(words):
                (gradient,) = torch.autograd.grad(by_token[tokens].sum(), x, retain_graph=True)
                total[word] += gradient[0] / len(shares)
            progress((number + 1) / len(shares), "")
    return (total * difference[0]).cpu().numpy()


@torch.no_grad()
def word_scores(scores: Scores, inputs: Tensor, words: list[list[int]]) -> np.ndarray:
    """The score of each word for each row of inputs, float64 (W, R)."""
    by_token = scores(inputs)
    return torch.stack([by_token[:, tokens].sum(1) for tokens in words]).cpu().double().numpy()
