"""Speech recognizers: an encoder with a CTC output, an attention decoder, or both (Watanabe et al. 2017).

Like an encoder-decoder, a recognizer has the recording in its state: `encode` computes it, and decoding treats the rest like a
language model. With both outputs, the score of a token is

    (1 - w) log P_attention(token | tokens so far) + w log P_CTC(token | tokens so far)

Shapes: B batch size, T frames of samples, S positions of the encoder, V vocabulary size. The blank of CTC is </s>, which CTC
does not emit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.seq2seq import (
    Decoder,
    Summary,
    TokenEmbedder,
    decoder_stack,
    embedding,
    embedding_scale,
    init_torch_default,
    init_xavier,
    last_state,
    mean_value,
)
from weft.models.speech_config import SpeechConfig
from weft.nn import ctc
from weft.nn.ctc import CTCPrefix
from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.recurrent import last_token_state
from weft.nn.spectrogram import LogMel, RunningNorm, SpecAugment, SpeedPerturbation
from weft.nn.speech_front import SpeechFront, Subsampling
from weft.nn.stack import Stack
from weft.nn.state import tree_leaves, where
from weft.text.tokenizers import Tokenizer

WINDOWS_PER_SECOND = 40  # a window of features has 25 ms


class SpeechEncoder(nn.Module):
    """Encode recordings into a memory."""

    def __init__(self, front: SpeechFront, stack: Stack, *, summary: Summary) -> None:
        super().__init__()
        self.front, self.stack, self.summary = front, stack, summary

    def forward(self, frames: Tensor, mask: Tensor) -> Memory:
        return self.from_vectors(*self.front(frames, mask))

    def from_vectors(self, x: Tensor, mask: Tensor) -> Memory:
        """The memory of vectors (B, S, D) and their mask (B, S)."""
        y, (_, states) = self.stack(x, None, mask)
        states = tuple(state for state in states if tree_leaves(state))
        return Memory(y, mask, states, self.summary(y, mask, states))


class Recognizer(nn.Module):
    """P(tokens | recording). Its state is the states of the attention decoder and of CTC, None for the one that is missing."""

    def __init__(
        self,
        encoder: SpeechEncoder,
        *,
        ctc_head: LMHead | None,
        decoder: Decoder | None,
        head: LMHead | None,
        ctc_weight: float,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__()
        self.encoder, self.ctc_head, self.decoder, self.head = encoder, ctc_head, decoder, head
        self.ctc_weight, self.vocabulary = ctc_weight, tokenizer.hash
        self.bos_id, self.blank = tokenizer.bos_id, tokenizer.eos_id

    # ---- the recording

    def encode(self, frames: Tensor, mask: Tensor) -> Any:
        """The state before the first token, from samples (B, T, hop) and their mask (B, T)."""
        return self.start_state(self.encoder(frames, mask))

    def start_state(self, memory: Memory) -> Any:
        decoder_state = None if self.decoder is None else self.decoder.stack.init_state(memory)
        ctc_state = None
        if self.ctc_head is not None:
            ctc_state = ctc.start_prefix(self.ctc_head(memory.values), memory.token_mask, blank=self.blank)
        return decoder_state, ctc_state

    def frame_log_probs(self, memory: Memory) -> Tensor:
        """The log-probabilities of CTC, (B, S, V)."""
        if self.ctc_head is None:
            raise ValueError("the model has no CTC output")
        log_probs: Tensor = self.ctc_head(memory.values)
        return log_probs

    # ---- training

    def ctc_loss(self, memory: Memory, targets: Tensor, target_mask: Tensor) -> Tensor:
        """-log P_CTC of the targets (B, T), which end with </s>, (B,)."""
        lengths = target_mask.sum(1) - 1
        return ctc.ctc_nll(self.frame_log_probs(memory), memory.token_mask, targets, lengths, blank=self.blank)

    def attention_loss(self, memory: Memory, tokens: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each token after the first, given `tokens` (B, T + 1), (B, T)."""
        if self.decoder is None or self.head is None:
            raise ValueError("the model has no decoder")
        y, _ = self.decoder(tokens[:, :-1], self.decoder.stack.init_state(memory))
        return self.head.loss(y, tokens[:, 1:], label_smoothing)

    # ---- decoding

    def _read(self, tokens: Tensor, state: Any, token_mask: Tensor | None) -> tuple[Tensor, Any]:
        """The scores of the next token (B, V), and the state, after the tokens (B, T); <s> is a token for attention only."""
        decoder_state, ctc_state = state
        scores: Tensor | None = None
        if self.decoder is not None and self.head is not None:
            y, decoder_state = self.decoder(tokens, decoder_state, token_mask)
            scores = (1 - self.ctc_weight) * self.head(last_token_state(y, token_mask, None))
        if ctc_state is not None:
            prefix = CTCPrefix(*ctc_state)
            for position in range(tokens.size(1)):
                prefix = self._read_ctc(prefix, tokens[:, position], None if token_mask is None else token_mask[:, position])
            ctc_state = prefix
            ctc_scores = self.ctc_weight * ctc.next_label(prefix, blank=self.blank)
            scores = ctc_scores if scores is None else scores + ctc_scores
        if scores is None:
            raise ValueError("the model has no output")
        return scores, (decoder_state, ctc_state)

    def _read_ctc(self, prefix: CTCPrefix, token: Tensor, mask: Tensor | None) -> CTCPrefix:
        is_label = token != self.bos_id
        if mask is not None:
            is_label = is_label & mask
        if not bool(is_label.any()):
            return prefix
        after = ctc.read_label(prefix, torch.where(is_label, token, 0), blank=self.blank)
        if bool(is_label.all()):
            return after
        merged = where(tuple(after[1:]), tuple(prefix[1:]), is_label)
        return CTCPrefix(prefix.frames, *merged)

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        return self._read(prompt, state, token_mask)

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._read(token[:, None], state, None)

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Any = None) -> Tensor:
        """The score of every token after the first, (B, T - 1); without a decoder, log P_CTC."""
        scores = torch.zeros(tokens.size(0), tokens.size(1) - 1, device=tokens.device)
        for position in range(tokens.size(1) - 1):
            next_scores, state = self._read(tokens[:, position : position + 1], state, None)
            scores[:, position] = next_scores.gather(1, tokens[:, position + 1, None]).squeeze(1)
        return scores if token_mask is None else scores.masked_fill(~token_mask[:, 1:], 0.0)

    @property
    def max_positions(self) -> int | None:
        return None if self.decoder is None else self.decoder.stack.positions.max_positions

    @torch.no_grad()
    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """Peak bytes per row while reading this many tokens: the growth of its state beyond `state`, that of its recording, and
        copies of the scores."""
        prompt = torch.zeros(1, min(2, tokens), dtype=torch.long, device=next(self.parameters()).device)
        states = state, self._read(prompt[:, :1], state, None)[1], self._read(prompt, state, None)[1]
        initial, after_one, after_two = (sum(leaf.nbytes for leaf in tree_leaves(part)) for part in states)
        vocab_size = next(head for head in (self.ctc_head, self.head) if head is not None).bias.numel()
        return after_one - initial + (tokens - 1) * (after_two - after_one) + 4 * 8 * vocab_size

    def muon_parameters(self) -> set[str]:
        """Names of the weight matrices of the stacks, which Muon optimizes."""
        names = build.muon_parameters(self.encoder.stack, "encoder.stack")
        return names if self.decoder is None else names | build.muon_parameters(self.decoder.stack, "decoder.stack")


