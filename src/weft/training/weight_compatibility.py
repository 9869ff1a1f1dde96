"""What the weights of a run mean: everything in its resolved tables that decides what a network computes with them.

Two runs may have tensors of the same names and shapes and compute different functions: other heads, positions, activations,
norms, directions. An option is taken to matter unless it is listed here as one that does not, so a new option is compared
from the day it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.models.config import StackConfig
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

# only training, or how weights begin
TRAIN_ONLY_OPTIONS = {"dropout", "attention_dropout", "embedding_dropout", "word_dropout", "zero_init", "balanced"}
TRAIN_ONLY_OPTIONS |= {"sentence_pairs", "mask_prob", "masking"}
# names or shapes of weights tell: what differs is new, left, or refused by its shape
IN_NAMES = {
    "num_layers",
    "hidden_size",
    "embedding_dim",
    "segment_embeddings",
    "encoder",
    "decoder",
    "char_encoder",
    "bridge",
    "copy_mechanism",
}
# what only the weights above the stack depend on
OF_HEAD = {"pooling", "head_transform", "head", "logit_softcap"}
# one tensor here for two there can't hold both; two here for one there are equal
TIES = {"tie_embeddings", "share_embeddings"}
ABSENT = "absent"  # of an option of a part that is not there: names of weights tell
SHOWN = 60  # characters of a value


class Part(NamedTuple):
    """A part of a network: the options, as a run file names them, that decide what it computes."""

    options: Mapping[str, Any]
    span: int | None = None  # how many positions back attention sees; None: all, or it is no attention that reads one way

    def against(self, other: Part) -> list[str]:
        """`model.num_heads: 4 there, 8 here` for each option in which another part, there, differs from this one."""
        found = []
        for name in sorted({*self.options, *other.options}):
            here, there = self.options.get(name), other.options.get(name)
            if ABSENT in (here, there) or (name.rpartition(".")[2] in TIES and not here):
                continue
            if _off(here) != _off(there):
                found.append(f"{name}: {_written(there)} there, {_written(here)} here")
        return found

    def moved(self, old: str, new: str) -> Part:
        """The same part where its options stand in another table."""
        return self._replace(options={f"{new}{name.removeprefix(old)}": self.options[name] for name in self.options})


def _off(value: Any) -> Any:
    """A value to compare: an option that a table does not have is off."""
    return None if value in (None, False, "none") else value


def _written(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def one_value(values: list[Any]) -> Any:
    """One value where all layers have the same."""
    return values[0] if values and all(value == values[0] for value in values) else values


def in_table(at: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{at}.{name}": value for name, value in options.items()}


def words_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What says which tokens the rows of an embedding, or of a head, are of."""
    return {"tokenizer": tokenizer.hash[:8]}


def stack_options(config: StackConfig, layers: int) -> dict[str, Any]:
    """What a stack computes, of its first layers: options that say the same in different words are made equal."""
    free = TRAIN_ONLY_OPTIONS | IN_NAMES | OF_HEAD | TIES
    options = {name: getattr(config, name) for name in type(config).model_fields if name not in free}
    if isinstance(config.ffn_dim, int):
        options["ffn_dim"] = "some"  # how many hidden units, shapes tell
    if config.traits.attends:
        each = [config.heads_in_layer(layer) for layer in range(layers)]
        options |= {"num_heads": one_value([heads for heads, _ in each]), "head_dim": one_value([size for _, size in each])}
    if config.alibi_slopes is not None:
        options["alibi_slopes"] = config.alibi_slopes[:layers]
    if config.norm == "layernorm":
        options["norm_eps"] = 1e-5 if config.norm_eps is None else config.norm_eps
    options.pop("num_cross_heads", None)  # it is of the attention to a source
    return options


def head_options(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).model_fields if name in OF_HEAD | {"tied"}}


def attention_span(config: StackConfig, max_length: int) -> int | None:
    """How far attention sees in a stack that is trained on so many positions."""
    return max_length if config.traits.attends and not config.bidirectional else None


def encoder_parts(
    config: RunConfig, tokens: Tokenizer, layers: Mapping[str, int], *, max_length: int, head: Mapping[str, Any]
) -> dict[str, Part]:
    """The parts of a network of one stack, which are an encoder's, and a head: of its first layers. `head` is what decides what
    the head computes beside the options of [model]."""
    model: StackConfig = config.model
    return {
        "encoder.embedder": Part(words_of(tokens)),
        "encoder.stack": Part(in_table("model", stack_options(model, layers["encoder"])), attention_span(model, max_length)),
        "head": Part({**in_table("model", head_options(model)), **head}),
    }


# ---- of the record of a task


def _unchanged(name: str) -> str:
    return name


def _one_stack(model: Any) -> dict[str, int]:
    return {"encoder": model.layers}


def _one_scale(model: Any) -> dict[str, float]:
    return {"encoder": 1.0}


class Weights(NamedTuple):
    """What the weights of a task's networks are called and mean, for runs that start from others. Most networks are an encoder
    under a head; functions of [model] get it filled."""

    parts: Callable[[RunConfig, Any, Mapping[str, int]], dict[str, Part]]  # of a vocabulary, and of so many layers
    layers: Callable[[Any], dict[str, int]] = _one_stack  # of [model]: how many layers each stack has
    scales: Callable[[Any], dict[str, float]] = _one_scale  # of [model]: what vectors of each embedding are multiplied by
    named: Callable[[str], str] = _unchanged  # what a weight would be called in a network that has an encoder
    masked: bool = True  # the last row of the embedding stands for what is masked
    continues: bool = False  # predicts the next token: fits into a decoder, and has no encoder
    in_decoder: Callable[[str, Any], str] | None = None  # of [model]: a language model's weight in the decoder of this one


def weights_of(config: RunConfig) -> Weights | None:
    """None of what is no network."""
    return None if config.preset.estimator.shape is None else config.spec.weights


def layers_of(config: RunConfig) -> dict[str, int]:
    """How many layers each stack has; none where there is no network."""
    weights = weights_of(config)
    return {} if weights is None else weights.layers(config.model)


def parts_of(config: RunConfig, tokenizer: Any, layers: Mapping[str, int]) -> dict[str, Part]:
    """The parts of a run's network, of so many layers; those of one stack are an encoder's. None of what is no network."""
    weights = weights_of(config)
    return {} if weights is None else weights.parts(config, tokenizer, layers)


def embedding_scale(config: RunConfig) -> dict[str, float]:
    """What the vectors of each embedding are multiplied by."""
    weights = weights_of(config)
    return {} if weights is None else weights.scales(config.model)
