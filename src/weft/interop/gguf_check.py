"""Read a GGUF file and compute its model in the way of llama.cpp, to compare it with the run that it is from.

Shapes: B batch size, T positions, D hidden size, H heads, E head size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _rotated(x: Tensor, theta: float, *, neighbors: bool) -> Tensor:
    """Rotary positions of (B, H, T, E): of neighbors, or of coordinates that are half a head apart."""
    half = x.size(-1) // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.size(2), dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    pairs = x.view(*x.shape[:-1], half, 2) if neighbors else x.view(*x.shape[:-1], 2, half).transpose(-1, -2)
    first, second = pairs.unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return (turned if neighbors else turned.transpose(-1, -2)).flatten(-2)


class GGUFModel:
    """The model of a file: tensors in float32, and the values of its header."""

    def __init__(self, path: Path) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self.arch: str = reader.fields["general.architecture"].contents()
        self.fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        self.tensors = {
            tensor.name: torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
            for tensor in reader.tensors
        }

    def _value(self, name: str) -> Any:
        return self.fields[f"{self.arch}.{name}"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self._value("attention.layer_norm_rms_epsilon"))

    def _heads(self, x: Tensor, num_heads: int) -> Tensor:
        """(B, T, H * E) to (B, H, T, E)."""
        return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2).contiguous()

    def _attention(self, x: Tensor, layer: str) -> Tensor:
        num_heads: int = self._value("attention.head_count")
        q, k, v = (self._heads(self._linear(x, f"{layer}attn_{part}"), num_heads) for part in "qkv")
        if f"{layer}attn_q_norm.weight" in self.tensors:
            q, k = self._norm(q, f"{layer}attn_q_norm"), self._norm(k, f"{layer}attn_k_norm")
        theta, neighbors = self._value("rope.freq_base"), self.arch == "llama"
        q, k = (_rotated(part, theta, neighbors=neighbors) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._linear(y.transpose(1, 2).flatten(2), f"{layer}attn_output")

    def log_probs(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to log-probabilities (B, T, V)."""
        x = self.tensors["token_embd.weight"][tokens]
        for index in range(self._value("block_count")):
            layer = f"blk.{index}."
            x = x + self._attention(self._norm(x, f"{layer}attn_norm"), layer)
            h = self._norm(x, f"{layer}ffn_norm")
            gated = F.silu(self._linear(h, f"{layer}ffn_gate")) * self._linear(h, f"{layer}ffn_up")
            x = x + self._linear(gated, f"{layer}ffn_down")
        output = "output" if "output.weight" in self.tensors else "token_embd"  # tied
        return self._linear(self._norm(x, "output_norm"), output).log_softmax(-1)
