"""The encoder-decoders that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import seq2seq_config as pair_tables
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.seq2seq.network import Seq2SeqBuilder

    return Seq2SeqBuilder()


def check(config: RunConfig) -> None:
    """Refuse options that do not go together."""
    joint = config.tokenizer.source is None
    for option in ("share_embeddings", "copy_mechanism"):
        if getattr(config.model, option) and not joint:
            raise ConfigError(
                f"model.{option}",
                "true needs one tokenizer for both sides, but [tokenizer.source] and [tokenizer.target] are two",
                f"use [tokenizer] alone, or {option}=false",
            )


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_steps": 3500, "batch_tokens": 2048, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.0, "warmup_ratio": 0.08,
    "label_smoothing": 0.1, "ema_decay": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, Seq2SeqConfig, values, TRAIN, pair_tables.merge)


PRESETS: Mapping[str, Preset] = {
    "sutskever": _preset(pair_tables.SUTSKEVER),
    "cho": _preset(pair_tables.CHO),
    "bahdanau": _preset(pair_tables.BAHDANAU),
    "luong": _preset(pair_tables.LUONG),
    "rnn": _preset({**pair_tables.RECURRENT, "layer_type": "rnn"}),
    "lstm": _preset({**pair_tables.RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**pair_tables.RECURRENT, "layer_type": "gru"}),
    "transformer": _preset(pair_tables.TRANSFORMER),
    "lstm-input-feeding": _preset(pair_tables.SEQ2SEQ),
}
