"""A number for a text: regression by mean squared error over an encoder."""

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
from weft.data.corpus import Corpus, lines_of
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

BATCH = 8192  # positions that are read at once

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
    n, x, y = total["count"], total["said"], total["meant"]
    spread = np.sqrt((n * total["said_squared"] - x * x) * (n * total["meant_squared"] - y * y))
    found: np.ndarray = (n * total["product"] - x * y) / np.where(spread > 0, spread, np.nan)
    return found


METRICS = (
    Metric("rmse", lambda total: np.sqrt(total["squared"] / total["count"]), "lower"),
    Metric("mae", lambda total: total["absolute"] / total["count"], "lower"),
    Metric("pearson", _pearson, "higher", single="rmse"),
)


def number_items(said: np.ndarray, meant: np.ndarray) -> ItemStatistics:
    statistics = {
        "count": np.ones(len(said)), "squared": (said - meant) ** 2, "absolute": np.abs(said - meant), "said": said,
        "meant": meant, "said_squared": said**2, "meant_squared": meant**2, "product": said * meant,
    }  # fmt: skip
    return ItemStatistics(np.arange(len(said)), statistics, [f"{value:.3f}" for value in said])


# ---- the model and its training


class Regressor(nn.Module):
    def __init__(self, encoder: TextEncoder, pool: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.pool, self.head = encoder, pool, nn.Linear(width, 1)

    @property
    def max_positions(self) -> int | None:
        return self.encoder.max_positions

    def muon_parameters(self) -> set[str]:
        return build.muon_parameters(self.encoder.stack, "encoder.stack")

    def forward(self, text: EncoderInput) -> Tensor:
        numbers: Tensor = self.head(self.pool(*self.encoder(text)))[:, 0].float()
        return numbers


@torch.inference_mode()
def read_numbers(model: nn.Module, data: Numbered, device: torch.device, watch: ProgressCallback | None = None) -> np.ndarray:
    found, done = np.zeros(len(data.numbers)), 0
    for members, batch in by_length(data, batch_tokens=BATCH):
        text = map_tensors(EncoderInput(batch.tokens, batch.token_mask), lambda part: part.to(device))
        found[members], done = model(text).double().cpu().numpy(), done + len(members)
        if watch is not None:
            watch(done, len(found))
    return found


class SquaredError:
    unit, monitors = "example", METRICS
    inner_steps, prepare = 0, None

    def __init__(self, valid: Numbered | None, device: torch.device) -> None:
        self.valid, self.device = valid, device

    def loss(self, model: nn.Module, batch: NumberBatch, carry: None) -> Loss:
        errors = (model(EncoderInput(batch.tokens, batch.token_mask)) - batch.numbers) ** 2
        return Loss(errors.sum(), torch.tensor(len(errors), device=errors.device), None, batch.token_mask.sum())

    def validate(self, model: nn.Module, watch: ProgressCallback | None = None) -> dict[str, float] | None:
        if self.valid is None:
            return None
        return values(number_items(read_numbers(model, self.valid, self.device, watch), self.valid.numbers), METRICS)


class Regression(NetworkTask[Numbered]):
    def build(self, config: RunConfig, vocabulary: Tokenizer) -> Callable[[], Regressor]:
        table, vocab_size, limit = config.model, vocabulary.vocab_size + 1, config.data.max_length
        pool = partial(build.build_pooling, table.pooling, table)
        return lambda: Regressor(text_encoder(table, vocab_size=vocab_size, max_positions=limit), pool(), table.hidden_size)

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
PRESETS = {kind: Preset(NETWORK, ClassifierConfig, {"layer_type": kind, **SHAPE}, TRAIN) for kind in ("gru", "lstm")}

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


def _read(run: Run[str, Estimate], texts: Sequence[str]) -> Numbered:
    return Numbered([lines_of(run.vocabulary, texts)], np.zeros(len(texts)), run.config.data.max_length)


def predict(
    run: Run[str, Estimate], texts: Sequence[str], options: Options, progress: Progress | None
) -> list[Estimate | InvalidInput]:
    def estimate(valid: list[str]) -> list[Estimate]:
        data = _read(run, valid)
        long = 1 + np.diff(data.columns[0].line_starts()) > data.max_length
        found = read_numbers(run.model, data, run.device, phase(progress, "predicting"))
        return [Estimate(float(value), bool(over)) for value, over in zip(found, long, strict=True)]

    return process_valid([read_text(text) for text in texts], estimate)


def evaluate(run: Run[str, Estimate], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    records = list(eval_source(run.directory, run.config, data).records())
    texts, meant = [record.texts[0] for record in records], np.array([*map(number, records)])
    read = _read(run, texts)
    items = number_items(read_numbers(run.model, read, run.device, phase(progress, "evaluating")), meant)
    lengths = np.diff(read.columns[0].line_starts()) - 1
    observed = partial(Predictions, items, texts, [f"{value:g}" for value in meant], lengths, "text")
    signed = f"regression|tok:{run.vocabulary.hash[:8]}"
    return Evaluation({one.name: one for one in scores(items, METRICS, signed)}, items, observed, "texts/s", len(records))


TASK: Task[str, Estimate] = Task(
    name="regress",
    noun="regression model",
    does="gives texts numbers",
    item="text",
    counts="texts",
    says="numbers",
    data=table_data(NumberConfig),
    presets=PRESETS,
    suites=(METRICS,),
    validation=(METRICS,),
    evaluate=evaluate,
    predict=predict,
    lines=NumberLines,
)
