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
from weft.models.pair_tables import Seq2SeqTable
from weft.models.tables import EmbeddedTable
from weft.nn.attention import Headless
from weft.nn.bridge import Copied, Projected, Reminder
from weft.nn.connections import Plain
from weft.nn.copying import Generate, GenerateOrCopy
from weft.nn.cross import Before, CrossAttention, Feed, InputFeeding, Look, ReadOut
from weft.nn.heads import TokenHead
from weft.nn.memory import Memory
from weft.nn.positions import NoPositions
from weft.nn.recurrent import last
from weft.nn.stack import Layer, Stack
from weft.nn.state import leaves
from weft.nn.two_way import flipped

Summary = Callable[[Tensor, Tensor, tuple[Any, ...]], Tensor]


class TokenFront(nn.Module):
    """Tokens as vectors: (B, T) -> (B, T, D)."""

    def __init__(self, embedding: nn.Embedding, *, scale: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.scale, self.dropout = embedding, scale, nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(tokens) * self.scale)
        return x


def last_state(values: Tensor, keep: Tensor, states: tuple[Any, ...]) -> Tensor:
    """Where the uppermost recurrent layer stopped."""
    return leaves(states[-1])[0]


def mean_value(values: Tensor, keep: Tensor, states: tuple[Any, ...]) -> Tensor:
    """The mean over a row's real positions."""
    real = keep[..., None].to(values.dtype)
    return (values * real).sum(1) / real.sum(1)


@runtime_checkable
class ReadsSource(Protocol):
    """What reads a source, maybe from its end."""

    reverse: bool


class Encoder(nn.Module):
    """Reads a source into a memory."""

    def __init__(self, front: TokenFront, stack: Stack, *, summary: Summary, reverse: bool = False) -> None:
        super().__init__()
        self.front, self.stack, self.summary, self.reverse = front, stack, summary, reverse

    def forward(self, source: Tensor, keep: Tensor) -> Memory:
        x = self.front(source)
        y, (_, states) = self.stack(flipped(x, keep) if self.reverse else x, None, keep)
        kept = tuple(state for state in states if leaves(state))
        return Memory(flipped(y, keep) if self.reverse else y, keep, kept, self.summary(y, keep, kept))


