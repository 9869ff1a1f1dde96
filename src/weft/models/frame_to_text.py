"""Models that write a text for frames, of a recording, an image or a clip: an encoder with a CTC output, an attention decoder,
or both (Watanabe et al. 2017).

The frames are part of the state, as the source of an encoder-decoder: `encode` computes it, and decoding treats the rest like
a language model. With both outputs, the score of a token is

    (1 - w) log P_attention(token | tokens so far) + w log P_CTC(token | tokens so far)

Shapes: B batch size, T frames, F numbers per frame, S positions of the encoder, V vocabulary size. The blank of CTC is </s>,
which CTC does not emit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.frame_to_text_config import FrameToTextConfig
from weft.models.seq2seq import (
    Decoder,
    Summary,
    TokenEmbedder,
    add_embedding_norm,
    decoder_stack,
    embedding,
    embedding_scale,
    init_torch_default,
    init_xavier,
    last_state,
    mean_value,
)
from weft.nn import ctc
from weft.nn.cross_attention import AttendsToMemory
from weft.nn.ctc import CTCPrefix
from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.recurrent import last_token_state
from weft.nn.stack import Stack
from weft.nn.state import tree_leaves
from weft.text.tokenizers import Tokenizer


class FrameEncoder(nn.Module):
    """Encode frames into a memory: a front end, which may change the number of positions, then a stack."""

    def __init__(self, front: nn.Module, stack: Stack, *, summary: Summary) -> None:
        super().__init__()
        self.front, self.stack, self.summary = front, stack, summary

    def forward(self, frames: Tensor, mask: Tensor) -> Memory:
        return self.from_vectors(*self.front(frames, mask))

    def from_vectors(self, x: Tensor, mask: Tensor) -> Memory:
        """The memory of vectors (B, S, D) and their mask (B, S)."""
        y, (_, states) = self.stack(x, None, mask)
        states = tuple(state for state in states if tree_leaves(state))
        return Memory(y, mask, states, self.summary(y, mask, states))


class FrameToText(nn.Module):
    """P(tokens | frames). Its state is the states of the attention decoder and of CTC, None for the one that is missing."""

    def __init__(
        self,
        encoder: FrameEncoder,
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
        self.doubly_stochastic_weight = 0.0  # of the penalty of `attention_penalty`

    # ---- the frames

    def encode(self, frames: Tensor, mask: Tensor) -> Any:
        """The state before the first token, from frames (B, T, F) and their mask (B, T)."""
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

    def ctc_loss(self, log_probs: Tensor, frame_mask: Tensor, targets: Tensor, target_mask: Tensor) -> Tensor:
        """-log P_CTC of the targets (B, T), which end with </s>, (B,), from the log-probabilities of the frames (B, S, V)."""
        return ctc.ctc_nll(log_probs, frame_mask, targets, target_mask.sum(1) - 1, blank=self.blank)

    def attention_loss(
        self, memory: Memory, tokens: Tensor, label_smoothing: float = 0.0, *, target_mask: Tensor | None = None
    ) -> Tensor:
        """Cross-entropy of each token after the first, given `tokens` (B, T + 1), (B, T). Only experts read `target_mask`
        (B, T), which is False on padding."""
        y, head = self._decoded(memory, tokens, target_mask)
        return head.loss(y, tokens[:, 1:], label_smoothing)

    def token_log_probs(self, memory: Memory, tokens: Tensor, target_mask: Tensor | None = None) -> Tensor:
        """The log-probabilities of attention for each token after the first, given `tokens` (B, T + 1), (B, T, V)."""
        y, head = self._decoded(memory, tokens, target_mask)
        log_probs: Tensor = head(y)
        return log_probs

    def _decoded(self, memory: Memory, tokens: Tensor, target_mask: Tensor | None) -> tuple[Tensor, LMHead]:
        """The outputs of the decoder (B, T, D), and the head that reads them."""
        if self.decoder is None or self.head is None:
            raise ValueError("the model has no decoder")
        stack = self.decoder.stack
        y, _ = self.decoder(tokens[:, :-1], stack.init_state(memory), stack.padding_mask(target_mask))
        return y, self.head

    @contextmanager
    def recorded_attention(self) -> Iterator[list[Tensor]]:
        """The attention weights (B, 1, t, S) of the decoder in the block, for t tokens at a time; none without a penalty."""
        recorded: list[Tensor] = []
        modules: list[Any] = [
            module.attend
            for module in (self.modules() if self.doubly_stochastic_weight else ())
            if isinstance(module, AttendsToMemory) and module.to_source
        ]
        hooks = [
            module.register_forward_hook(lambda attend, inputs, output: recorded.append(attend.weights(*inputs)))
            for module in modules
        ]
        try:
            yield recorded
        finally:
            for hook in hooks:
                hook.remove()

    def attention_penalty(self, recorded: list[Tensor], memory: Memory, target_mask: Tensor) -> Tensor | None:
        """weight * sum_s (1 - sum_t a_ts)^2 for each row, (B,): all positions have the same share of the attention (Xu et al.
        2015, equation 14). target_mask: (B, T); None if there are no weights."""
        if not recorded:
            return None
        weights = torch.cat(recorded, dim=2)[:, 0].masked_fill(~target_mask[..., None], 0.0)  # (B, T, S)
        differences = (1.0 - weights.float().sum(1)).masked_fill(~memory.token_mask, 0.0)
        return self.doubly_stochastic_weight * differences.square().sum(1)

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
        return after if bool(is_label.all()) else ctc.read_in_rows(prefix, after, is_label)

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
        """Peak bytes per row while reading this many tokens: the growth of its state beyond `state`, that of its frames, and
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


def encoder_layers(config: FrameToTextConfig, *, max_positions: int) -> Stack:
    """The initialized stack of the encoder."""
    encoder = config.encoder
    layers = build.stack(encoder, context_length=max_positions, input_size=encoder.input_dim())
    (init_xavier if encoder.traits.small_init else init_torch_default)(layers)
    return layers


def frame_to_text(
    config: FrameToTextConfig, front: nn.Module, layers: Stack, tokenizer: Tokenizer, *, max_positions: int
) -> FrameToText:
    """The model of a resolved configuration, with this front end and stack, initialized with torch's default generator."""
    has_states = config.encoder.num_layers > 0 and config.encoder.traits.num_state_vectors > 0
    summary = last_state if has_states else mean_value
    ctc_head = LMHead(config.encoder.hidden_size, tokenizer.vocab_size) if config.has_ctc else None
    decoder = head = None
    if config.has_decoder:
        table = embedding(config.decoder, tokenizer.vocab_size, tied=config.tie_embeddings)
        layers_of_decoder = decoder_stack(config, max_positions=max_positions)
        (init_xavier if config.decoder.traits.small_init else init_torch_default)(layers_of_decoder)
        add_embedding_norm(config.decoder, layers_of_decoder)
        dropout = config.decoder.dropout if config.embedding_dropout is None else config.embedding_dropout
        scale = embedding_scale(config.decoder, tied=config.tie_embeddings, scaled=config.scale_embeddings)
        decoder = Decoder(TokenEmbedder(table, scale=scale, dropout=dropout), layers_of_decoder)
        weight = table.weight if config.tie_embeddings else None
        head = LMHead(config.decoder.hidden_size, tokenizer.vocab_size, weight=weight, bias=config.head_bias)
    return FrameToText(
        FrameEncoder(front, layers, summary=summary),
        ctc_head=ctc_head,
        decoder=decoder,
        head=head,
        ctc_weight=config.ctc_weight,
        tokenizer=tokenizer,
    )
