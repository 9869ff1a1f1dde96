"""Are the gradients right? Analytical derivatives against numerical ones, for the model, data and task of any run file.

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

STEP = 1e-5
ROWS = 2  # of the batch
SMALL = 1e-2  # an error is measured against a derivative of at least this share of the largest of its tensor,
MIN_GRADIENT = 1e-5  # and at least this: below lies what rounding does to the difference of two losses
NOISE = 0.05  # on all weights: what starts at zero, as the heads of some kinds do, lets no gradient through


class TensorCheck(NamedTuple):
    """One tensor of weights."""

    name: str
    shape: tuple[int, ...]
    entries: int  # that were compared
    max_error: float  # of the analytical derivatives, all of them
    error: float  # the largest relative one


class ExactMath(TorchFunctionMode):
    """Keeps float64 where a model asks for float32: heads do, for those who train in less."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


class Problem(NamedTuple):
    """A model, and the loss it has on some rows of data."""

    model: nn.Module
    loss: Callable[[], Tensor]


def problem(config: RunConfig, place: Path, callback: Any) -> Problem:
    """The model of a run file in float64, near its initialization, and its own data, tokenized into `place`."""
    shape = config.preset.estimator.network_task
    if shape is None:
        raise ConfigError("model.arch", f"{config.arch!r} is trained without gradients")
    directory = RunDir(place)
    tokenizer, corpora = prepare(config.spec, config, directory, callback)
    job = Job(config, directory, tokenizer, corpora, callback)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        model: Any = shape.build(config, tokenizer)()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(NOISE * torch.randn_like(weight))
    train, order = read_training(shape, job)
    task = make_objective(shape, job, train, model.max_positions)
    batch = map_tensors(order.batch(0, 0), lambda part: part[:ROWS])
    model = model.double().eval()
    chance = torch.get_rng_state()

    def loss() -> Tensor:
        with torch.random.fork_rng(devices=[]), ExactMath():
            torch.set_rng_state(chance)  # masks are drawn, and must be the same each time
            found = task.loss(model, batch, None)
            return found.total / found.count

    return Problem(model, loss)


def _chosen(gradient: np.ndarray, entries: int, chance: np.random.Generator) -> list[int]:
    """Indices of entries: the largest derivative, a random one, and others that are not 0."""
    flat = np.abs(gradient.reshape(-1))
    others = np.flatnonzero(flat)
    drawn = chance.choice(others, min(len(others), max(0, entries - 2)), replace=False).tolist() if len(others) else []
    found = [int(flat.argmax()), *drawn, int(chance.integers(len(flat)))]
    return list(dict.fromkeys(found))[:entries]


@torch.no_grad()
def _numerical(weight: Tensor, at: int, loss: Callable[[], Tensor]) -> float:
    flat = weight.view(-1)
    before, found = flat[at].item(), list[float]()
    for step in (STEP, -STEP):
        flat[at] = before + step
        found.append(loss().item())
    flat[at] = before
    return (found[0] - found[1]) / (2 * STEP)


def check_tensors(given: Problem, *, entries: int, seed: int = 0) -> Iterator[TensorCheck]:
    """Each tensor of weights in turn: how far `entries` of its derivatives are from numerical ones."""
    chance = np.random.default_rng(seed)
    names, weights = zip(*given.model.named_parameters(), strict=True)
    found = torch.autograd.grad(given.loss(), weights, allow_unused=True)
    for name, weight, gradient in zip(names, weights, found, strict=True):
        exact = np.zeros(tuple(weight.shape)) if gradient is None else gradient.numpy()
        maximum, worst = float(np.abs(exact).max()), 0.0
        chosen = _chosen(exact, entries, chance)
        for at in chosen:
            analytical, numerical = float(exact.reshape(-1)[at]), _numerical(weight, at, given.loss)
            size = max(abs(analytical), abs(numerical), SMALL * maximum, MIN_GRADIENT)
            worst = max(worst, abs(analytical - numerical) / size)
        yield TensorCheck(name, tuple(weight.shape), len(chosen), maximum, worst)
