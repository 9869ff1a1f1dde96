"""The loss of a run's network on validation or test data, for any task, batch by batch: the cost of a change to the network.

The batches are fixed once, masks of masked language models included, so that two losses differ by the change alone. Nothing is
smoothed, dropped or balanced, as it may be in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.data.batching import map_tensors
from weft.data.bos import with_bos
from weft.data.bucketing import Examples, example_batches
from weft.errors import DataError, UsageError
from weft.runs.eval_data import Files, eval_source, first_split
from weft.runs.run import AnyRun
from weft.tasks.prepare import tokenize
from weft.training.neural import NetworkTask
from weft.training.objective import Objective

BATCH = 4096  # positions read at once


class EvalBatch(NamedTuple):
    """Some of the data."""

    nats: Callable[[], Tensor]  # summed; gradients flow from here
    items: int  # that are predicted: tokens, texts, words, windows
    size: int  # tokens read


def _source(run: AnyRun, data: Files | None) -> Any:
    """The files of `data`, read as the run's own are, or its own validation data."""
    if data is not None:
        return eval_source(run.directory, run.config, data)
    return first_split(run.directory, run.config, ("valid",))[1]


def _nats(objective: Objective, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
    return objective.loss(model, map_tensors(batch, lambda part: part.to(device)), None).total


def _examples(run: AnyRun, shape: NetworkTask[Any], data: Files | None, place: Path) -> Examples[Any]:
    """The data as the network learns from it."""
    config, source = run.config, _source(run, data)
    made = tokenize(run.spec, config, run.vocabulary, source, place)
    columns = [with_bos(corpus, run.directory.path, run.vocabulary) for corpus in made]
    shape.check_lengths(config, columns, run.model.max_positions)
    found: Examples[Any] = shape.encode(config, run.vocabulary, source, columns, learned=True)
    return found


def eval_batches(run: AnyRun, data: Files | None, place: Path, *, tokens: int, seed: int = 0) -> list[EvalBatch]:
    """About `tokens` tokens of the data that has a loss, drawn from all of it by chance but always the same; what must be
    written goes to `place`."""
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("loss", "not available for an ensemble", "measure one run")
    shape = run.config.preset.estimator.network_task
    if shape is None:
        raise run.wrong_task("the loss is that of a network")
    examples = _examples(run, shape, data, place)
    objective = shape.objective(run.config, run.vocabulary, None, None, run.device)
    groups, chosen, size = list(example_batches(examples, examples.known(), batch_tokens=BATCH)), list[EvalBatch](), 0
    for at in np.random.default_rng(seed).permutation(len(groups)).tolist():
        if size < tokens:
            members = groups[at]
            nats = partial(_nats, objective, run.model, examples.batch(members), run.device)
            chosen.append(EvalBatch(nats, examples.loss_count(members), examples.tokens(members)))
            size += chosen[-1].size
    if not sum(one.items for one in chosen):
        raise DataError("data", "no examples to compute the loss on", "check that it has examples with known labels")
    return chosen


@torch.inference_mode()
def loss(parts: Iterable[EvalBatch]) -> float:
    """Nats a token, text, word or window."""
    found = [(one.nats().double().item(), one.items) for one in parts]
    return sum(nats for nats, _ in found) / sum(items for _, items in found)
