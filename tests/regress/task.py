"""Regression: predict a number from a text, with an encoder and the mean squared error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from weft.data.batching import map_tensors
from weft.data.bucketing import by_length
from weft.data.corpus import Corpus, corpus_from_lines
from weft.data.dataset import Dataset
from weft.data.formats import TableFormat, TableRecord, number
from weft.data.text_batching import TextExamples
from weft.metrics.items import ItemStatistics, Sums
from weft.metrics.metric import Metric, scores, values
from weft.models import build
from weft.models.encoder import EncoderInput, TextEncoder, text_encoder
from weft.models.encoder_config import ClassifierConfig
from weft.runs.config import RunConfig
from weft.runs.eval_data import eval_source
from weft.runs.run import Run
from weft.tasks.compare_spec import Predictions
from weft.tasks.invalid_inputs import process_valid, read_text
from weft.tasks.lines import Lines
from weft.tasks.spec import Evaluation, Files, InvalidInput, Options, Preset, Progress, ProgressCallback, Task, phase
from weft.tasks.table_data import SplitConfig, table_data
from weft.text.tokenizers import Tokenizer
from weft.training.estimator import NetworkEstimator
from weft.training.neural import NetworkTask
from weft.training.objective import Loss

BATCH_TOKENS = 8192  # positions per batch

# ---- data


class NumberConfig(SplitConfig):
    text_column: str = Field("text", description="Column of the text.")
    number_column: str = Field("number", description="Column of its number.")
    max_length: int = Field(256, ge=2, description="Maximum length in tokens, including special tokens.")

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        return self.read_as(TableFormat((self.text_column,), (self.number_column,), self.encoding), base)


class NumberBatch(NamedTuple):
    tokens: Tensor  # int64 (B, S)
    token_mask: Tensor  # bool (B, S)
    numbers: Tensor  # float32 (B,)


@dataclass(frozen=True)
class Numbered(TextExamples[NumberBatch]):
    columns: Sequence[Corpus]
    numbers: np.ndarray  # float64 (N,)
    max_length: int

    def batch(self, members: np.ndarray) -> NumberBatch:
        return NumberBatch(*self.packed_rows(members)[:2], torch.from_numpy(self.numbers[members]).float())


# ---- metrics


def _pearson(total: Sums) -> np.ndarray:
    n, x, y = total["count"], total["predicted"], total["gold"]
    scale = np.sqrt((n * total["predicted_squared"] - x * x) * (n * total["gold_squared"] - y * y))
    correlation: np.ndarray = (n * total["product"] - x * y) / np.where(scale > 0, scale, np.nan)
    return correlation


METRICS = (
    Metric("rmse", lambda total: np.sqrt(total["squared"] / total["count"]), "lower"),
    Metric("mae", lambda total: total["absolute"] / total["count"], "lower"),
    Metric("pearson", _pearson, "higher", item_metric="rmse"),
)


def number_items(predicted: np.ndarray, gold: np.ndarray) -> ItemStatistics:
    statistics = {
        "count": np.ones(len(gold)), "squared": (predicted - gold) ** 2, "absolute": np.abs(predicted - gold), "gold": gold,
        "predicted": predicted, "predicted_squared": predicted**2, "gold_squared": gold**2, "product": predicted * gold,
    }  # fmt: skip
    return ItemStatistics(np.arange(len(gold)), statistics, [f"{value:.3f}" for value in predicted])


# ---- the model and its training


class Regressor(nn.Module):
    def __init__(self, encoder: TextEncoder, pool: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.encoder, self.pool, self.head = encoder, pool, nn.Linear(hidden_size, 1)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        numbers: Tensor = self.head(self.pool(*self.encoder(text)))[:, 0].float()
        return numbers


@torch.inference_mode()
def run_model(model: nn.Module, data: Numbered, device: torch.device, progress: ProgressCallback | None = None) -> np.ndarray:
    numbers, done = np.zeros(len(data.numbers)), 0
    for members, batch in by_length(data, batch_tokens=BATCH_TOKENS):
        text = map_tensors(EncoderInput(batch.tokens, batch.token_mask), lambda part: part.to(device))
        numbers[members], done = model(text).double().cpu().numpy(), done + len(members)
        if progress is not None:
            progress(done, len(numbers))
    return numbers


class SquaredError:
    unit, monitors = "example", METRICS
    inner_steps, prepare, augment = 0, None, None

    def __init__(self, valid: Numbered | None, device: torch.device) -> None:
        self.valid, self.device = valid, device

    def loss(self, model: nn.Module, batch: NumberBatch, carry: None) -> Loss:
        errors = (model(EncoderInput(batch.tokens, batch.token_mask)) - batch.numbers) ** 2
        return Loss(errors.sum(), torch.tensor(len(errors), device=errors.device), None, batch.token_mask.sum())

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        return values(number_items(run_model(model, self.valid, self.device, progress), self.valid.numbers), METRICS)


class Regression(NetworkTask[Numbered]):
    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], Regressor]:
        model, vocab_size, max_positions = config.model, vocabulary.vocab_size + 1, config.data.max_length
        encoder = partial(text_encoder, model, vocab_size=vocab_size, max_positions=max_positions)
        return lambda: Regressor(encoder(), build.build_pooling(model.pooling, model), model.hidden_size)

    def encode(
        self,
        config: RunConfig,
        vocabulary: Tokenizer,
        dataset: Dataset[TableRecord],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> Numbered:
        return Numbered(columns, np.array([*map(number, dataset.records())]), config.data.max_length)

    def objective(
        self, config: RunConfig, vocabulary: Tokenizer, train: Numbered | None, valid: Numbered | None, device: torch.device
    ) -> SquaredError:
        return SquaredError(valid, device)


NETWORK = NetworkEstimator(Regression)
TRAIN = {"max_steps": 100, "batch_tokens": 2048, "lr": 3e-3}
SHAPE = {"num_layers": 1, "pooling": "mean"}
PRESETS = {arch: Preset(NETWORK, ClassifierConfig, {"layer_type": arch, **SHAPE}, TRAIN) for arch in ("gru", "lstm")}

# ---- predictions


class Estimate(NamedTuple):
    value: float
    truncated: bool = False


class NumberLines(Lines[str, Estimate]):
    columns = ("prediction",)

    def parse(self, texts: tuple[str, ...]) -> str | None:
        return texts[0] if texts[0].strip() else None

    def text(self, prediction: Estimate | None, number: int | None) -> str:
        return "\n" if prediction is None else f"{prediction.value:.3f}\n"

    def json(self, entry: Any, prediction: Estimate | None) -> dict[str, Any]:
        return {"text": entry.text, "number": prediction and prediction.value}

    def values(self, prediction: Estimate | None) -> dict[str, Any]:
        return {"prediction": prediction and prediction.value}

    def truncated(self, prediction: Estimate) -> bool:
        return prediction.truncated


def _encode(run: Run[str, Estimate], texts: Sequence[str]) -> Numbered:
    return Numbered([corpus_from_lines(run.vocabulary, texts)], np.zeros(len(texts)), run.config.data.max_length)


def predict(
    run: Run[str, Estimate], texts: Sequence[str], options: Options, progress: Progress | None
) -> list[Estimate | InvalidInput]:
    def estimate(valid: list[str]) -> list[Estimate]:
        data = _encode(run, valid)
        is_truncated = 1 + np.diff(data.columns[0].line_starts()) > data.max_length
        numbers = run_model(run.model, data, run.device, phase(progress, "predicting"))
        return [Estimate(*row) for row in zip(numbers.tolist(), is_truncated.tolist(), strict=True)]

    return process_valid([read_text(text) for text in texts], estimate)


def evaluate(run: Run[str, Estimate], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    records = list(eval_source(run.directory, run.config, data).records())
    texts, gold = [record.texts[0] for record in records], np.array([*map(number, records)])
    examples = _encode(run, texts)
    items = number_items(run_model(run.model, examples, run.device, phase(progress, "evaluating")), gold)
    lengths = np.diff(examples.columns[0].line_starts()) - 1
    details = partial(Predictions, items, texts, [f"{value:g}" for value in gold], lengths, "text")
    by_name = {score.name: score for score in scores(items, METRICS, f"regression|tok:{run.vocabulary.hash[:8]}")}
    return Evaluation(by_name, items, details, "texts/s", len(records))


TASK: Task[str, Estimate] = Task(
    name="regress",
    model_noun="regression model",
    description="predicts numbers from texts",
    loss_unit="text",
    progress_unit="texts",
    output_noun="numbers",
    data=table_data(NumberConfig),
    presets=PRESETS,
    eval_suites=(METRICS,),
    validation_suites=(METRICS,),
    evaluate=evaluate,
    predict=predict,
    line_format=NumberLines,
)