# ---- building a model from its configuration


def speech_front(config: SpeechConfig, *, rate: int, hop: int) -> SpeechFront:
    encoder, window = config.encoder, rate // WINDOWS_PER_SECOND
    return SpeechFront(
        LogMel(rate=rate, num_mels=config.num_mels, window=window, hop=hop, n_fft=1 << (window - 1).bit_length()),
        Subsampling(config.num_mels, encoder.input_dim(), factor=encoder.subsampling, channels=encoder.subsampling_channels),
        running_norm=RunningNorm() if config.normalization == "running" else None,
        spec_augment=SpecAugment(
            num_freq_masks=config.num_freq_masks,
            freq_width=config.freq_mask_width,
            num_time_masks=config.num_time_masks,
            time_width=config.time_mask_ratio,
        ),
        speed=SpeedPerturbation(tuple(config.speed_perturbation)),
        dropout=encoder.dropout if config.embedding_dropout is None else config.embedding_dropout,
    )


def recognizer(config: SpeechConfig, tokenizer: Tokenizer, *, max_positions: int, rate: int, hop: int) -> Recognizer:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    encoder, vocab_size = config.encoder, tokenizer.vocab_size
    layers = build.stack(encoder, context_length=max_positions, input_size=encoder.input_dim())
    (init_xavier if encoder.traits.small_init else init_torch_default)(layers)
    summary = last_state if encoder.traits.num_state_vectors else mean_value
    speech_encoder = SpeechEncoder(speech_front(config, rate=rate, hop=hop), layers, summary=summary)
    ctc_head = LMHead(encoder.hidden_size, vocab_size) if config.has_ctc else None
    decoder = head = None
    if config.has_decoder:
        table = embedding(config.decoder, vocab_size, tied=config.tie_embeddings)
        decoder_layers = decoder_stack(config, max_positions=max_positions)
        (init_xavier if config.decoder.traits.small_init else init_torch_default)(decoder_layers)
        dropout = config.decoder.dropout if config.embedding_dropout is None else config.embedding_dropout
        scale = embedding_scale(config.decoder, tied=config.tie_embeddings)
        decoder = Decoder(TokenEmbedder(table, scale=scale, dropout=dropout), decoder_layers)
        head = LMHead(config.decoder.hidden_size, vocab_size, weight=table.weight if config.tie_embeddings else None)
    return Recognizer(
        speech_encoder,
        ctc_head=ctc_head,
        decoder=decoder,
        head=head,
        ctc_weight=config.ctc_weight,
        tokenizer=tokenizer,
    )
