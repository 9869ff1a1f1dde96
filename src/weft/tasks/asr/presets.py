"""The architectures of speech recognition, by the layers of their encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models import speech_config as configs
from weft.models.config import MIN_RNNS
from weft.models.speech_config import SpeechConfig
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.asr.network import SpeechBuilder

    return SpeechBuilder()


NETWORK = NetworkEstimator(find_network)
TRAIN: Mapping[str, Any] = {
    "max_steps": 3000, "batch_tokens": 8192, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.01, "warmup_ratio": 0.1,
    "ema_decay": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, SpeechConfig, values, TRAIN, configs.merge)


PRESETS: Mapping[str, Preset] = {
    "lstm": _preset({**configs.RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**configs.RECURRENT, "layer_type": "gru"}),
    "rnn": _preset({**configs.RECURRENT, "layer_type": "rnn"}),
    **{arch: _preset({**values, **configs.RECURRENT}) for arch, values in MIN_RNNS.items()},
    "transformer": _preset(configs.TRANSFORMER),
    "conformer": _preset(configs.CONFORMER),
}
