"""Rewards of texts, and evaluation on preferences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weft import __version__
from weft.errors import ConfigError
from weft.metrics.items import ItemStatistics
from weft.metrics.metric import scores
from weft.metrics.preferences import PREFERENCES, preference_items
from weft.runs.eval_data import eval_source
from weft.tasks.compare_spec import Compare, Predictions
from weft.tasks.invalid_inputs import process_valid, read_texts
from weft.tasks.lines import Lines
from weft.tasks.reward_model.data import pairs_of_texts
from weft.tasks.spec import (
    Evaluation,
    Files,
    InputSpec,
    InvalidInput,
    Options,
    Progress,
    ProgressCallback,
    is_tuple_of_texts,
    phase,
    scores_by_name,
)
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig
    from weft.runs.run import Run

Texts = str | tuple[str, ...]
COMPARE = Compare(length_unit="characters")


class Reward(NamedTuple):
    """The reward of a text; only differences of rewards have a meaning."""

    value: float
    truncated: bool = False


class RewardsTexts(Protocol):
    """A network with its tokenizer, or a linear model with its feature extractors."""

    def rewards(
        self, rows: Sequence[tuple[str, ...]], progress: ProgressCallback | None = None
    ) -> tuple[np.ndarray, np.ndarray]: ...


class RewardPredictor:
    """Applies a reward model to texts."""

    def __init__(self, run: Run[Texts, Reward]) -> None:
        self.run, self.config = run, run.config

    @cached_property
    def model(self) -> RewardsTexts:
        if self.run.network is None:
            linear: RewardsTexts = self.run.model
            return linear
        from weft.tasks.reward_model.objective import NeuralReward

        max_length = self.config.data.max_length
        return NeuralReward(
            self.run.network, self.run.vocabulary, max_length=max_length, device=self.run.device, group=self.run.group
        )

    @property
    def columns(self) -> int:
        """The number of texts per input: a response, after its prompt if there is one."""
        return num_texts(self.config)

    def predict(self, rows: Sequence[tuple[str, ...]], progress: ProgressCallback | None) -> list[Reward]:
        if not rows:
            return []
        rewards, truncated = self.model.rewards(rows, progress)
        return [Reward(*pair) for pair in zip(rewards.tolist(), truncated.tolist(), strict=True)]


def num_texts(config: RunConfig) -> int:
    return len(config.data.columns()) - 1


def input_spec(config: RunConfig) -> InputSpec:
    """A response, after its prompt if there is one."""
    return InputSpec("pair", ("prompt", "response")) if num_texts(config) > 1 else InputSpec(names=("response",))


def is_single(run: Run[Texts, Reward], value: object) -> bool:
    """Whether a value is one input: a string, or a tuple of strings for runs that read prompts."""
    return isinstance(value, str) or (num_texts(run.config) > 1 and is_tuple_of_texts(value))


def predict(
    run: Run[Texts, Reward], texts: Sequence[Texts], options: Options, progress: Progress | None
) -> list[Reward | InvalidInput]:
    predictor: RewardPredictor = run.predictor
    problem = f"expected {'a prompt and a response' if predictor.columns > 1 else 'one text'}"
    rows = [read_texts(text, predictor.columns, problem) for text in texts]
    return process_valid(rows, lambda valid: predictor.predict(valid, phase(progress, "predicting")))


def group_table(items: ItemStatistics, groups: Sequence[str]) -> str:
    """Pairs, accuracy and accuracy of length alone, by group."""
    names, index = np.unique(np.array(groups), return_inverse=True)
    count = np.bincount(index)
    accuracy, length = (100 * np.bincount(index, items.statistics[name]) / count for name in ("correct", "longer"))
    rows = [["group", "pairs", "accuracy", "length alone"]]
    rows += [
        [str(name), f"{number:,}", f"{model:.1f}", f"{baseline:.1f}"]
        for name, number, model, baseline in zip(names, count, accuracy, length, strict=True)
    ]
    return f"\n{columns(rows)}"


def evaluate(run: Run[Texts, Reward], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """The accuracy on pairs, and that of their lengths alone."""
    predictor: RewardPredictor = run.predictor
    dataset: Any = eval_source(run.directory, run.config, data)
    chosen, rejected = pairs_of_texts(dataset)
    rewards, _ = predictor.model.rewards([*chosen, *rejected], phase(progress, "evaluating"))
    lengths = np.array([[len(a[-1]), len(b[-1])] for a, b in zip(chosen, rejected, strict=True)], np.int64)
    items = preference_items(rewards[: len(chosen)], rewards[len(chosen) :], lengths)
    signature = f"weft:{__version__}|preferences|pairs:{len(chosen)}"
    groups = [record.values[0] for record in dataset.records()] if run.config.data.group_column is not None else []
    inputs = [" | ".join((*a, b[-1])) for a, b in zip(chosen, rejected, strict=True)]
    details = partial(Predictions, items, inputs, [row[-1] for row in chosen], lengths.sum(1), "pair")
    return Evaluation(
        scores_by_name(scores(items, PREFERENCES, signature)),
        items,
        details,
        "pairs/s",
        len(chosen),
        report=group_table(items, groups) if groups else "",
    )


class RewardLines(Lines[Texts, Reward]):
    """A text, or a prompt and a response separated by a tab, to its reward."""

    columns = ("reward",)

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        texts = (line,) if num_texts(self.config) == 1 else tuple(line.split("\t"))
        if line.strip() and len(texts) != num_texts(self.config):
            return (), f"expected a prompt, a tab and a response, got {len(texts) - 1} tabs"
        return texts, None

    def parse(self, texts: tuple[str, ...]) -> Texts | None:
        return texts if "".join(texts).strip() else None

    def text(self, prediction: Reward | None, number: int | None) -> str:
        return "\n" if prediction is None else f"{prediction.value:.4f}\n"

    def json(self, entry: InputRecord, prediction: Reward | None) -> dict[str, Any]:
        return {"text": entry.text, "reward": None if prediction is None else prediction.value}

    def values(self, prediction: Reward | None) -> Values:
        return {"reward": None if prediction is None else prediction.value}

    def truncated(self, prediction: Reward) -> bool:
        return prediction.truncated


def rewards(run: Run[Texts, Reward], pairs: Sequence[tuple[str, str]], label: str | None) -> list[float]:
    """The rewards of (prompt, response) pairs; a run without prompts reads the response alone."""
    if label is not None:
        raise ConfigError("data.reward_label", f"{run.path} has no labels", "remove it")
    predictor: RewardPredictor = run.predictor
    rows = [pair if predictor.columns > 1 else (pair[1],) for pair in pairs]
    return [reward.value for reward in predictor.predict(rows, None)]
