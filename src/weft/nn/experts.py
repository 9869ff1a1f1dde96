"""Mixture of experts: a feed-forward layer with many experts, of which each token uses a few.

    p = softmax(W_r x),  y = sum_{e in top K of p} g_e FFN_e(x),  g_e = p_e / (sum of the top K)

(Shazeer et al. 2017; Jiang et al. 2024, Mixtral). With K = 1, the gate is p_e itself (Fedus et al. 2022, Switch), because a
gate that is always 1 has no gradient. Experts have no capacity: none refuses a token, so rows stay independent.

`every_expert` is the equation. `grouped_experts` computes the same with one matrix product for all experts.

Shapes: B batch size, T sequence length, N = B T tokens, D hidden size, E experts, K experts per token, F hidden size of an
expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.attention import ACTIVATIONS, FeedForward
from weft.nn.choices import GATED_ACTIVATIONS
from weft.nn.memory import Memory

GROUPED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of torch's grouped matrix product
ALIGNMENT = 16  # bytes: what the rows of its matrices must be a multiple of


class Routing(NamedTuple):
    """The experts of each token."""

    experts: Tensor  # int64 (N, K), the most probable first
    gates: Tensor  # float32 (N, K): their weights
    probs: Tensor  # float32 (N, E): the probabilities of all experts


@runtime_checkable
class ChoosesExperts(Protocol):
    """A module that chooses the experts of each token."""

    num_experts: int
    experts_per_token: int


class RouterLinear(nn.Linear):
    """The matrix of a router. Its own class, because LoRA does not adapt routers."""


class Router(nn.Module):
    """Chooses the experts of each token. It computes in float32: near ties decide which expert is used."""

    def __init__(self, dim: int, *, num_experts: int, experts_per_token: int) -> None:
        super().__init__()
        self.num_experts, self.experts_per_token = num_experts, experts_per_token
        self.linear = RouterLinear(dim, num_experts, bias=False)

    def forward(self, x: Tensor) -> Routing:
        """Tokens (N, D) to their experts."""
        dtype = x.dtype if x.dtype == torch.float64 else torch.float32
        with torch.autocast(x.device.type, enabled=False):
            probs = F.linear(x.to(dtype), self.linear.weight.to(dtype)).softmax(-1)
        gates, experts = probs.topk(self.experts_per_token, dim=-1)
        if self.experts_per_token > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(experts, gates, probs)


@runtime_checkable
class HasMatrices(Protocol):
    """A module with one matrix per expert."""

    @property
    def matrices(self) -> Tensor:
        """The matrices (E, out_features, in_features), without gradients; they share the memory of the weight."""


class ExpertLinear(nn.Module):
    """One matrix per expert, without biases: weight (E, out_features, in_features), initialized like nn.Linear."""

    def __init__(self, num_experts: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, out_features, in_features))
        nn.init.uniform_(self.weight, -(in_features**-0.5), in_features**-0.5)

    @property
    def matrices(self) -> Tensor:
        return self.weight.detach()


class Experts(nn.Module):
    """E feed-forward layers without biases: FFN_e(x) = W_2e f(W_1e x)."""

    def __init__(self, dim: int, *, num_experts: int, ffn_dim: int, activation: str) -> None:
        super().__init__()
        num_inputs = 2 if activation in GATED_ACTIVATIONS else 1
        self.up_proj = ExpertLinear(num_experts, dim, num_inputs * ffn_dim)
        self.activation = ACTIVATIONS[activation]()
        self.to_out = ExpertLinear(num_experts, ffn_dim, dim)
        # here, not at the top of the file: it imports the compiler, which takes longer than importing torch
        self.not_compiled: Any = torch.compiler.disable(grouped_experts)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor, routing: Routing, token_mask: Tensor | None = None) -> Tensor:
        """Tokens (N, D) to outputs (N, D), 0 where the mask (N,) is False."""
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        if not can_group(self, dtype):
            return every_expert(self, x.to(dtype), routing, token_mask)
        # torch.compile knows the product of bfloat16 only
        compute = grouped_experts if dtype == torch.bfloat16 else self.not_compiled
        y: Tensor = compute(self, x.to(dtype), routing, token_mask)
        return y


def every_expert(experts: Experts, x: Tensor, routing: Routing, token_mask: Tensor | None = None) -> Tensor:
    """The equation: the outputs of all experts for all tokens (N, D), weighted with gates that are 0 for all but K experts."""
    gates = torch.zeros_like(routing.probs).scatter(1, routing.experts, routing.gates)
    if token_mask is not None:
        gates = gates.masked_fill(~token_mask[:, None], 0.0)
    y = torch.zeros_like(x)
    for expert, (w_1, w_2) in enumerate(zip(experts.up_proj.weight, experts.to_out.weight, strict=True)):
        output = F.linear(experts.activation(F.linear(x, w_1.to(x.dtype))), w_2.to(x.dtype))
        y = y + gates[:, expert : expert + 1].to(x.dtype) * output
    return y


# ---- the same with grouped matrix products


def can_group(experts: Experts, dtype: torch.dtype) -> bool:
    """Whether torch has a grouped matrix product for the sizes of these experts and this type."""
    sizes = (*experts.up_proj.weight.shape[1:], *experts.to_out.weight.shape[1:])
    return dtype in GROUPED_DTYPES and not any(size * dtype.itemsize % ALIGNMENT for size in sizes)


class _Sort(torch.autograd.Function):
    """Tokens (N, D) as (N K, D): token order[i] // K in row i. Its gradient gathers: adding rows with atomic operations, as
    the gradient of indexing does, would be slower and not reproducible."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.copies = len(order) // len(x)
        return x[order // ctx.copies]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad[inverse].view(-1, ctx.copies, grad.size(-1)).sum(1), None, None


class _Unsort(torch.autograd.Function):
    """Rows in the order before `_Sort`, (N K, D)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return y[inverse]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return grad[order], None, None


def grouped_experts(experts: Experts, x: Tensor, routing: Routing, token_mask: Tensor | None = None) -> Tensor:
    """The outputs (N, D) of `every_expert`: each expert multiplies the tokens that it takes, which are sorted by expert."""
    num_experts = len(experts.up_proj.weight)
    chosen = routing.experts if token_mask is None else routing.experts.masked_fill(~token_mask[:, None], num_experts)
    by_expert, order = chosen.flatten().sort(stable=True)  # padding is behind the tokens of the last expert
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ends = torch.searchsorted(by_expert, torch.arange(num_experts, device=x.device), right=True).to(torch.int32)
    rows: Tensor = _Sort.apply(x, order, inverse)  # type: ignore[no-untyped-call]
    # the product leaves rows that belong to no expert undefined, and their gradients as well
    is_token = None if token_mask is None else (by_expert < num_experts)[:, None]
    hidden = grouped_mm(_zero_outside(rows, is_token), experts.up_proj.weight, ends)
    hidden = experts.activation(_zero_outside(hidden, is_token))
    outputs = _zero_outside(grouped_mm(hidden, experts.to_out.weight, ends), is_token)
    unsorted: Tensor = _Unsort.apply(outputs, order, inverse)  # type: ignore[no-untyped-call]
    return (unsorted.view(*routing.gates.shape, -1) * routing.gates[..., None].to(x.dtype)).sum(1)


def _zero_outside(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Rows with zeros where the mask is False; no factor, because 0 * NaN is NaN."""
    return rows if mask is None else torch.where(mask, rows, 0.0)


def grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows (N, in) times the matrix of their expert, weight (E, out, in): expert e has the rows from ends[e - 1] to ends[e]."""
    return F.grouped_mm(rows, weight.to(rows.dtype).mT, offs=ends)


# ---- the layer


class ExpertLoad(NamedTuple):
    """How the tokens of a batch, without padding, are distributed over the experts of a layer."""

    counts: Tensor  # float32 (E,): number of tokens of each expert
    probs: Tensor  # float32 (E,): summed probabilities, with gradients
    num_tokens: Tensor  # float32 ()

    def balance_loss(self) -> Tensor:
        """E sum_e (fraction of the tokens that use expert e) (mean probability of e) (Fedus et al. 2022, equation 4). It is K
        if all experts are used equally, and up to E if K of them take all tokens."""
        total = self.num_tokens.clamp(min=1.0)
        return len(self.counts) * (self.counts / total * self.probs / total).sum()


def expert_load(routing: Routing, token_mask: Tensor | None = None) -> ExpertLoad:
    """The load of the experts, from the routing of N tokens; `token_mask` (N,) is False on padding."""
    num_experts = routing.probs.size(1)
    is_token = torch.ones_like(routing.probs[:, 0]) if token_mask is None else token_mask.to(routing.probs.dtype)
    uses = (routing.experts[..., None] == torch.arange(num_experts, device=routing.experts.device)).any(1)  # (N, E)
    # sums, not matrix products, which autocast would compute in bfloat16
    counts, probs = ((values * is_token[:, None]).sum(0) for values in (uses, routing.probs))
    return ExpertLoad(counts, probs, is_token.sum())


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of experts, in place of `FeedForward`.

    With a shared expert, its output is added for every token (Dai et al. 2024, DeepSeekMoE). A mixer without state. It needs
    the token mask of a batch with padding, which is neither routed nor counted.
    """

    def __init__(
        self, router: Router, experts: Experts, *, shared: FeedForward | None = None, balance_loss_weight: float = 0.0
    ) -> None:
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared
        self.balance_loss_weight = balance_loss_weight
        self.recorded: list[ExpertLoad] | None = None  # of the calls since `start_recording`; None: not recording

    def forward(self, x: Tensor, state: tuple[()] = (), token_mask: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
        if token_mask is not None:
            token_mask = token_mask != 0  # of packed rows, it has the numbers of texts
            x = x.masked_fill(~token_mask[..., None], 0.0)  # attention may leave any value on padding
        tokens, mask = x.flatten(0, 1), None if token_mask is None else token_mask.flatten()
        routing = self.router(tokens)
        if self.training or self.recorded is not None:
            # in training always: activation checkpointing repeats this call when nothing is recorded any more
            load = expert_load(routing, mask)
            if self.recorded is not None:
                self.recorded.append(load)
        y = self.experts(tokens, routing, mask).view(x.shape)
        return y if self.shared is None else y + self.shared(x)[0], ()

    def init_state(self, memory: Memory) -> tuple[()]:
        return ()

    def start_recording(self) -> None:
        """Record the load of the calls that follow, for the training loss."""
        self.recorded = []

    def stop_recording(self) -> ExpertLoad:
        """The load of all calls since `start_recording`."""
        first, *others = self.recorded or [self._no_load()]
        self.recorded = None
        for other in others:
            first = ExpertLoad(first.counts + other.counts, first.probs + other.probs, first.num_tokens + other.num_tokens)
        return first

    def _no_load(self) -> ExpertLoad:
        zeros = torch.zeros(self.router.num_experts, device=self.router.linear.weight.device)
        return ExpertLoad(zeros, zeros, zeros.sum())


@runtime_checkable
class _RecordsLoad(Protocol):
    """What tells a layer with experts. Methods alone: since Python 3.12, isinstance does not see the submodules of a module."""

    def start_recording(self) -> None: ...

    def stop_recording(self) -> ExpertLoad: ...


class RoutesTokens(_RecordsLoad, Protocol):
    """A layer that distributes tokens over experts."""

    router: Router
    experts: Experts
    balance_loss_weight: float


def expert_layers(model: nn.Module) -> dict[str, RoutesTokens]:
    """The mixture-of-experts layers of a model by name, in its order."""
    return {name: cast(RoutesTokens, module) for name, module in model.named_modules() if isinstance(module, _RecordsLoad)}


def num_active_parameters(model: nn.Module) -> int:
    """The number of parameters that one token uses: of the experts of a layer, K of E."""
    total = sum(weight.numel() for weight in model.parameters())
    for layer in expert_layers(model).values():
        num_experts, used = layer.router.num_experts, layer.router.experts_per_token
        total -= sum(weight.numel() for weight in layer.experts.parameters()) // num_experts * (num_experts - used)
    return total
