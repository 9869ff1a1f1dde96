"""The encoder-decoders that run files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import ConfigError
from weft.models import pair_tables
from weft.models.pair_tables import Seq2SeqTable
from weft.tasks.spec import Preset
from weft.train.estimator import NetworkEstimator

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.train.network import NetworkTask


def find_network() -> NetworkTask[Any]:
    from weft.tasks.seq2seq.network import Translation

    return Translation()


def check(settings: Settings) -> None:
    """Refuse options that do not go together."""
    joint = settings.tokenizer.source is None
    for option in ("shared", "copying"):
        if getattr(settings.model, option) and not joint:
            raise ConfigError(
                f"model.{option}: true needs one tokenizer for both sides, but [tokenizer.source] and [tokenizer.target] "
                f"are two; use [tokenizer] alone, or {option}=false"
            )


NETWORK = NetworkEstimator(find_network, check)
TRAIN: Mapping[str, Any] = {
    "steps": 3500, "batch_tokens": 2048, "lr": 1e-3, "beta2": 0.98, "weight_decay": 0.0, "warmup": 0.08,
    "label_smoothing": 0.1, "average": 0.99,
}  # fmt: skip


def _preset(values: Mapping[str, Any]) -> Preset:
    return Preset(NETWORK, Seq2SeqTable, values, TRAIN, pair_tables.merge)


PRESETS: Mapping[str, Preset] = {
    "sutskever": _preset(pair_tables.SUTSKEVER),
    "cho": _preset(pair_tables.CHO),
    "bahdanau": _preset(pair_tables.BAHDANAU),
    "luong": _preset(pair_tables.LUONG),
    "rnn": _preset({**pair_tables.RECURRENT, "mixer": "rnn"}),
    "lstm": _preset({**pair_tables.RECURRENT, "mixer": "lstm"}),
    "gru": _preset({**pair_tables.RECURRENT, "mixer": "gru"}),
    "transformer": _preset(pair_tables.TRANSFORMER),
    "seq2seq": _preset(pair_tables.SEQ2SEQ),
}
