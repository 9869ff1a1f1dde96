"""Reward models: a number for a text, learned from preferences between pairs of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.metrics.preferences import PREFERENCES, PREFERENCES_VALIDATION
from weft.tasks.reward_model.data import PreferenceDataConfig, check, columns, limit_lengths
from weft.tasks.reward_model.predict import (
    COMPARE,
    Reward,
    RewardLines,
    RewardPredictor,
    Texts,
    evaluate,
    input_spec,
    is_single,
    predict,
    rewards,
)
from weft.tasks.reward_model.presets import PRESETS
from weft.tasks.reward_model.recipe import recipes
from weft.tasks.reward_model.weights import WEIGHTS
from weft.tasks.spec import Task
from weft.tasks.table_data import table_data

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.reward_model.explain import EXPLAIN

    return EXPLAIN


REWARD_MODEL: Task[Texts, Reward] = Task(
    name="reward-model",
    model_noun="reward model",
    description="gives texts rewards",
    loss_unit="pair",
    progress_unit="pairs",
    output_noun="rewards",
    data=replace(table_data(PreferenceDataConfig), columns=columns, check=check, limit_lengths=limit_lengths),
    presets=PRESETS,
    recipes=recipes,
    weights=WEIGHTS,
    eval_suites=(PREFERENCES,),
    validation_suites=(PREFERENCES_VALIDATION,),
    fit_archs=("gru", "conv"),
    ranking_metrics=("accuracy",),
    compare=COMPARE,
    predictor=RewardPredictor,
    evaluate=evaluate,
    predict=predict,
    is_single=is_single,
    inputs=input_spec,
    line_format=RewardLines,
    explain=find_explain,
    rewards=rewards,
)
TASK = REWARD_MODEL  # the name that the registry imports
