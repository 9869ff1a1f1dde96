"""Recommended settings of question answering. They were not measured on a public data set; they follow what holds for the other
encoders: the number of steps grows with the data, and training stops when it no longer helps."""

from __future__ import annotations

from collections.abc import Sequence

from weft.data.profile import DataProfile
from weft.tasks.recipe import Recipe, Tables, early_stopping, scaled_steps

QUESTIONS = 10_000


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The settings for questions and passages."""
    arch = tables["model"].get("arch", "transformer")
    steps = {"max_steps": scaled_steps(2000, profile.num_examples, QUESTIONS, (1000, 50_000))} if arch != "bert" else {}
    reason = f"{profile.num_examples:,} questions"
    return [Recipe(reason, {"arch": arch}, {**steps, **early_stopping(profile)})]
