"""AdamW and SGD, as torch computes them.

`torch.optim.AdamW` and `torch.optim.SGD` call the same functions, but their constructors import the compiler of torch even if
nothing is compiled, which takes as long as to import the rest of torch.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from weft.training.param_groups import ParamGroup
from weft.training.step_values import GradientScale

BETA1, EPS = 0.9, 1e-8


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019). Equal to `torch.optim.AdamW(fused=True)`."""

    def __init__(self, groups: list[ParamGroup], *, beta2: float) -> None:
        self.groups, self.beta2 = groups, beta2
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self, scale: GradientScale | None = None) -> None:
        """Change the weights. The kernel itself divides gradients by the scale, or changes nothing if the step is skipped."""
        for group in self.groups:
            weights = group.with_gradients()
            states = [self._state(weight) for weight in weights]
            adamw(
                weights,
                [weight.grad for weight in weights if weight.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                lr=group.lr,
                beta1=BETA1,
                beta2=self.beta2,
                eps=EPS,
                weight_decay=group.weight_decay,
                fused=True,
                grad_scale=None if scale is None else scale.divisor,
                found_inf=None if scale is None else scale.skips,
                amsgrad=False,
                maximize=False,
            )

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        state = self.state[weight]
        if not state:
            # one counter per weight: a weight may have been frozen at first
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state


class SGD:
    """Stochastic gradient descent with momentum. Equal to `torch.optim.SGD`."""

    def __init__(self, groups: list[ParamGroup], *, momentum: float) -> None:
        self.groups, self.momentum = groups, momentum
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self, scale: GradientScale | None = None) -> None:
        """Change the weights. The gradients of a step that is skipped are 0: momentum and weight decay still change weights."""
        for group in self.groups:
            weights = group.with_gradients()
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            if scale is not None and gradients:
                torch._foreach_div_(gradients, scale.divisor)
                for gradient in gradients:
                    gradient.masked_fill_(scale.skips > 0, 0.0)  # replaced, not multiplied: 0 times NaN is NaN
            buffers = [self.state[weight].get("momentum_buffer") if self.momentum else None for weight in weights]
            sgd(
                weights,
                gradients,
                buffers,
                lr=group.lr,
                momentum=self.momentum,
                weight_decay=group.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            for weight, buffer in zip(weights, buffers, strict=True):
                if buffer is not None:  # torch makes those that are not there
                    self.state[weight]["momentum_buffer"] = buffer
