"""Evaluation of direct preference optimization: accuracy of the implicit rewards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.metrics.metric import scores
from weft.metrics.preferences import PREFERENCES, preference_items
from weft.runs.eval_data import eval_source
from weft.tasks.compare_spec import Compare, Predictions
from weft.tasks.prepare import tokenize
from weft.tasks.spec import Evaluation, Files, Options, Progress, phase, scores_by_name
from weft.text.reading import pluralize

if TYPE_CHECKING:
    from weft.runs.run import Run

COMPARE = Compare(model_noun="language model")


def initial_model(run: Run[str, None]) -> Any:
    """The model that the run started from, with the configuration of the run."""
    from weft.runs.job import read_init_run
    from weft.training.init_weights import BuiltRun, load_initial_weights

    network_task = run.config.preset.estimator.network_task
    if network_task is None:
        raise run.wrong_task()
    model = network_task.build(run.config, run.vocabulary)()
    built = BuiltRun(run.config, run.vocabulary)
    load_initial_weights(model, built, read_init_run(run.config), strict=run.config.train.init_strict)
    return model.to(run.device).eval()


def evaluate(run: Run[str, None], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """How often the chosen response has the higher implicit reward, and is longer."""
    from weft.tasks.dpo.network import encode_pairs
    from weft.tasks.dpo.objective import pair_rewards

    dataset: Any = eval_source(run.directory, run.config, data)
    reference = initial_model(run)
    with TemporaryDirectory() as directory:  # a memory map outlives its file
        columns = tokenize(run.spec, run.config, run.vocabulary, dataset, Path(directory))
        pairs = encode_pairs(run.config, dataset, columns)
        beta = run.config.model.dpo_beta
        rewards = pair_rewards(run.model, reference, pairs, beta, run.device, phase(progress, "evaluating"), run.group)
    items = preference_items(rewards[0], rewards[1], pairs.characters)
    records = list(dataset.records())
    texts = [records[index].texts for index in pairs.members.tolist()]
    num_skipped = len(records) - len(texts)
    notes = (f"{pluralize(num_skipped, 'pair')} longer than data.max_length skipped",) if num_skipped else ()
    details = partial(
        Predictions, items, [" | ".join(row) for row in texts], [row[1] for row in texts], pairs.characters.sum(1), "pair"
    )
    signature = f"weft:{__version__}|preferences|pairs:{len(texts)}|beta:{beta:g}"
    return Evaluation(scores_by_name(scores(items, PREFERENCES, signature)), items, details, "pairs/s", len(texts), notes=notes)
