"""The architectures of reward models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models.config import GPT, MIN_RNNS
from weft.models.reward_config import LinearRewardConfig, RewardConfig
from weft.tasks.presets import BLOCKS, FINE_TUNED, PRETRAINED
from weft.tasks.reward_model.linear import LinearEstimator
from weft.tasks.spec import Preset, SearchDimension
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.reward_model.network import RewardBuilder

    return RewardBuilder()


NETWORK = NetworkEstimator(find_network)
TRAIN: Mapping[str, Any] = {
    "max_epochs": 2.0, "batch_tokens": 8192, "lr": 1e-3, "weight_decay": 0.01, "lr_schedule": "cosine", "warmup_ratio": 0.05,
    "ema_decay": 0.99,
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {"num_layers": 1, "dropout": 0.5, "pooling": "max"}
# the stack of a language model, without the options of its output layer: weights can be initialized from one
CAUSAL: Mapping[str, Any] = {name: value for name, value in GPT.items() if name not in ("logit_softcap", "zero_init")}
LINEAR = (
    SearchDimension("C", (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    SearchDimension("features.ngram_range", ([1, 1], [1, 2], [1, 3])),
    SearchDimension("features.min_df", (1, 2, 5)),
)


def _preset(values: Mapping[str, Any], train: Mapping[str, Any] = TRAIN) -> Preset:
    return Preset(NETWORK, RewardConfig, values, train)


PRESETS: Mapping[str, Preset] = {
    "linear": Preset(LinearEstimator(), LinearRewardConfig, search_space=LINEAR),
    "conv": _preset({**RECURRENT, "layer_type": "conv", "kernel_size": 3}),
    "rnn": _preset({**RECURRENT, "layer_type": "rnn"}),
    "lstm": _preset({**RECURRENT, "layer_type": "lstm"}),
    "gru": _preset({**RECURRENT, "layer_type": "gru"}),
    **{arch: _preset({**RECURRENT, **values}) for arch, values in MIN_RNNS.items()},
    "transformer": _preset({**BLOCKS, "pooling": "mean"}),
    "bert": _preset({**PRETRAINED, "pooling": "first"}, FINE_TUNED),
    "gpt": _preset({**CAUSAL, "bidirectional": False, "pooling": "last"}, FINE_TUNED),
}
