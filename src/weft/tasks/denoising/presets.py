"""The architectures of denoising: encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models import seq2seq_config as configs
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.denoising.network import DenoisingBuilder

    return DenoisingBuilder()


NETWORK = NetworkEstimator(find_network, lambda config: None)
TRAIN: Mapping[str, Any] = {
    "max_steps": 10_000, "batch_tokens": 4096, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.01, "lr_schedule": "linear",
    "warmup_ratio": 0.05,
}  # fmt: skip
# source and target are texts of the same kind
SHARED: Mapping[str, Any] = {"share_embeddings": True, "tie_embeddings": True}


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, Seq2SeqConfig, values, TRAIN, configs.merge)


PRESETS: Mapping[str, Preset] = {
    "transformer": _preset({**configs.TRANSFORMER, **SHARED}),
    "lstm-input-feeding": _preset({**configs.LSTM_INPUT_FEEDING, **SHARED}),
}