class Decoder(nn.Module):
    """Reads a target, knowing a source."""

    def __init__(self, front: TokenFront, stack: Stack) -> None:
        super().__init__()
        self.front, self.stack = front, stack

    def forward(self, tokens: Tensor, state: Any, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.stack(self.front(tokens), state, keep)
        return y, state


class EncoderDecoder(nn.Module):
    """P(next token | the source, the tokens so far)."""

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Generate | GenerateOrCopy, *, vocabulary: str) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head, self.vocabulary = encoder, decoder, head, vocabulary

    @property
    def longest(self) -> int | None:
        return self.decoder.stack.positions.longest

    @torch.no_grad()
    def row_bytes(self, tokens: int, state: Any = None) -> int:
        """The most bytes that one row takes while so many tokens are read: what its state grows by beyond `state`, that of its
        source, and log-probabilities twice."""
        prompt = self.head.head.bias.new_zeros(1, min(2, tokens), dtype=torch.long)
        states = state, self(prompt[:, :1], state)[1], self(prompt, state)[1]
        before, first, second = (sum(part.nbytes for part in leaves(state)) for state in states)
        return first - before + (tokens - 1) * (second - first) + 2 * self.head.head.bias.nbytes

    def matrices(self) -> set[str]:
        return build.matrices(self.encoder.stack, "encoder.stack") | build.matrices(self.decoder.stack, "decoder.stack")

    def encode(self, source: Tensor, keep: Tensor) -> Any:
        """The state of a decoder that has read nothing but the source, (B, S)."""
        memory = self.encoder(source, keep)
        return self.decoder.stack.given(memory), self.head.given(memory, source)

    def forward(self, tokens: Tensor, state: Any, keep: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T) -> what the head reads, (B, T, D), and the state after each row's last real token."""
        past, seen = state
        y, past = self.decoder(tokens, past, keep)
        return y, (past, seen)

    def loss(self, tokens: Tensor, targets: Tensor, state: Any, smoothing: float = 0.0) -> tuple[Tensor, Any]:
        """Nats of every target, (B, T), and the state; padding on the right needs no mask here: it lies in the future."""
        y, new = self(tokens, state)
        return self.head.loss(y, targets, state[1], smoothing), new

    def start(self, prompt: Tensor, keep: Tensor | None = None, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self(prompt, state, keep)
        return self.head(last(y, keep, None), state[1]), state

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, state = self(token[:, None], state)
        return self.head(y[:, 0], state[1]), state

    def score(self, tokens: Tensor, keep: Tensor | None = None, state: Any = None) -> Tensor:
        if tokens.size(1) < 2:  # no recurrent cell reads nothing
            return torch.zeros(tokens.size(0), 0, device=tokens.device)
        nats, _ = self.loss(tokens[:, :-1], tokens[:, 1:], state)
        return -nats if keep is None else -nats.masked_fill(~keep[:, 1:], 0.0)


# ---- from tables to parts


def cross_attention(table: Seq2SeqTable, layer: int) -> CrossAttention | Headless:
    side = table.decoder
    heads, size = side.cross_heads_of(layer)
    if not heads:
        return Headless(side.width, across=table.attention != "none")
    return CrossAttention(
        side.width,
        heads=heads,
        head_size=size,
        inlet=table.encoder.width,
        inner_norm=nn.RMSNorm(size, elementwise_affine=False) if side.qk_norm else None,
        narrow=table.attention == "none",
        dropout=side.attention_dropout or 0.0,
    )


def attention_decoder(table: Seq2SeqTable, *, longest: int) -> Stack:
    """Self-attention, attention to the source, feed-forward, and again."""
    side, mixers = table.decoder, list[nn.Module]()
    for layer in range(side.layers):
        own = build.mixer(side, layer, longest, inlet=side.width)
        mixers += [own, cross_attention(table, layer), *build.feed_forward(side)]
    positions = build.added_positions(side.positions, side.width, longest=longest)
    return build.layered(side, mixers, positions, inlet=side.width)


def beside(table: Seq2SeqTable) -> int:
    """How much stands beside a recurrent decoder's input: what was found before the step or fed back, or the summary."""
    if table.feeding:
        return table.decoder.width
    return table.encoder.width if table.every_step or table.place == "before" else 0


def recurrent_layers(table: Seq2SeqTable) -> Stack:
    """The recurrent layers of a decoder, each starting from the source."""
    side, mixers = table.decoder, list[nn.Module]()
    inlet = side.read() + beside(table)
    for layer in range(side.layers):
        mixer = build.mixer(side, layer, None, inlet=side.width if layer else inlet)
        if table.bridge == "copy":
            mixers.append(Copied(mixer, height=layer))
        else:
            mixers.append(Projected(mixer, side.width, inlet=table.encoder.width, parts=side.traits.state))
        mixers += build.feed_forward(side)
    # what looks at the source is not dropped: once, at the very top, is enough
    return build.layered(side, mixers, NoPositions(), inlet=inlet, drop_top=False)


def recurrent_decoder(table: Seq2SeqTable, *, longest: int) -> Stack:
    """Recurrent layers, with attention before or after the step, or with a bridge alone."""
    side, inlet = table.decoder, table.encoder.width
    inner = recurrent_layers(table)
    parts: list[nn.Module] = [inner]
    outlet = nn.Dropout(side.dropout)
    if table.every_step:
        parts = [Reminder(), inner]
    elif table.attention != "none":
        look = Look(side.width, score=table.attention, inlet=inlet, size=table.attention_size)
        if table.place == "before":
            parts = [Feed(inner, Before(look))]
        else:  # what is fed back is dropped as what the head reads
            read_out, outlet = ReadOut(look, side.width, inlet=inlet, dropout=side.dropout), nn.Dropout(0.0)
            parts = [Feed(inner, InputFeeding(read_out))] if table.feeding else [inner, read_out]
    layers = [Layer(part, Plain(), norm=nn.Identity()) for part in parts]
    positions = build.added_positions(side.positions, side.read(), longest=longest)
    return Stack(layers, positions=positions, outlet=outlet)


def decoder_stack(table: Seq2SeqTable, *, longest: int) -> Stack:
    make = attention_decoder if table.decoder.traits.attends else recurrent_decoder
    return make(table, longest=longest)


def spread_weights(stack: Stack) -> None:
    """Matrices of attention and feed-forward layers by Glorot's rule, as in the first Transformer; biases at zero."""
    for name, part in stack.layers.named_modules():
        if isinstance(part, nn.Linear) and ".mixer." in name:  # what joins layers keeps its own start
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def plain_gates(stack: Stack) -> None:
    """Cells start as torch's own do: forget gates that start open are for hundreds of steps, and showed no gain on words."""
    for part in stack.modules():
        if isinstance(part, nn.RNNBase):
            part.reset_parameters()


def scale(table: EmbeddedTable, *, output: bool) -> float:
    """What an embedding is multiplied by: one that is the output as well is small there and loud here."""
    return table.width**0.5 if table.traits.small_init or output else 1.0


def scales(table: Seq2SeqTable) -> tuple[float, float]:
    """What the embeddings of the source and of the target are multiplied by."""
    target = scale(table.decoder, output=table.tied)
    return target if table.shared else scale(table.encoder, output=False), target


def embedding(table: EmbeddedTable, words: int, *, output: bool) -> nn.Embedding:
    made = nn.Embedding(words, table.read())  # as loud as states are: smaller ones learn several times slower
    if table.traits.small_init or output:
        nn.init.normal_(made.weight, std=table.width**-0.5)
    return made


def encoder_decoder(
    table: Seq2SeqTable, *, source_words: int, target_words: int, longest: int, vocabulary: str
) -> EncoderDecoder:
    """The model of a filled table, freshly initialised from torch's default generator."""
    encoder, decoder = table.encoder, table.decoder
    target = embedding(decoder, target_words, output=table.tied)
    source = target if table.shared else embedding(encoder, source_words, output=False)
    source_loud, loud = scales(table)
    drops = [side.dropout if table.embedding_dropout is None else table.embedding_dropout for side in (encoder, decoder)]
    stacks = build.stack(encoder, window=longest, inlet=encoder.read()), decoder_stack(table, longest=longest)
    for side, stack in zip((encoder, decoder), stacks, strict=True):
        (spread_weights if side.traits.small_init else plain_gates)(stack)
    if encoder.embedding_norm:
        stacks[0].inlet = build.norm(encoder.norm if encoder.norm != "none" else "layer", encoder.read(), eps=encoder.norm_eps)
    cap = None if table.cap == "none" else float(table.cap)
    head = TokenHead(decoder.width, target_words, cap=cap, weight=target.weight if table.tied else None)
    summary = last_state if encoder.traits.state else mean_value
    front = TokenFront(source, scale=source_loud, dropout=drops[0])
    return EncoderDecoder(
        Encoder(front, stacks[0], summary=summary, reverse=encoder.reverse),
        Decoder(TokenFront(target, scale=loud, dropout=drops[1]), stacks[1]),
        GenerateOrCopy(head, decoder.width, inlet=encoder.width) if table.copying else Generate(head),
        vocabulary=vocabulary,
    )
