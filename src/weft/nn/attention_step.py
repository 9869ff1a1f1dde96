"""Steps of self-attention and cross-attention for one more token per row; see `weft.nn.decode_step`.

Keys and values are appended in place. A step returns views of buffers with room for more columns. A state that contains all
filled columns of its buffer is extended without a copy; any other state is copied into a new buffer. So no state changes after
it was returned, as `weft.nn.state` demands: columns that a view contains are never written again.

Shapes: B rows, A sentences with K beams each, T columns that a step adds (1, or K for beams), C columns of the cache, H heads,
E head size, D hidden size, S source length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.decode_step import Shared, lean, lean_linear, lean_sum
from weft.nn.positions import PositionEncoding
from weft.nn.state import BeamCache, KVCache, SharedState

if TYPE_CHECKING:
    from weft.nn.attention import SelfAttention
    from weft.nn.cross_attention import CrossAttention

MIN_ROOM = 64  # columns that a new buffer has room for; more, an eighth, if it contains many


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as torch's kernel adds it to the scores: 0 where it is True, -inf elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))


class Encoding:
    """What a position encoding does to queries, keys and scores. Layers with the same angles share the factors of the rotation:
    they have the same key."""

    def __init__(self, encoding: PositionEncoding, heads: tuple[int, int]) -> None:
        self.rotation, self.attention_bias = encoding.rotation, encoding.attention_bias
        self.key: tuple[float, ...] | None = None
        self.has_bias = False
        if type(encoding) is PositionEncoding:  # it does nothing
            return
        position = torch.ones(1, 1, dtype=torch.long)
        factors = encoding.rotation(position)
        self.key = None if factors is None else tuple(factors[1].flatten().tolist())
        queries = torch.zeros(1, heads[0], 1, heads[1])  # on a CPU, like the weights
        self.has_bias = encoding.attention_bias(queries, position, position) is not None


class Columns:
    """The positions of the columns of a cache (B, C), with those of the tokens to come, `width` per step. What follows from
    them is computed once for all steps, and the views of a step once for all layers."""

    def __init__(self, positions: Tensor, room: int, width: int, dtype: torch.dtype) -> None:
        self.given, self.width, self.dtype = positions, width, dtype
        following = F.pad(positions, (1, 0), value=-1).amax(1, keepdim=True) + 1  # 0 if there are no columns
        self.positions = torch.cat([positions, following + torch.arange(room).div(width, rounding_mode="floor")], 1)
        distance = self.positions[:, 1:] - self.positions[:, :-1]
        # without empty columns, every query sees every column before it
        self.is_dense = width == 1 and bool((distance == 1).all() & (self.positions[:, 0] >= 0).all())
        self.mask = None if self.is_dense else additive(self.positions >= 0, dtype)[:, None, None]
        is_same = bool((self.positions == self.positions[:1]).all())
        self.distinct = self.positions[:1] if is_same else self.positions  # one row if all rows are the same
        self.length, self.view = -1, positions  # the columns of the current step
        self.factors: dict[Any, tuple[Tensor, ...]] = {}  # of rotations, for all columns
        self.newest: dict[Any, tuple[Tensor, ...]] = {}  # the same for the columns that the current step adds

    def matches(self, positions: Tensor, width: int) -> bool:
        """Whether a cache with these columns can share this object."""
        return self.width == width and self.given.shape == positions.shape and torch.equal(self.given, positions)

    def advance(self, length: int) -> None:
        """Set the current step to the one that fills this many columns."""
        if self.length != length:
            self.length, self.view = length, self.positions.narrow(1, 0, length)
            self.newest.clear()

    def rotate(self, x: Tensor, encoding: Encoding) -> Tensor:
        """Queries or keys (B, N, H, T, E) of the tokens that the current step adds, rotated."""
        if encoding.key is None:
            return x
        if encoding.key not in self.newest:
            self.newest[encoding.key] = self._newest_factors(encoding)
        cos, sin = self.newest[encoding.key]
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([second, first], -1) * sin

    def _newest_factors(self, encoding: Encoding) -> tuple[Tensor, ...]:
        """Cosines and sines of the tokens that the current step adds, (1 or B, 1, 1, T, E)."""
        if encoding.key not in self.factors:
            parts = encoding.rotation(self.distinct) or ()
            self.factors[encoding.key] = tuple(part[:, None, None].to(self.dtype) for part in parts)
        return tuple(part.narrow(3, self.length - self.width, self.width) for part in self.factors[encoding.key])


class Buffer:
    """Keys and values of one layer, (B, 2, H, capacity, E), of which the first `length` columns are filled."""

    def __init__(self, cache: KVCache | BeamCache, columns: Columns) -> None:
        num_rows, num_heads, self.length, size = cache.keys.shape
        self.columns, self.capacity = columns, columns.positions.size(1)
        self.parts = cache.keys.new_empty(num_rows, 2, num_heads, self.capacity, size)
        if self.length:
            self.parts[:, 0, :, : self.length], self.parts[:, 1, :, : self.length] = cache.keys, cache.values
        self.keys, self.values = self.parts.unbind(1)
        room = self.parts.narrow(3, self.length, self.capacity - self.length)
        # for the columns of each step to come; `chunk` takes longer
        self.rooms = iter(room.split_with_sizes([columns.width] * (room.size(3) // columns.width), 3))

    def append(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Write the keys and values (B, H, T, E) of the next columns, or both in one tensor (B, 2, H, T, E). Returns those of
        all columns (B, H, C, E)."""
        room = next(self.rooms)
        if values is None:
            room.copy_(keys)
        else:
            room.select(1, 0).copy_(keys)
            room.select(1, 1).copy_(values)
        self.length += self.columns.width
        return self.keys.narrow(2, 0, self.length), self.values.narrow(2, 0, self.length)


