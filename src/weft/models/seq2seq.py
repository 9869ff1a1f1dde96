"""The encoder-decoder: a front and a stack on either side, joined by attention, a bridge, or both. What it is conditioned on
is a state: `encode` makes it, `start`, `step` and `score` read it, and search never learns that there is a source.

Shapes: B rows, S source positions, T target positions, D width, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from weft.models import build
from weft.models.config import EmbeddedStackConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.attention import PrunedAttention
from weft.nn.bidirectional import reverse_sequences
from weft.nn.bridge import ContextConcat, CopyBridge, ProjectionBridge
from weft.nn.cross_attention import (
    AttentionalOutput,
    AttentionBeforeStep,
    CrossAttention,
    InputFeeding,
    SourceAttention,
    StepwiseDecoder,
)
from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.pointer_generator import PointerGeneratorOutput, VocabularyOutput
from weft.nn.positions import PositionEncoding
from weft.nn.recurrent import last_token_state
from weft.nn.skip_connections import NoSkip
from weft.nn.stack import Layer, Stack
from weft.nn.state import tree_leaves

Summary = Callable[[Tensor, Tensor, tuple[Any, ...]], Tensor]


class TokenEmbedder(nn.Module):
    """Tokens as vectors: (B, T) -> (B, T, D)."""

    def __init__(self, embedding: nn.Embedding, *, scale: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.scale, self.dropout = embedding, scale, nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(tokens) * self.scale)
        return x


def last_state(values: Tensor, token_mask: Tensor, states: tuple[Any, ...]) -> Tensor:
    """Where the uppermost recurrent layer stopped."""
    return tree_leaves(states[-1])[0]


def mean_value(values: Tensor, token_mask: Tensor, states: tuple[Any, ...]) -> Tensor:
    """The mean over a row's real positions."""
    real = token_mask[..., None].to(values.dtype)
    return (values * real).sum(1) / real.sum(1)


@runtime_checkable
class ReadsSource(Protocol):
    """What reads a source, maybe from its end."""

    reverse_source: bool


class Encoder(nn.Module):
    """Reads a source into a memory."""

    def __init__(self, embedder: TokenEmbedder, stack: Stack, *, summary: Summary, reverse_source: bool = False) -> None:
        super().__init__()
        self.embedder, self.stack, self.summary, self.reverse_source = embedder, stack, summary, reverse_source

    def forward(self, source: Tensor, token_mask: Tensor) -> Memory:
        x = self.embedder(source)
        y, (_, states) = self.stack(reverse_sequences(x, token_mask) if self.reverse_source else x, None, token_mask)
        kept = tuple(state for state in states if tree_leaves(state))
        return Memory(
            reverse_sequences(y, token_mask) if self.reverse_source else y, token_mask, kept, self.summary(y, token_mask, kept)
        )


class Decoder(nn.Module):
    """Reads a target, knowing a source."""

    def __init__(self, embedder: TokenEmbedder, stack: Stack) -> None:
        super().__init__()
        self.embedder, self.stack = embedder, stack

    def forward(self, tokens: Tensor, state: Any, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.stack(self.embedder(tokens), state, token_mask)
        return y, state


class EncoderDecoder(nn.Module):
    """P(next token | the source, the tokens so far)."""

    def __init__(
        self, encoder: Encoder, decoder: Decoder, head: VocabularyOutput | PointerGeneratorOutput, *, vocabulary: str
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head, self.vocabulary = encoder, decoder, head, vocabulary

    @property
    def max_positions(self) -> int | None:
        return self.decoder.stack.positions.max_positions

    @torch.no_grad()
    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """The most bytes that one row takes while so many tokens are read: what its state grows by beyond `state`, that of its
        source, and log-probabilities twice."""
        prompt = self.head.head.bias.new_zeros(1, min(2, tokens), dtype=torch.long)
        states = state, self(prompt[:, :1], state)[1], self(prompt, state)[1]
        before, first, second = (sum(part.nbytes for part in tree_leaves(state)) for state in states)
        return first - before + (tokens - 1) * (second - first) + 2 * self.head.head.bias.nbytes

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack") | build.muon_parameters(
            self.decoder.stack, "decoder.stack"
        )

    def encode(self, source: Tensor, token_mask: Tensor) -> Any:
        """The state of a decoder that has read nothing but the source, (B, S)."""
        memory = self.encoder(source, token_mask)
        return self.decoder.stack.init_state(memory), self.head.init_state(memory, source)

    def forward(self, tokens: Tensor, state: Any, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T) -> what the head reads, (B, T, D), and the state after each row's last real token."""
        past, seen = state
        y, past = self.decoder(tokens, past, token_mask)
        return y, (past, seen)

    def loss(self, tokens: Tensor, targets: Tensor, state: Any, smoothing: float = 0.0) -> tuple[Tensor, Any]:
        """Nats of every target, (B, T), and the state; padding on the right needs no mask here: it lies in the future."""
        y, new = self(tokens, state)
        return self.head.loss(y, targets, state[1], smoothing), new

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self(prompt, state, token_mask)
        return self.head(last_token_state(y, token_mask, None), state[1]), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(token[:, None], state)
        return self.head(y[:, 0], state[1]), state

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Any = None) -> Tensor:
        if tokens.size(1) < 2:  # no recurrent cell reads nothing
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        nats, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -nats if token_mask is None else -nats.masked_fill(~token_mask[:, 1:], 0.0)


