"""The architectures of captioning, by their published names, or by the layers of their encoder and decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models import caption_config as configs
from weft.models.caption_config import CaptionConfig
from weft.models.config import MIN_RNNS
from weft.tasks.spec import Preset
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.captioning.network import CaptionBuilder

    return CaptionBuilder()


NETWORK = NetworkEstimator(find_network)
TRAIN: Mapping[str, Any] = {
    "max_steps": 3000, "batch_tokens": 1024, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.01, "warmup_ratio": 0.05,
    "ema_decay": 0.99,
}  # fmt: skip
CTC_TRAIN: Mapping[str, Any] = {**TRAIN, "batch_tokens": 1600}


def _preset(values: Mapping[str, Any], train: Mapping[str, Any] = TRAIN) -> Preset:
    return Preset(NETWORK, CaptionConfig, values, train, configs.merge)


PRESETS: Mapping[str, Preset] = {
    "transformer": _preset(configs.TRANSFORMER),
    "vit": _preset(configs.VIT),
    "show-and-tell": _preset(configs.SHOW_AND_TELL),
    "show-attend-tell": _preset(configs.SHOW_ATTEND_TELL),
    "s2vt": _preset(configs.S2VT),
    "lstm": _preset({**configs.RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**configs.RECURRENT, "layer_type": "gru"}),
    "rnn": _preset({**configs.RECURRENT, "layer_type": "rnn"}),
    **{arch: _preset({**configs.RECURRENT, **values}) for arch, values in MIN_RNNS.items()},
    "lipnet": _preset(configs.LIPNET, CTC_TRAIN),
}
