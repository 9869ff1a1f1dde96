"""When the words of an output were said: the most probable CTC path, as word times, and the attention of a decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.explain.alignment import cross_attention_modules
from weft.explain.frame_attribution import word_tokens
from weft.explain.hooks import attention_weights, record_activations
from weft.explain.speech_alignment import Recording, SpeechAlignment, WordTime
from weft.nn import ctc
from weft.nn.memory import Memory
from weft.nn.spectrogram import LogMel, hz_to_mel, mel_to_hz
from weft.text.tokenizers import Tokenizer


def band_frequencies(log_mel: LogMel) -> np.ndarray:
    """The centers of the mel bands in Hz, (F,)."""
    highest = hz_to_mel(torch.tensor(log_mel.rate / 2, dtype=torch.float64))
    centers: np.ndarray = mel_to_hz(torch.linspace(0, 1, log_mel.num_mels + 2, dtype=torch.float64) * highest)[1:-1].numpy()
    return centers


def token_times(
    log_probs: Tensor, token_ids: list[int], labels: list[str], *, blank: int, grid: tuple[float, float]
) -> list[WordTime]:
    """When each token was said, given log_probs (S, V) of CTC; none if the output has no path. `grid`: the seconds per position
    and of the whole recording, which may end within a position."""
    seconds, total = grid
    spans = ctc.align(log_probs.cpu(), token_ids, blank=blank)
    times = [(labels[span.label], min(total, span.start * seconds), min(total, span.end * seconds)) for span in spans]
    return [WordTime(label, round(start, 3), round(end, 3)) for label, start, end in times]


@torch.no_grad()
def decoder_attention(model: Any, memory: Memory, token_ids: list[int]) -> np.ndarray | None:
    """The attention to each position for each token of the output, (N, S), the mean of layers and heads; None without one."""
    names = [] if model.decoder is None else cross_attention_modules(model)
    if not names:
        return None
    tokens = torch.tensor([[model.bos_id, *token_ids[:-1]]], device=memory.values.device)
    with record_activations(model, names) as activations:
        model.decoder(tokens, model.decoder.stack.init_state(memory))
    layers = [torch.cat([attention_weights(call) for call in activations if call.name == name], dim=2) for name in names]
    weights: np.ndarray = torch.stack([layer.mean(1) for layer in layers]).mean(0)[0].float().cpu().numpy()
    return weights


def align_words(
    model: Any, memory: Memory, token_ids: list[int], tokenizer: Tokenizer, *, seconds: float, recording: Recording
) -> SpeechAlignment:
    """Word times from CTC, none if the output has no path, and the attention of a decoder, for one recording."""
    labels = [tokenizer.token_text(token) for token in range(tokenizer.vocab_size)]
    ids, log_probs, tokens = [token for token in token_ids if token != model.blank], None, list[WordTime]()
    if model.ctc_head is not None:
        log_probs = model.frame_log_probs(memory)[0].cpu()
        grid = seconds, len(recording.features) * recording.seconds
        tokens = token_times(log_probs, ids, labels, blank=model.blank, grid=grid)
    words = [
        WordTime(word, tokens[indices[0]].start, tokens[indices[-1]].end)
        for word, indices in (word_tokens(ids, tokenizer) if tokens else [])
    ]
    return SpeechAlignment(
        recording,
        words,
        tokens,
        seconds,
        None if log_probs is None else _probs(log_probs),
        labels,
        model.blank,
        [labels[token] for token in token_ids],
        decoder_attention(model, memory, token_ids),
    )


def _probs(log_probs: Tensor) -> np.ndarray:
    probs: np.ndarray = log_probs.exp().numpy()
    return probs