class BufferedKVCache(KVCache):
    """A cache whose tensors are views of a buffer."""

    buffer: Buffer | None = None  # None after `select` and other functions, which copy the tensors

    def own_buffer(self) -> Buffer | None:
        return self.buffer


class BufferedBeamCache(BeamCache):
    """The same for beams."""

    buffer: Buffer | None = None

    def own_buffer(self) -> Buffer | None:
        return self.buffer

    def with_visible(self, visible: Tensor) -> BufferedBeamCache:
        cache = self._replace(visible=visible)
        cache.buffer = self.buffer
        return cache


def buffer_of(cache: KVCache | BeamCache, width: int, shared: Shared) -> Buffer:
    """The buffer that contains a cache and nothing more, with room for `width` columns: its own, or a new one."""
    buffer: Buffer | None = cache.own_buffer()
    # a longer buffer was extended by another step from the same state; the first steps of a wide beam have fewer hypotheses
    if (
        buffer is not None
        and buffer.columns.width == width
        and buffer.length == cache.keys.size(2)
        and buffer.length + width <= buffer.capacity
    ):
        return buffer
    columns: Columns | None = shared.columns
    if columns is None or not columns.matches(cache.positions, width):
        room = (max(MIN_ROOM, cache.positions.size(1) // 8) // width + 1) * width
        columns = shared.columns = Columns(cache.positions, room, width, cache.keys.dtype)
    return Buffer(cache, columns)


class Projection(NamedTuple):
    """The queries, keys and values of a step, and views of them."""

    output: Tensor  # (B, 3 * H * E)
    qkv: Tensor  # (B, 3, H, T, E)
    q: Tensor  # (B, H, T, E)
    kv: Tensor  # (B, 2, H, T, E)

    @classmethod
    def view(cls, output: Tensor, num_heads: int, size: int, width: int) -> Projection:
        """The parts of the output (B * T, 3 * H * E) of a linear layer, for heads of this size, and T = width."""
        qkv = output.view(-1, width, 3, num_heads, size).permute(0, 2, 3, 1, 4)
        return cls(output, qkv, qkv.select(1, 0), qkv.narrow(1, 1, 2))


class BeamMask(NamedTuple):
    """The columns that each beam sees, which all layers share."""

    before: Tensor  # (A, K, C) without the columns of the step
    context_length: int | None
    visible: Tensor  # (A, K, C + K)
    mask: Tensor  # (A, 1, K, C + K), as it is added to the scores

    def serves(self, before: Tensor, context_length: int | None) -> bool:
        """Whether a layer with this cache can use it."""
        is_same = self.before is before or (self.before.shape == before.shape and torch.equal(self.before, before))
        return is_same and self.context_length == context_length


class SelfAttentionStep:
    """`SelfAttention.forward` for one position."""

    takes_vectors = True

    def __init__(self, mixer: SelfAttention) -> None:
        head_dim = mixer.to_out.in_features // mixer.num_heads
        self.mixer, self.encoding = mixer, Encoding(mixer.positions, (mixer.num_heads, head_dim))
        self.to_qkv, self.to_out = lean_linear(mixer.to_qkv), lean_sum(mixer.to_out)
        self.qk_norm = None if type(mixer.qk_norm) is nn.Identity else lean(mixer.qk_norm)
        self.is_plain = self.qk_norm is None and self.encoding.key is None  # queries and keys stay what they are
        self.num_heads, self.sizes, self.scale = mixer.num_heads, (mixer.num_heads, head_dim), mixer.attend.scale
        self.context_length = mixer.context_length
        self.has_bias = self.encoding.has_bias

    def __call__(self, x: Tensor, state: Any, shared: Shared, residual: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is None:
            num_rows = x.size(0) if x.dim() == 2 else 1
            empty = x.new_empty(num_rows, self.num_heads, 0, self.sizes[1])
            state = KVCache(empty, empty, empty.new_empty(num_rows, 0, dtype=torch.long))
        if isinstance(state, BeamCache):
            return self._step_beams(x, state, shared, residual)
        cache: KVCache = state if isinstance(state, KVCache) else KVCache(*state)  # it was read from a file
        buffer = buffer_of(cache, 1, shared)
        columns = buffer.columns
        columns.advance(buffer.length + 1)
        q, k, v = self._project(x, buffer, shared)
        context_length = self.context_length
        if columns.mask is None and not self.has_bias and (context_length is None or columns.length <= context_length):
            y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, 1, E)
        else:
            y = self._attend(q, k, v, columns)
        output = self.to_out(y.reshape(*x.shape[:-1], -1), residual)
        if context_length is not None and columns.length >= 2 * context_length:
            return output, self.mixer.trim_cache(k, v, columns.view)
        new = BufferedKVCache(k, v, columns.view)
        new.buffer = buffer
        return output, new

    def _project(self, x: Tensor, buffer: Buffer, shared: Shared) -> tuple[Tensor, Tensor, Tensor]:
        """The queries (B, H, T, E) of the inputs (B * T, D), and all keys and values (B, H, C, E)."""
        width = buffer.columns.width
        projection: Projection | None = shared.scratch.get((self.sizes, width))
        if projection is None:
            output = x.new_empty(*x.shape[:-1], 3 * self.sizes[0] * self.sizes[1])
            projection = shared.scratch[self.sizes, width] = Projection.view(output, *self.sizes, width)
        output = self.to_qkv(x, projection.output)
        if output is not projection.output:
            projection = Projection.view(output, *self.sizes, width)
        if self.is_plain:
            return projection.q, *buffer.append(projection.kv)
        qk = self._normalized(projection.qkv, buffer.columns)
        return qk.select(1, 0), *buffer.append(qk.select(1, 1), projection.qkv.select(1, 2))

    def _normalized(self, qkv: Tensor, columns: Columns) -> Tensor:
        """Queries and keys (B, 2, H, T, E), normalized and rotated."""
        qk = qkv.narrow(1, 0, 2)
        return columns.rotate(qk if self.qk_norm is None else self.qk_norm(qk), self.encoding)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, columns: Columns) -> Tensor:
        num_columns, context_length = columns.length, self.context_length
        positions, mask = columns.view, columns.mask
        if context_length is None or num_columns <= context_length:
            mask = None if mask is None else mask.narrow(3, 0, num_columns)
        elif columns.is_dense:  # the query sees the newest columns
            start = num_columns - context_length
            k, v, positions = k[:, :, start:], v[:, :, start:], positions[:, start:]
        else:
            mask = additive(self.mixer.visible(positions[:, -1:], positions), columns.dtype)
        if self.has_bias:
            bias = self.encoding.attention_bias(q, positions[:, -1:], positions)
            mask = bias if mask is None or bias is None else bias + mask
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)

    def _step_beams(self, x: Tensor, cache: BeamCache, shared: Shared, residual: Tensor | None) -> tuple[Tensor, BeamCache]:
        """The tokens of the K beams are K columns of their sentence."""
        num_beams = cache.visible.size(1)
        buffer = buffer_of(cache, num_beams, shared)
        columns = buffer.columns
        columns.advance(buffer.length + num_beams)
        q, k, v = self._project(x, buffer, shared)
        beams = self._beam_mask(cache.visible, columns, shared)
        positions, mask = columns.view, beams.mask
        if self.has_bias:
            bias = self.encoding.attention_bias(q, positions[:, -num_beams:], positions)
            mask = mask if bias is None else bias + mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)  # (A, H, K, E)
        new = BufferedBeamCache(k, v, positions, beams.visible)
        new.buffer = buffer
        return self.to_out(y.transpose(1, 2).reshape(*x.shape[:-1], -1), residual), new

    def _beam_mask(self, before: Tensor, columns: Columns, shared: Shared) -> BeamMask:
        known: BeamMask | None = shared.beams
        if known is not None and known.serves(before, self.context_length):
            return known
        num_beams = before.size(1)
        itself = torch.eye(num_beams, dtype=torch.bool).expand(before.size(0), -1, -1)
        visible = torch.cat([before, itself], dim=2)
        if self.context_length is not None and columns.length > self.context_length:
            distance = columns.view[:, -1:] - columns.view
            visible = visible & (distance < self.context_length).unsqueeze(1)
        known = shared.beams = BeamMask(before, self.context_length, visible, additive(visible, columns.dtype).unsqueeze(1))
        return known


class CrossAttentionStep:
    """`CrossAttention.forward` for one position."""

    takes_vectors = False

    def __init__(self, mixer: CrossAttention) -> None:
        self.num_heads, self.scale = mixer.num_heads, mixer.attend.scale
        self.to_q, self.qk_norm, self.to_out = lean(mixer.to_q), lean(mixer.qk_norm), lean_sum(mixer.to_out)
        self.source_mask: Tensor | None = None  # of the latest step, and the same as it is added to the scores
        self.mask: Tensor | None = None

    def __call__(
        self, x: Tensor, state: SharedState, shared: Shared, residual: Tensor | None = None
    ) -> tuple[Tensor, SharedState]:
        k, v, source_mask = state.parts
        if self.source_mask is not source_mask:
            mask = None if bool(source_mask.all()) else additive(source_mask, k.dtype)[:, None, None]
            self.source_mask, self.mask = source_mask, mask
        q = self.to_q(x).view(k.size(0), -1, self.num_heads, k.size(-1)).transpose(1, 2)  # (A, H, K, E)
        y = F.scaled_dot_product_attention(self.qk_norm(q), k, v, attn_mask=self.mask, scale=self.scale)
        return self.to_out(y.transpose(1, 2).reshape(x.size(0), -1), residual), state
