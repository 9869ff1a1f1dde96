"""The loss of a run's network on validation or test data, for any task: it measures the cost of a change to the network.

Batches are drawn once, including the masks of masked language models, so that two losses differ only by the change. Label
smoothing, dropout and class weights of training do not apply.
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

BATCH_TOKENS = 4096


class EvalBatch(NamedTuple):
    """A batch of evaluation data."""

    total_loss: Callable[[], Tensor]  # computes the loss in nats, summed over the items; differentiable
    num_items: int  # predicted items: tokens, texts, words or windows
    num_tokens: int  # input tokens


def _source(run: AnyRun, data: Files | None) -> Any:
    """The files of `data`, read with the run's data options, or else its validation data."""
    if data is not None:
        return eval_source(run.directory, run.config, data)
    return first_split(run.directory, run.config, ("valid",))[1]


def _total_loss(objective: Objective, model: nn.Module, batch: Any, device: torch.device) -> Tensor:
    return objective.loss(model, map_tensors(batch, lambda tensor: tensor.to(device)), None).total


def _examples(run: AnyRun, task: NetworkTask[Any], data: Files | None, work_dir: Path) -> Examples[Any]:
    """The data as training examples."""
    config, source = run.config, _source(run, data)
    corpora = tokenize(run.spec, config, run.vocabulary, source, work_dir)
    columns = [with_bos(corpus, run.directory.path, run.vocabulary) for corpus in corpora]
    task.check_lengths(config, columns, run.model.max_positions)
    examples: Examples[Any] = task.encode(config, run.vocabulary, source, columns, learned=True)
    return examples


def eval_batches(run: AnyRun, data: Files | None, work_dir: Path, *, max_tokens: int, seed: int = 0) -> list[EvalBatch]:
    """Random batches until they have `max_tokens` tokens, the same for the same seed. Token files are written to `work_dir`."""
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("loss", "not available for an ensemble", "measure one run")
    task = run.config.preset.estimator.network_task
    if task is None:
        raise run.wrong_task("the loss is that of a network")
    examples = _examples(run, task, data, work_dir)
    objective = task.objective(run.config, run.vocabulary, None, None, run.device)
    all_batches = list(example_batches(examples, examples.known(), batch_tokens=BATCH_TOKENS))
    batches, num_tokens = list[EvalBatch](), 0
    for i in np.random.default_rng(seed).permutation(len(all_batches)).tolist():
        if num_tokens >= max_tokens:
            break
        members = all_batches[i]
        total_loss = partial(_total_loss, objective, run.model, examples.batch(members), run.device)
        batches.append(EvalBatch(total_loss, examples.loss_count(members), examples.tokens(members)))
        num_tokens += batches[-1].num_tokens
    if not sum(batch.num_items for batch in batches):
        raise DataError("data", "no examples to compute the loss on", "check that it has examples with known labels")
    return batches


@torch.inference_mode()
def mean_loss(batches: Iterable[EvalBatch]) -> float:
    """The loss in nats per item: token, text, word or window."""
    losses = [(batch.total_loss().double().item(), batch.num_items) for batch in batches]
    return sum(total for total, _ in losses) / sum(num_items for _, num_items in losses)
