"""Evaluation of policies: rewards and judgments of their responses."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import __version__
from weft.metrics.feedback import FEEDBACK, feedback_items
from weft.metrics.metric import scores
from weft.runs.eval_data import eval_source, first_split
from weft.tasks.compare_spec import Compare, Predictions
from weft.tasks.spec import Evaluation, Files, Options, Progress, scores_by_name

if TYPE_CHECKING:
    from weft.runs.run import Run

COMPARE = Compare(model_noun="policy", curves=("kl", "judge", "length", "entropy", "repetition"))
SEED = 0


def evaluate(run: Run[str, None], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """One response to each prompt, with a fixed seed. The reward of a Python function is not known here."""
    from weft.tasks.policy_gradient.rewards import run_rewards
    from weft.tasks.policy_gradient.rollout import repetition

    config: Any = run.config.data
    splits = ("test", "valid", "train")  # prompts have no references that training could have seen
    dataset: Any = eval_source(run.directory, run.config, data) if data else first_split(run.directory, run.config, splits)[1]
    prompts = [record.texts[0] for record in dataset.records()]
    outputs = run.generate(prompts, max_new_tokens=run.config.model.max_new_tokens, seed=SEED)
    texts = [output.text for output in outputs]
    measured = {
        name: run_rewards(config, name, run.device_name)(prompts, texts) if config.model_dump()[f"{name}_from"] else None
        for name in ("reward", "judge")
    }
    items = feedback_items(
        **measured, length=[len(output.token_ids) for output in outputs], repetition=repetition(texts), outputs=texts
    )
    signature = f"weft:{__version__}|policy|prompts:{len(prompts)}|seed:{SEED}"
    details = partial(Predictions, items, prompts, [""] * len(prompts), np.array([len(text) for text in prompts]), "prompt")
    by_name = scores_by_name(scores(items, FEEDBACK, signature))
    return Evaluation(by_name, items, details, "prompts/s", len(prompts))
