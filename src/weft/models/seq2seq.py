"""Encoder-decoders: an embedder and a stack on each side, connected by attention, a bridge, or both.

The source is part of the decoder's state: `encode` computes the state, and `loss`, `start`, `step` and `score` read it.
Decoding therefore treats an encoder-decoder like a language model (`weft.decode.incremental.IncrementalModel`).

Shapes: B batch size, S source length, T target length, D hidden size, V vocabulary size.
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
from weft.nn.decode_step import StackStep, Step, guarded
from weft.nn.dropout import IntegerDropout
from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.pointer_generator import PointerGeneratorOutput, VocabularyOutput
from weft.nn.positions import PositionEncoding
from weft.nn.recurrent import last_token_state
from weft.nn.skip_connections import NoSkip
from weft.nn.stack import Layer, Stack
from weft.nn.state import tree_leaves

# from encoder outputs (B, S, D), token mask (B, S) and final states to one vector per source, (B, D)
Summary = Callable[[Tensor, Tensor, tuple[Any, ...]], Tensor]


class TokenEmbedder(nn.Module):
    """Scaled token embeddings: (B, T) to (B, T, D)."""

    def __init__(self, embedding: nn.Embedding, *, scale: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.scale, self.dropout = embedding, scale, IntegerDropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens) * self.scale
        return self.dropout(x) if self.training else x


def last_state(values: Tensor, token_mask: Tensor, states: tuple[Any, ...]) -> Tensor:
    """Summary: the final hidden state of the topmost recurrent layer."""
    return tree_leaves(states[-1])[0]


def mean_value(values: Tensor, token_mask: Tensor, states: tuple[Any, ...]) -> Tensor:
    """Summary: the mean over the tokens of each row."""
    mask = token_mask[..., None].to(values.dtype)
    return (values * mask).sum(1) / mask.sum(1)


@runtime_checkable
class ReadsSource(Protocol):
    """An encoder that may read the source backward."""

    reverse_source: bool


class Encoder(nn.Module):
    """Encode a source into a memory. With `reverse_source`, the stack reads it backward (Sutskever et al. 2014)."""

    def __init__(self, embedder: TokenEmbedder, stack: Stack, *, summary: Summary, reverse_source: bool = False) -> None:
        super().__init__()
        self.embedder, self.stack, self.summary, self.reverse_source = embedder, stack, summary, reverse_source

    def forward(self, source: Tensor, token_mask: Tensor) -> Memory:
        x = self.embedder(source)
        y, (_, states) = self.stack(reverse_sequences(x, token_mask) if self.reverse_source else x, None, token_mask)
        states = tuple(state for state in states if tree_leaves(state))
        summary = self.summary(y, token_mask, states)
        return Memory(reverse_sequences(y, token_mask) if self.reverse_source else y, token_mask, states, summary)


class Decoder(nn.Module):
    """Read target tokens, conditioned on the source through the state."""

    def __init__(self, embedder: TokenEmbedder, stack: Stack) -> None:
        super().__init__()
        self.embedder, self.stack = embedder, stack

    def forward(self, tokens: Tensor, state: Any, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.stack(self.embedder(tokens), state, token_mask)
        return y, state


class EncoderDecoder(nn.Module):
    """P(y_t | source, y_1, ..., y_{t-1})."""

    def __init__(
        self, encoder: Encoder, decoder: Decoder, head: VocabularyOutput | PointerGeneratorOutput, *, vocabulary: str
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head, self.vocabulary = encoder, decoder, head, vocabulary

    def encode(self, source: Tensor, token_mask: Tensor) -> Any:
        """The initial state of the decoder, from the source (B, S)."""
        memory = self.encoder(source, token_mask)
        return self.decoder.stack.init_state(memory), self.head.init_state(memory, source)

    def forward(self, tokens: Tensor, state: Any, token_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Tokens (B, T) to hidden states (B, T, D), and the state after each row's last token."""
        decoder_state, head_state = state
        y, decoder_state = self.decoder(tokens, decoder_state, token_mask)
        return y, (decoder_state, head_state)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        state: Any,
        label_smoothing: float = 0.0,
        *,
        target_mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Cross-entropy of each target in nats, (B, T), and the state. Right padding needs no mask: it is in the future. Only
        experts read `target_mask` (B, T), which is False on padding."""
        y, new_state = self(tokens, state, self.decoder.stack.padding_mask(target_mask))
        return self.head.loss(y, targets, state[1], label_smoothing), new_state

    def log_probs(self, tokens: Tensor, state: Any, *, target_mask: Tensor | None = None) -> Tensor:
        """The log-probabilities of the tokens after each one, (B, T, V), for training."""
        y, _ = self(tokens, state, self.decoder.stack.padding_mask(target_mask))
        return self.head.log_probs(y, state[1])

    def start(self, prompt: Tensor, token_mask: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self(prompt, state, token_mask)
        return self.head(last_token_state(y, token_mask, None), state[1]), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(token[:, None], state)
        return self.head(y[:, 0], state[1]), state

    def stepper(self) -> Step[Any]:
        """`step` without the calls of modules; see `weft.nn.decode_step`."""
        embedder, read, head = self.decoder.embedder, StackStep(self.decoder.stack), self.head.lean()
        weight, scale = embedder.embedding.weight, embedder.scale

        def step(token: Tensor, state: Any) -> tuple[Tensor, Any]:
            y, decoder_state = read(weight.index_select(0, token) * scale, state[0])
            return head(y, state[1]), (decoder_state, state[1])

        return guarded(self, step, self.step)

    def score(self, tokens: Tensor, token_mask: Tensor | None = None, state: Any = None) -> Tensor:
        if tokens.size(1) < 2:  # recurrent layers do not accept empty sequences
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        loss, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -loss if token_mask is None else -loss.masked_fill(~token_mask[:, 1:], 0.0)

    @property
    def max_positions(self) -> int | None:
        return self.decoder.stack.positions.max_positions

    @torch.no_grad()
    def bytes_per_row(self, tokens: int, state: Any = None) -> int:
        """Peak bytes per row while reading this many tokens: the growth of its state beyond `state`, the state of its source,
        and two copies of the log-probabilities."""
        prompt = self.head.head.bias.new_zeros(1, min(2, tokens), dtype=torch.long)
        states = state, self(prompt[:, :1], state)[1], self(prompt, state)[1]
        initial, after_one, after_two = (sum(leaf.nbytes for leaf in tree_leaves(part)) for part in states)
        return after_one - initial + (tokens - 1) * (after_two - after_one) + 2 * self.head.head.bias.nbytes

    def muon_parameters(self) -> set[str]:
        """Names of the weight matrices between embeddings and output layer, which Muon optimizes."""
        return build.muon_parameters(self.encoder.stack, "encoder.stack") | build.muon_parameters(
            self.decoder.stack, "decoder.stack"
        )


# ---- building a model from its configuration


def cross_attention(config: Seq2SeqConfig, layer: int) -> nn.Module:
    """The cross-attention of a layer of a Transformer decoder."""
    side = config.decoder
    num_heads, head_dim = side.cross_heads_in_layer(layer)
    if not num_heads:
        return PrunedAttention(side.hidden_size, cross=config.attention != "none")
    attention = CrossAttention(
        side.hidden_size,
        num_heads=num_heads,
        head_dim=head_dim,
        memory_size=config.encoder.hidden_size,
        qk_norm=nn.RMSNorm(head_dim, elementwise_affine=False) if side.qk_norm else None,
        summary_only=config.attention == "none",
        dropout=side.attention_dropout or 0.0,
    )
    return build.with_bias(side, attention)


def attention_decoder(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    """A Transformer decoder: self-attention, cross-attention and feed-forward in each layer."""
    side, mixers = config.decoder, list[nn.Module]()
    for layer in range(side.num_layers):
        self_attention = build.mixer(side, layer, max_positions, input_size=side.hidden_size)
        mixers += [self_attention, cross_attention(config, layer), *build.feed_forward(side)]
    positions = build.input_position_encoding(side.position_encoding, side.hidden_size, max_positions=max_positions)
    return build.build_stack(side, mixers, positions, input_size=side.hidden_size)


def extra_input_size(config: Seq2SeqConfig) -> int:
    """Size of the vector that is concatenated to a recurrent decoder's input: context vector, previous output, or summary."""
    if config.input_feeding:
        return config.decoder.hidden_size
    return config.encoder.hidden_size if config.feed_context or config.attention_placement == "before" else 0


