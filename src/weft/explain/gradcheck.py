"""Gradient check: analytical derivatives compared with numerical ones, for the model, data and task of any run file.

Central differences, (f(w + e) - f(w - e)) / 2e, in float64 on a few rows of the run's own first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.data.batching import map_tensors
from weft.errors import ConfigError
from weft.runs.config import RunConfig
from weft.runs.job import Job
from weft.runs.run_dir import RunDir
from weft.tasks.prepare import prepare
from weft.training.neural import make_objective, read_training

STEP_SIZE = 1e-5  # e
MAX_ROWS = 2  # of the batch
# errors are relative to the derivative, or to the larger of these two if that is smaller
MIN_RELATIVE_GRADIENT = 1e-2  # fraction of the largest derivative of the tensor
MIN_GRADIENT = 1e-5  # below it, rounding errors of the two losses dominate
NOISE = 0.05  # added to all weights, because gradients do not pass through weights that are initialized to 0


class TensorCheck(NamedTuple):
    """The check of one weight tensor."""

    name: str
    shape: tuple[int, ...]
    entries: int  # number of compared entries
    max_gradient: float  # largest absolute analytical derivative of the tensor
    error: float  # largest relative error of the compared entries


class ExactMath(TorchFunctionMode):
    """Ignores casts from float64 to float32, which output heads do for mixed-precision training."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


class LossFunction(NamedTuple):
    """A model, and its loss on a fixed batch."""

    model: nn.Module
    loss: Callable[[], Tensor]


def make_loss_function(config: RunConfig, work_dir: Path, callback: Any) -> LossFunction:
    """The model of a run file in float64, near its initialization, and its loss on its own data, tokenized in `work_dir`."""
    task = config.preset.estimator.network_task
    if task is None:
        raise ConfigError("model.arch", f"{config.arch!r} is trained without gradients")
    directory = RunDir(work_dir)
    tokenizer, columns = prepare(config.spec, config, directory, callback)
    job = Job(config, directory, tokenizer, columns, callback)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model: Any = task.build(config, tokenizer)()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(NOISE * torch.randn_like(weight))
    train, sampler = read_training(task, job)
    objective = make_objective(task, job, train, model.max_positions)
    batch = map_tensors(sampler.batch(0, 0), lambda tensor: tensor[:MAX_ROWS])
    model = model.double().eval()
    rng_state = torch.get_rng_state()

    def loss() -> Tensor:
        with torch.random.fork_rng(devices=[]), ExactMath():
            torch.set_rng_state(rng_state)  # the masks of a masked language model must be the same each time
            result = objective.loss(model, batch, None)
            return result.total / result.count

    return LossFunction(model, loss)


def _select_entries(gradient: np.ndarray, entries: int, rng: np.random.Generator) -> list[int]:
    """Flat indices: the largest derivative, random ones that are not 0, and one from all entries."""
    magnitudes = np.abs(gradient.reshape(-1))
    nonzero = np.flatnonzero(magnitudes)
    sampled = rng.choice(nonzero, min(len(nonzero), max(0, entries - 2)), replace=False).tolist() if len(nonzero) else []
    indices = [int(magnitudes.argmax()), *sampled, int(rng.integers(len(magnitudes)))]
    return list(dict.fromkeys(indices))[:entries]


@torch.no_grad()
def _numerical_gradient(weight: Tensor, index: int, loss: Callable[[], Tensor]) -> float:
    """The central difference for one entry of a weight, by its flat index."""
    flat = weight.view(-1)
    original, losses = flat[index].item(), list[float]()
    for step in (STEP_SIZE, -STEP_SIZE):
        flat[index] = original + step
        losses.append(loss().item())
    flat[index] = original
    return (losses[0] - losses[1]) / (2 * STEP_SIZE)


def check_tensors(function: LossFunction, *, entries: int, seed: int = 0) -> Iterator[TensorCheck]:
    """Compare `entries` derivatives of each weight tensor with numerical ones."""
    rng = np.random.default_rng(seed)
    names, weights = zip(*function.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(function.loss(), weights, allow_unused=True)
    for name, weight, gradient in zip(names, weights, gradients, strict=True):
        analytical = np.zeros(tuple(weight.shape)) if gradient is None else gradient.numpy()
        max_gradient, max_error = float(np.abs(analytical).max()), 0.0
        indices = _select_entries(analytical, entries, rng)
        for index in indices:
            expected, numerical = float(analytical.reshape(-1)[index]), _numerical_gradient(weight, index, function.loss)
            scale = max(abs(expected), abs(numerical), MIN_RELATIVE_GRADIENT * max_gradient, MIN_GRADIENT)
            max_error = max(max_error, abs(expected - numerical) / scale)
        yield TensorCheck(name, tuple(weight.shape), len(indices), max_gradient, max_error)