# ---- from tables to parts


def cross_attention(config: Seq2SeqConfig, layer: int) -> CrossAttention | PrunedAttention:
    side = config.decoder
    heads, size = side.cross_heads_in_layer(layer)
    if not heads:
        return PrunedAttention(side.hidden_size, cross=config.attention != "none")
    return CrossAttention(
        side.hidden_size,
        num_heads=heads,
        head_dim=size,
        memory_size=config.encoder.hidden_size,
        qk_norm=nn.RMSNorm(size, elementwise_affine=False) if side.qk_norm else None,
        summary_only=config.attention == "none",
        dropout=side.attention_dropout or 0.0,
    )


def attention_decoder(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    """Self-attention, attention to the source, feed-forward, and again."""
    side, mixers = config.decoder, list[nn.Module]()
    for layer in range(side.num_layers):
        own = build.mixer(side, layer, max_positions, input_size=side.hidden_size)
        mixers += [own, cross_attention(config, layer), *build.feed_forward(side)]
    positions = build.input_position_encoding(side.position_encoding, side.hidden_size, max_positions=max_positions)
    return build.build_stack(side, mixers, positions, input_proj=side.hidden_size)


def extra_input_size(config: Seq2SeqConfig) -> int:
    """How much stands beside a recurrent decoder's input: what was found before the step or fed back, or the summary."""
    if config.input_feeding:
        return config.decoder.hidden_size
    return config.encoder.hidden_size if config.feed_context or config.attention_placement == "before" else 0


def recurrent_layers(config: Seq2SeqConfig) -> Stack:
    """The recurrent layers of a decoder, each starting from the source."""
    side, mixers = config.decoder, list[nn.Module]()
    input_size = side.input_dim() + extra_input_size(config)
    for layer in range(side.num_layers):
        mixer = build.mixer(side, layer, None, input_size=side.hidden_size if layer else input_size)
        if config.bridge == "copy":
            mixers.append(CopyBridge(mixer, layer_index=layer))
        else:
            mixers.append(
                ProjectionBridge(mixer, side.hidden_size, memory_size=config.encoder.hidden_size, parts=side.traits.state)
            )
        mixers += build.feed_forward(side)
    # what looks at the source is not dropped: once, at the very top, is enough
    return build.build_stack(side, mixers, PositionEncoding(), input_proj=input_size, drop_top=False)


def recurrent_decoder(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    """Recurrent layers, with attention before or after the step, or with a bridge alone."""
    side, input_size = config.decoder, config.encoder.hidden_size
    inner = recurrent_layers(config)
    parts: list[nn.Module] = [inner]
    outlet = nn.Dropout(side.dropout)
    if config.feed_context:
        parts = [ContextConcat(), inner]
    elif config.attention != "none":
        look = SourceAttention(side.hidden_size, score=config.attention, memory_size=input_size, size=config.attention_dim)
        if config.attention_placement == "before":
            parts = [StepwiseDecoder(inner, AttentionBeforeStep(look))]
        else:  # what is fed back is dropped as what the head reads
            read_out, outlet = (
                AttentionalOutput(look, side.hidden_size, memory_size=input_size, dropout=side.dropout),
                nn.Dropout(0.0),
            )
            parts = [StepwiseDecoder(inner, InputFeeding(read_out))] if config.input_feeding else [inner, read_out]
    layers = [Layer(part, NoSkip(), norm=nn.Identity()) for part in parts]
    positions = build.input_position_encoding(side.position_encoding, side.input_dim(), max_positions=max_positions)
    return Stack(layers, positions=positions, final_norm=outlet)


def decoder_stack(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    make = attention_decoder if config.decoder.traits.attends else recurrent_decoder
    return make(config, max_positions=max_positions)


def init_xavier(stack: Stack) -> None:
    """Matrices of attention and feed-forward layers by Glorot's rule, as in the first Transformer; biases at zero."""
    for name, part in stack.layers.named_modules():
        if isinstance(part, nn.Linear) and ".mixer." in name:  # what joins layers keeps its own start
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def init_torch_default(stack: Stack) -> None:
    """Cells start as torch's own do: forget gates that start open are for hundreds of steps, and showed no gain on words."""
    for part in stack.modules():
        if isinstance(part, nn.RNNBase):
            part.reset_parameters()


def scale(config: EmbeddedStackConfig, *, output: bool) -> float:
    """What an embedding is multiplied by: one that is the output as well is small there and loud here."""
    return config.hidden_size**0.5 if config.traits.small_init or output else 1.0


def scales(config: Seq2SeqConfig) -> tuple[float, float]:
    """What the embeddings of the source and of the target are multiplied by."""
    target = scale(config.decoder, output=config.tie_embeddings)
    return target if config.share_embeddings else scale(config.encoder, output=False), target


def embedding(config: EmbeddedStackConfig, vocab_size: int, *, output: bool) -> nn.Embedding:
    made = nn.Embedding(vocab_size, config.input_dim())  # as loud as states are: smaller ones learn several times slower
    if config.traits.small_init or output:
        nn.init.normal_(made.weight, std=config.hidden_size**-0.5)
    return made


def encoder_decoder(
    config: Seq2SeqConfig, *, source_vocab_size: int, target_vocab_size: int, max_positions: int, vocabulary: str
) -> EncoderDecoder:
    """The model of a filled table, freshly initialised from torch's default generator."""
    encoder, decoder = config.encoder, config.decoder
    target = embedding(decoder, target_vocab_size, output=config.tie_embeddings)
    source = target if config.share_embeddings else embedding(encoder, source_vocab_size, output=False)
    source_loud, embedding_scale = scales(config)
    drops = [side.dropout if config.embedding_dropout is None else config.embedding_dropout for side in (encoder, decoder)]
    stacks = (
        build.stack(encoder, context_length=max_positions, input_size=encoder.input_dim()),
        decoder_stack(config, max_positions=max_positions),
    )
    for side, stack in zip((encoder, decoder), stacks, strict=True):
        (init_xavier if side.traits.small_init else init_torch_default)(stack)
    if encoder.embedding_norm:
        stacks[0].input_proj = build.norm(
            encoder.norm if encoder.norm != "none" else "layer", encoder.input_dim(), eps=encoder.norm_eps
        )
    cap = None if config.logit_softcap == "none" else float(config.logit_softcap)
    head = LMHead(
        decoder.hidden_size, target_vocab_size, logit_softcap=cap, weight=target.weight if config.tie_embeddings else None
    )
    summary = last_state if encoder.traits.state else mean_value
    embedder = TokenEmbedder(source, scale=source_loud, dropout=drops[0])
    return EncoderDecoder(
        Encoder(embedder, stacks[0], summary=summary, reverse_source=encoder.reverse_source),
        Decoder(TokenEmbedder(target, scale=embedding_scale, dropout=drops[1]), stacks[1]),
        PointerGeneratorOutput(head, decoder.hidden_size, memory_size=encoder.hidden_size)
        if config.copy_mechanism
        else VocabularyOutput(head),
        vocabulary=vocabulary,
    )
