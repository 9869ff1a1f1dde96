"""The architectures of encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import seq2seq_config as configs
from weft.models.config import MIN_RNNS
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
    """Reject options that cannot be combined."""
    is_shared = config.tokenizer.source is None
    for option in ("share_embeddings", "copy_mechanism"):
        if getattr(config.model, option) and not is_shared:
            raise ConfigError(
                f"model.{option}",
                "requires one tokenizer for both sides",
                "replace [tokenizer.source] and [tokenizer.target] with [tokenizer]",
            )


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "max_steps": 3500, "batch_tokens": 2048, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.0, "warmup_ratio": 0.08,
    "label_smoothing": 0.1, "ema_decay": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, Seq2SeqConfig, values, TRAIN, configs.merge)


PRESETS: Mapping[str, Preset] = {
    "sutskever": _preset(configs.SUTSKEVER),
    "cho": _preset(configs.CHO),
    "bahdanau": _preset(configs.BAHDANAU),
    "luong": _preset(configs.LUONG),
    "rnn": _preset({**configs.RECURRENT, "layer_type": "rnn"}),
    "lstm": _preset({**configs.RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**configs.RECURRENT, "layer_type": "gru"}),
    **{arch: _preset({**configs.RECURRENT, **values}) for arch, values in MIN_RNNS.items()},
    "transformer": _preset(configs.TRANSFORMER),
    "lstm-input-feeding": _preset(configs.LSTM_INPUT_FEEDING),
}
