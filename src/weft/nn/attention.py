"""Self-attention with a key-value cache, and the feed-forward layer of a Transformer.

Shapes: B batch size, T queries, C keys (cached and new), D hidden size, H heads, E head size.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft.nn.attention_step import SelfAttentionStep
from weft.nn.choices import GATED_ACTIVATIONS
from weft.nn.decode_step import FeedForwardStep, MixerStep
from weft.nn.fused_swiglu import fused_swiglu
from weft.nn.kernels import is_compiled, is_recorded
from weft.nn.linear import OneDNNLinear
from weft.nn.memory import Memory
from weft.nn.packing import in_same_text, is_packed, positions_in_texts
from weft.nn.positions import PositionEncoding
from weft.nn.state import BeamCache, KVCache


class ScaledDotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(E)) v, computed by torch's fused kernel.

    A module without parameters, so that a forward hook can record its inputs by name.
    """

    def __init__(self, dropout: float = 0.0, *, scale: float | None = None) -> None:
        super().__init__()
        self.dropout, self.scale = dropout, scale  # scale of the scores; None: 1 / sqrt(E)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=self.scale)

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention weights (B, H, T, C) for the same inputs; the fused kernel does not return them."""
        scores = q @ k.transpose(-2, -1) * (q.size(-1) ** -0.5 if self.scale is None else self.scale)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        # a query without visible keys gets zeros, as in the kernel; softmax alone would give NaN
        return scores.softmax(-1).masked_fill(scores == float("-inf"), 0.0)


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017).

        head_h = softmax(q_h k_h^T / sqrt(E)) v_h,  y = W_o [head_1; ...; head_H]

    Causal by default: a position sees itself and the positions before it, `context_length` positions at most if that is set.
    With context_length="bidirectional" it sees the whole text. The texts of packed rows (`weft.nn.packing`) do not see each
    other. State: the key-value cache.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int | None = None,
        positions: PositionEncoding | None = None,
        qk_norm: nn.Module | None = None,
        context_length: int | Literal["bidirectional"] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        head_dim = head_dim or dim // num_heads
        self.num_heads = num_heads
        self.bidirectional = context_length == "bidirectional"
        self.context_length = context_length if isinstance(context_length, int) else None
        self.positions = positions or PositionEncoding()
        self.qk_norm = qk_norm or nn.Identity()  # applied to queries and keys
        self.to_qkv = OneDNNLinear(dim, 3 * num_heads * head_dim)
        self.to_out = OneDNNLinear(num_heads * head_dim, dim)
        self.attend = ScaledDotProductAttention(dropout)

    def position_encoding(self) -> PositionEncoding:
        return self.positions

    def share_positions(self, positions: PositionEncoding) -> None:
        self.positions = positions

    def forward(
        self, x: Tensor, state: KVCache | BeamCache | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, KVCache | BeamCache]:
        if self.bidirectional and state is not None:
            raise ValueError("bidirectional layers need the whole sequence at once")
        if isinstance(state, BeamCache):
            return self._step_beams(x, state)
        qkv = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1))  # (B, T, 3, H, E)
        positions = torch.arange(x.size(1), device=x.device)[None]  # (1 or B, T)
        if state is not None:
            state = KVCache(*state)  # a state that was read from a file is a plain tuple
            positions = positions + state.positions.amax(1, keepdim=True) + 1
        texts = token_mask if token_mask is not None and is_packed(token_mask) else None
        if texts is not None:
            positions, token_mask = positions_in_texts(texts), texts > 0
        q, k, v = self.heads(qkv, positions, None if state is not None else x.size(1))
        key_positions = positions.expand(x.size(0), -1) if token_mask is None else torch.where(token_mask, positions, -1)
        if state is not None:
            k, v = torch.cat([state.keys, k], dim=2), torch.cat([state.values, v], dim=2)
            key_positions = torch.cat([state.positions, key_positions], dim=1)
        # a whole text needs no mask tensor: the kernel applies the causal mask itself. No token sees the padding after it, and
        # in training nothing else is read
        within_context = self.bidirectional or self.context_length is None or x.size(1) <= self.context_length
        hides_padding = token_mask is None or (self.training and texts is None and not self.bidirectional)
        is_whole = state is None and hides_padding and within_context
        visible_positions = positions if is_whole else key_positions
        bias = self.positions.attention_bias(q, positions, visible_positions)
        mask = None if is_whole and (bias is None or self.bidirectional) else self.visible(positions, visible_positions)
        if mask is not None and texts is not None:
            mask = mask & in_same_text(texts)
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        y = self.attend(q, k, v, mask, mask is None and not self.bidirectional)
        return self.to_out(y.transpose(1, 2).flatten(2)), self.trim_cache(k, v, key_positions)

    def heads(self, qkv: Tensor, positions: Tensor, bound: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, T, E) from their projection (B, T, 3, H, E). All positions are below `bound`, if it
        is given."""
        table = self.positions.stored_rotations(bound) if is_compiled(qkv) or is_recorded(qkv) else None
        if table is not None:
            from weft.nn.attention_input import attention_input  # defining its operators takes time, and few models need them

            return attention_input(qkv.contiguous(), table, positions, normalizes=isinstance(self.qk_norm, nn.RMSNorm))
        # not slices: their backward pass fills the rest with zeros
        if isinstance(self.qk_norm, nn.Identity) and not self.positions.rotates:
            q, k, v = qkv.unbind(2)  # its backward pass stacks the gradients in the layout of qkv, which needs no copy
            return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        qk, v = torch.split(qkv.permute(2, 0, 3, 1, 4), [2, 1])
        q, k = self.positions.rotate(self.qk_norm(qk), positions, bound)
        return q, k, v.squeeze(0)

    def _step_beams(self, x: Tensor, cache: BeamCache) -> tuple[Tensor, BeamCache]:
        """`forward` for one more token of each hypothesis (A * K, 1, D), which become the K queries of their sentence."""
        num_sentences, num_beams, _ = cache.visible.shape
        qkv = self.to_qkv(x).view(num_sentences, num_beams, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # (3, A, H, K, E)
        positions = (cache.positions.amax(1, keepdim=True) + 1).expand(-1, num_beams)  # hypotheses have the same length
        q, k = self.positions.rotate(self.qk_norm(qkv[:2]), positions)
        k, v = torch.cat([cache.keys, k], dim=2), torch.cat([cache.values, qkv[2]], dim=2)
        key_positions = torch.cat([cache.positions, positions], dim=1)
        itself = torch.eye(num_beams, dtype=torch.bool, device=x.device).expand(num_sentences, -1, -1)
        visible = torch.cat([cache.visible, itself], dim=2)  # (A, K, C)
        if self.context_length is not None:
            visible = visible & (positions[:, :, None] - key_positions[:, None, :] < self.context_length)
        bias = self.positions.attention_bias(q, positions, key_positions)
        mask = visible[:, None] if bias is None else bias.masked_fill(~visible[:, None], float("-inf"))
        y = self.attend(q, k, v, mask, False)  # (A, H, K, E)
        return self.to_out(y.transpose(1, 2).reshape(*x.shape[:2], -1)), BeamCache(k, v, key_positions, visible)

    def lean_step(self) -> MixerStep:
        return SelfAttentionStep(self)

    def init_state(self, memory: Memory) -> None:
        """No state: self-attention does not depend on the source."""

    def visible(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """`_mask`, faster for a single query, than which no key is newer, and of which none is too old if there are few."""
        sees_all = self.context_length is None or key_positions.size(1) <= self.context_length
        return _is_token(key_positions) if positions.size(1) == 1 and sees_all else self._mask(positions, key_positions)

    def _mask(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """True for the keys that each query may see, (B, 1, T or 1, C)."""
        if self.bidirectional:
            return _is_token(key_positions)
        distance = positions[:, None, :, None] - key_positions[:, None, None, :]
        allowed = (distance >= 0) & _is_token(key_positions)
        return allowed if self.context_length is None else allowed & (distance < self.context_length)

    def trim_cache(self, k: Tensor, v: Tensor, key_positions: Tensor) -> KVCache:
        """The key-value cache, without keys that no later query can see.

        It is trimmed only when it reaches twice the context length, because trimming copies, and by position, because rows of
        different lengths have their padding in different columns.
        """
        if self.bidirectional or self.context_length is None or key_positions.size(1) < 2 * self.context_length:
            return KVCache(k, v, key_positions)
        key_positions, columns = key_positions.topk(self.context_length, dim=1)
        key_positions, columns = key_positions.flip(1), columns.flip(1)  # oldest first
        index = columns[:, None, :, None].expand(-1, k.size(1), -1, k.size(3))
        return KVCache(k.gather(2, index), v.gather(2, index), key_positions)


def _is_token(key_positions: Tensor) -> Tensor:
    """Whether each column has a token, (B, 1, 1, C)."""
    return (key_positions >= 0)[:, None, None, :]


bidirectional_attention = partial(SelfAttention, context_length="bidirectional")


@runtime_checkable
class WithoutHeads(Protocol):
    """Attention whose heads are all pruned."""

    cross: bool | None  # True: cross-attention to all source positions; False: to the summary only; None: self-attention


class PrunedAttention(nn.Module):
    """Self-attention or cross-attention after all its heads are pruned: only the output bias is left, at every position.

    A mixer without state.
    """

    def __init__(self, dim: int, *, cross: bool | None = None) -> None:
        super().__init__()
        self.num_heads, self.cross = 0, cross
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        return self.bias.expand_as(x), ()

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()


class FusedGELU(nn.GELU):
    """x P(X <= x), where X is normally distributed (Hendrycks and Gimpel 2016), by one kernel where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_compiled(x):
            return F.gelu(x)
        from weft.nn.fused_gelu import fused_gelu  # defining its operators takes time, and few models need them

        y: Tensor = fused_gelu(x)
        return y


class SwiGLU(nn.Module):
    """silu(a) * b, where a and b are the halves of the input (Shazeer 2020), by one kernel where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        if is_recorded(x):
            return fused_swiglu(x)
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


class TanhGEGLU(nn.Module):
    """gelu(a) * b, where a and b are the halves of the input (Shazeer 2020), with the tanh approximation, as in T5 1.1."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return F.gelu(a, approximate="tanh") * b


class _SquaredReLU(torch.autograd.Function):
    """`SquaredReLU` in recorded steps: without a compiler, the plain backward pass reads and writes twice as many bytes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = F.relu(x)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        gradient: Tensor = (grad * y).mul_(2)  # zero where x is negative, as y is
        return gradient


class SquaredReLU(nn.Module):
    """relu(x)^2 (So et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        if is_recorded(x):
            output: Tensor = _SquaredReLU.apply(x)  # type: ignore[no-untyped-call]
            return output
        y = F.relu(x)
        return y * y  # not its square: autocast has squares in float32, twice the bytes for the same numbers


class TanhGELU(nn.Module):
    """The tanh approximation of GELU, as in GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": FusedGELU,
    "gelu-tanh": TanhGELU,
    "relu": nn.ReLU,
    "squared-relu": SquaredReLU,
    "silu": nn.SiLU,
    "swiglu": SwiGLU,
    "geglu-tanh": TanhGEGLU,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward layer (Vaswani et al. 2017).

        y = W_2 f(W_1 x + b_1) + b_2

    A mixer without state.
    """

    def __init__(self, dim: int, *, ffn_dim: int, activation: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        num_inputs = 2 if activation in GATED_ACTIVATIONS else 1
        self.up_proj: nn.Linear = OneDNNLinear(dim, num_inputs * ffn_dim, bias=bias)
        self.activation = ACTIVATIONS[activation]()
        self.to_out: nn.Linear = OneDNNLinear(ffn_dim, dim, bias=bias)

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        return self.to_out(self.activation(self.up_proj(x))), ()

    def lean_step(self) -> MixerStep:
        return FeedForwardStep(self)

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()
