"""The [model] table of models that respond: a language model, with or without LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from weft.config import invalid
from weft.models.config import GPT, MIN_RNNS, TRANSFORMER, LanguageModelConfig
from weft.tasks.spec import Preset

if TYPE_CHECKING:
    from weft.models.lm import LanguageModel
    from weft.runs.config import RunConfig
    from weft.tasks.spec import Estimator
    from weft.text.tokenizers import Tokenizer

RECURRENT = ("rnn", "lstm", "gru")


class ResponseModelConfig(LanguageModelConfig):
    """A language model that is trained to respond."""

    lora_rank: int = Field(0, ge=0, le=65536)
    """attention only: train adapters of this rank (LoRA) and keep the other weights; 0 trains all weights."""
    lora_output: bool = True
    """LoRA only: train the output layer as well, because models of running text have never seen the end of a response."""

    @model_validator(mode="after")
    def check_lora(self) -> Self:
        if self.lora_rank and not self.traits.attends:
            raise invalid("lora_rank", f"not possible with layer_type {self.layer_type!r}", "set it to 0")
        return self


def build_model(config: RunConfig, vocabulary: Tokenizer) -> LanguageModel:
    """The model of a resolved configuration, with its adapters, initialized with torch's default random generator."""
    from weft.models.lm import language_model
    from weft.nn.lora import add_adapters

    model = language_model(
        config.model, vocab_size=vocabulary.vocab_size, context_length=config.data.max_length, vocabulary=vocabulary.hash
    )
    if config.model.lora_rank:
        add_adapters(model, model.stack, config.model.lora_rank)
        model.head.requires_grad_(config.model.lora_output)
    return model


def presets(estimator: Estimator, train: Mapping[str, Any]) -> dict[str, Preset]:
    """The architectures of language models, with options of [train]."""
    recurrent = {arch: Preset(estimator, ResponseModelConfig, {"layer_type": arch}, train) for arch in RECURRENT}
    return {
        "gpt": Preset(estimator, ResponseModelConfig, GPT, train),
        "transformer": Preset(estimator, ResponseModelConfig, TRANSFORMER, train),
        **recurrent,
        **{arch: Preset(estimator, ResponseModelConfig, values, train) for arch, values in MIN_RNNS.items()},
    }
