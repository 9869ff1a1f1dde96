"""Properties common to the networks of all tasks: loss weights, batches and the largest batch for the memory check."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from label_runs import LabelRuns
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file
from toy_qa import make_questions, qa_run_file, write_tsv

from weft.config import override
from weft.data.batching import map_tensors
from weft.data.bucketing import Examples, example_batches
from weft.runs.job import Job
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.tasks.prepare import prepare
from weft.training.neural import NetworkTask, make_objective, read_training

NAMES = [
    "lm-windows", "lm-lines", "lm-stream", "masked-windows", "masked-lines", "pairs", "labels", "several", "spans", "asked",
]  # fmt: skip


def values(name: str, directory: Path) -> dict[str, Any]:
    """The run file of a small network."""
    task, _, read = name.partition("-")
    if task in ("lm", "masked"):
        more = {} if task == "lm" else {"task": "masked-lm", "model__arch": "transformer"}
        return run_file(make_text(directory / "text.txt"), "lstm", data__read_as=read, **more)
    if name == "pairs":
        return seq2seq_run_file(make_pairs(directory / "pairs.tsv"), "joint")
    if name == "asked":
        return qa_run_file(write_tsv(directory / "asked.tsv", make_questions(60)))
    return override(LabelRuns(directory).values(f"{name}-lstm"), ["model.hidden_size=8"])


class Read(NamedTuple):
    shape: NetworkTask[Any]
    job: Job
    model: Any
    train: Examples[Any]


@pytest.fixture(params=NAMES)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Read:
    settings = resolve(values(request.param, tmp_path), base=tmp_path)
    shape, folder = settings.preset.estimator.network_task, RunDir(tmp_path / "run")
    assert shape is not None
    folder.path.mkdir()
    vocabulary, corpora = prepare(settings.spec, settings, folder, SilentCallback())
    job = Job(settings, folder, vocabulary, corpora, SilentCallback())
    torch.manual_seed(0)
    return Read(shape, job, shape.build(settings, vocabulary)().eval(), read_training(shape, job)[0])


def test_default_loss_uses_the_weights_of_examples(read: Read) -> None:
    """Each example with a loss counts once; in masked LMs, a text without a mask counts as one."""
    settings, examples = read.job.config, read.train
    plain = read.shape.objective(settings, read.job.tokenizer, None, None, torch.device("cpu"))
    groups = list(example_batches(examples, examples.known(), batch_tokens=512))
    assert sorted(np.concatenate(groups).tolist()) == examples.known().tolist()
    for members in groups[:: max(1, len(groups) // 4)]:
        with torch.no_grad():
            actual = plain.loss(read.model, examples.batch(members), None)
        assert int(actual.count) == max(1, examples.loss_count(members)) and actual.carry is None
        assert torch.isfinite(actual.total) and examples.loss_count(members) > 0
        assert examples.describe(members)


def test_the_largest_batch_has_a_loss_at_every_truncation(read: Read) -> None:
    train, order = read_training(read.shape, read.job)
    objective = make_objective(read.shape, read.job, train, read.model.max_positions)
    full, sizes = order.largest_batch(), []
    for share in (Fraction(1), Fraction(2, 3), Fraction(1, 5), Fraction(1, 1000)):
        batch = order.largest_batch(share)
        assert type(batch) is type(full) and len(batch[0]) == len(full[0])
        with torch.no_grad():
            assert torch.isfinite(objective.loss(read.model, batch, None).total)
        sizes.append(batch[0].size(1))
    assert sizes[0] == full[0].size(1) and sizes == sorted(sizes, reverse=True) and sizes[-1] == 2
    assert objective.loss(read.model, map_tensors(full, lambda part: part[:1]), None).total.requires_grad


def test_validation_returns_monitored_metrics_in_order(read: Read) -> None:
    objective = make_objective(read.shape, read.job, read.train, read.model.max_positions)
    with torch.no_grad():
        actual = objective.validate(read.model)
    assert actual is not None
    names = [metric.name for metric in objective.monitors]
    assert set(actual) <= set(names) and list(actual) == [name for name in names if name in actual]
