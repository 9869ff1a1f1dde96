"""The architectures of language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models.config import GPT, MIN_RNNS, TRANSFORMER, LanguageModelConfig
from weft.models.ngram import NgramConfig
from weft.tasks.lm.ngram import NgramTrainer
from weft.tasks.presets import MUON, RECURRENT
from weft.tasks.spec import Preset, SearchDimension
from weft.training.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.neural import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.lm.network import LanguageModelBuilder

    return LanguageModelBuilder()


def check(config: RunConfig) -> None:
    """Reject options that cannot be combined."""
    if config.data.read_as == "stream" and config.model.position_encoding == "learned":
        raise ConfigError("model.position_encoding", "'learned' is not possible with data.read_as 'stream'", "use 'rotary'")


NETWORK = NetworkEstimator(find_network, check)
# normalized layers with skip connections learn faster with a higher learning rate than LSTM and GRU (docs/experiments.md)
MIN_RNN_TRAIN: Mapping[str, Any] = {**RECURRENT, "lr": 6e-3}
NGRAMS = (
    SearchDimension("order", (2, 3, 4, 5, 6, 7, 8)),
    SearchDimension("smoothing", ("kneser-ney", "backoff", "add-delta")),
    SearchDimension("delta", (0.001, 0.01, 0.1, 0.5), ("smoothing", "add-delta")),
)
PRESETS: Mapping[str, Preset] = {
    "ngram": Preset(NgramTrainer(), NgramConfig, search_space=NGRAMS, unit="n-grams"),
    "conv": Preset(NETWORK, LanguageModelConfig, {"layer_type": "conv", "num_layers": 1, "kernel_size": 3}),
    "rnn": Preset(NETWORK, LanguageModelConfig, {"layer_type": "rnn"}, RECURRENT),
    "lstm": Preset(NETWORK, LanguageModelConfig, {"layer_type": "lstm"}, RECURRENT),
    "gru": Preset(NETWORK, LanguageModelConfig, {"layer_type": "gru"}, RECURRENT),
    **{arch: Preset(NETWORK, LanguageModelConfig, values, MIN_RNN_TRAIN) for arch, values in MIN_RNNS.items()},
    "transformer": Preset(NETWORK, LanguageModelConfig, TRANSFORMER),
    "gpt": Preset(NETWORK, LanguageModelConfig, GPT, MUON),
}