def recurrent_layers(config: Seq2SeqConfig) -> Stack:
    """The recurrent layers of a decoder, each initialized from the source by its bridge."""
    side, mixers = config.decoder, list[nn.Module]()
    input_size = side.input_dim() + extra_input_size(config)
    for layer in range(side.num_layers):
        mixer = build.mixer(side, layer, None, input_size=side.hidden_size if layer else input_size)
        if config.bridge == "copy":
            mixers.append(CopyBridge(mixer, layer_index=layer))
        else:
            mixers.append(
                ProjectionBridge(
                    mixer,
                    side.hidden_size,
                    memory_size=config.encoder.hidden_size,
                    num_state_vectors=side.traits.num_state_vectors,
                )
            )
        mixers += build.feed_forward(side)
    # no dropout on the attention's query: the decoder applies it once, to its output
    return build.build_stack(side, mixers, PositionEncoding(), input_size=input_size, dropout_on_top=False)


def recurrent_decoder(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    """Recurrent layers with attention before or after the step, or with a bridge alone."""
    side, memory_size = config.decoder, config.encoder.hidden_size
    inner = recurrent_layers(config)
    mixers: list[nn.Module] = [inner]
    dropout = IntegerDropout(side.dropout)
    if config.feed_context:
        mixers = [ContextConcat(), inner]
    elif config.attention != "none":
        attention = SourceAttention(
            side.hidden_size, score=config.attention, memory_size=memory_size, attention_dim=config.attention_dim
        )
        if config.attention_placement == "before":
            gate = nn.Linear(side.hidden_size, 1) if config.attention_gate else None
            mixers = [StepwiseDecoder(inner, AttentionBeforeStep(attention, gate=gate))]
        else:  # dropout is inside the attentional output, so that input feeding sees the same vector as the output layer
            output = AttentionalOutput(attention, side.hidden_size, memory_size=memory_size, dropout=side.dropout)
            dropout = IntegerDropout(0.0)
            mixers = [StepwiseDecoder(inner, InputFeeding(output))] if config.input_feeding else [inner, output]
    layers = [Layer(mixer, NoSkip(), norm=nn.Identity()) for mixer in mixers]
    positions = build.input_position_encoding(side.position_encoding, side.input_dim(), max_positions=max_positions)
    return Stack(layers, positions=positions, final_norm=dropout)


def decoder_stack(config: Seq2SeqConfig, *, max_positions: int) -> Stack:
    """The stack of the decoder: of a Transformer, or recurrent."""
    build_decoder = attention_decoder if config.decoder.traits.attends else recurrent_decoder
    return build_decoder(config, max_positions=max_positions)


def init_xavier(stack: Stack) -> None:
    """Xavier initialization of attention and feed-forward layers, as in the original Transformer."""
    build.init_projections(stack, nn.init.xavier_uniform_)


def init_torch_default(stack: Stack) -> None:
    """Reset recurrent layers to torch's initialization: a forget-gate bias of 1 helps over hundreds of steps, and gave no
    gain on short words."""
    for module in stack.modules():
        if isinstance(module, nn.RNNBase):
            module.reset_parameters()


def embedding_scale(config: EmbeddedStackConfig, *, tied: bool, scaled: bool | None = None) -> float:
    """The factor on embeddings. By default, those that are initialized small, such as those tied to the output, are scaled."""
    is_scaled = config.traits.small_init or tied if scaled is None else scaled
    return config.hidden_size**0.5 if is_scaled else 1.0


def embedding_scales(config: Seq2SeqConfig) -> tuple[float, float]:
    """The factors on the embeddings of the source and the target."""
    scaled = config.scale_embeddings
    target = embedding_scale(config.decoder, tied=config.tie_embeddings, scaled=scaled)
    return target if config.share_embeddings else embedding_scale(config.encoder, tied=False, scaled=scaled), target


def embedding(config: EmbeddedStackConfig, vocab_size: int, *, tied: bool) -> nn.Embedding:
    """The token embeddings of one side, initialized."""
    # torch's N(0, 1) for recurrent layers: with smaller embeddings they learn several times slower
    table = nn.Embedding(vocab_size, config.input_dim())
    if config.traits.small_init or tied:
        nn.init.normal_(table.weight, std=config.hidden_size**-0.5)
    return table


def add_embedding_norm(config: EmbeddedStackConfig, stack: Stack) -> None:
    """Normalize the sum of embeddings and positions, if the configuration says so."""
    if config.embedding_norm:
        norm = config.norm if config.norm != "none" else "layernorm"
        stack.input_proj = build.norm(norm, config.input_dim(), eps=config.norm_eps)


def encoder_decoder(
    config: Seq2SeqConfig, *, source_vocab_size: int, target_vocab_size: int, max_positions: int, vocabulary: str
) -> EncoderDecoder:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    encoder, decoder = config.encoder, config.decoder
    target = embedding(decoder, target_vocab_size, tied=config.tie_embeddings)
    source = target if config.share_embeddings else embedding(encoder, source_vocab_size, tied=False)
    source_scale, target_scale = embedding_scales(config)
    dropouts = [side.dropout if config.embedding_dropout is None else config.embedding_dropout for side in (encoder, decoder)]
    encoder_layers = build.stack(encoder, context_length=max_positions, input_size=encoder.input_dim())
    decoder_layers = decoder_stack(config, max_positions=max_positions)
    for side, layers in ((encoder, encoder_layers), (decoder, decoder_layers)):
        (init_xavier if side.traits.small_init else init_torch_default)(layers)
        add_embedding_norm(side, layers)
    head = LMHead(
        decoder.hidden_size,
        target_vocab_size,
        logit_softcap=config.logit_softcap or None,
        weight=target.weight if config.tie_embeddings else None,
        bias=config.head_bias,
    )
    summary = last_state if encoder.traits.num_state_vectors else mean_value
    source_embedder = TokenEmbedder(source, scale=source_scale, dropout=dropouts[0])
    return EncoderDecoder(
        Encoder(source_embedder, encoder_layers, summary=summary, reverse_source=encoder.reverse_source),
        Decoder(TokenEmbedder(target, scale=target_scale, dropout=dropouts[1]), decoder_layers),
        PointerGeneratorOutput(head, decoder.hidden_size, memory_size=encoder.hidden_size)
        if config.copy_mechanism
        else VocabularyOutput(head),
        vocabulary=vocabulary,
    )
