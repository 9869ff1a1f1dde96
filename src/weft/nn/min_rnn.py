"""minGRU and minLSTM (Feng et al. 2024, "Were RNNs All We Needed?"): recurrent mixers that are parallel over time.

Their gates depend on the input alone: one matrix product serves all positions, and what remains is an elementwise recurrence
(`scan.py`). One layer therefore only adds up what it reads, with weights that decay. Gates that depend on what was read before
need a second layer, which is why presets have two, with feed-forward sublayers and skip connections.

Shapes: B batch size, T sequence length, D hidden size, I input size (D by default).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weft.nn.linear import OneDNNLinear
from weft.nn.recurrent import last_token_state
from weft.nn.scan import gated_scan

MIN_TIME, MAX_TIME = 1.25, 16.0  # time constants of channels at the start of training, in positions


class MinGRU(nn.Module):
    """Minimal gated recurrent unit.

        z_t = sigmoid(U_z x_t + b_z)                  update gate
        c_t = U x_t + b
        h_t = (1 - z_t) * h_{t-1} + z_t * c_t

    State: h, (B, D), at least in float32.
    """

    num_gates = 1

    def __init__(self, dim: int, *, input_size: int | None = None) -> None:
        super().__init__()
        self.input_proj = OneDNNLinear(input_size or dim, (self.num_gates + 1) * dim)  # of the gates, then of the candidates
        self.init_gates(self.input_proj.bias.detach().chunk(self.num_gates + 1))

    def init_gates(self, biases: tuple[Tensor, ...]) -> None:
        """Time constants 1 / z from MIN_TIME to MAX_TIME positions, their logarithms at random: some channels forget soon,
        others pass gradients over many positions (after Tallec and Ollivier 2018, whose times are uniform)."""
        times = torch.empty_like(biases[0]).uniform_(math.log(MIN_TIME), math.log(MAX_TIME)).exp()
        biases[0].copy_(-(times - 1).log())

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = gated_scan(self.input_proj(x), state, self.num_gates)
        return y.to(x.dtype), last_token_state(y, token_mask, state)


class MinLSTM(MinGRU):
    """Minimal long short-term memory, whose gates are divided by their sum.

        f_t, i_t = sigmoid(U x_t + b)                 forget and input gate
        c_t      = U_c x_t + b_c
        h_t      = (f_t * h_{t-1} + i_t * c_t) / (f_t + i_t)

    State: h, (B, D), at least in float32.
    """

    num_gates = 2

    def init_gates(self, biases: tuple[Tensor, ...]) -> None:
        """As in minGRU: i / (f + i) = sigmoid(b) if the biases of f and i are -b and b."""
        forget, new, _ = biases
        super().init_gates((new,))
        forget.copy_(-new)
