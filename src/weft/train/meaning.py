"""What the weights of a run mean: everything in its resolved tables that decides what a network computes with them.

Two runs may have tensors of the same names and shapes and compute different functions: other heads, positions, activations,
norms, directions. An option is taken to matter unless it is listed here as one that does not, so a new option is compared
from the day it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.models.tables import StackTable
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.settings import Settings

# only training, or how weights begin
OF_TRAINING = {"dropout", "attention_dropout", "embedding_dropout", "word_dropout", "zero_init", "balanced"}
OF_TRAINING |= {"pairs", "share", "masking"}
# names or shapes of weights tell: what differs is new, left, or refused by its shape
IN_NAMES = {"layers", "width", "embedding", "segments", "encoder", "decoder", "spelling", "bridge", "copying"}
# what only the weights above the stack depend on
OF_HEAD = {"pool", "transform", "head", "cap"}
# one tensor here for two there can't hold both; two here for one there are equal
TIES = {"tied", "shared"}
ABSENT = "absent"  # of an option of a part that is not there: names of weights tell
SHOWN = 60  # characters of a value


class Part(NamedTuple):
    """A part of a network: the options, as a run file names them, that decide what it computes."""

    options: Mapping[str, Any]
    span: int | None = None  # how many positions back attention sees; None: all, or it is no attention that reads one way

    def against(self, other: Part) -> list[str]:
        """`model.heads: 4 there, 8 here` for each option in which another part, there, differs from this one."""
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


def stack_options(table: StackTable, layers: int) -> dict[str, Any]:
    """What a stack computes, of its first layers: options that say the same in different words are made equal."""
    free = OF_TRAINING | IN_NAMES | OF_HEAD | TIES
    options = {name: getattr(table, name) for name in type(table).model_fields if name not in free}
    if isinstance(table.feed_forward, int):
        options["feed_forward"] = "some"  # how many hidden units, shapes tell
    if table.traits.attends:
        each = [table.heads_of(layer) for layer in range(layers)]
        options |= {"heads": one_value([heads for heads, _ in each]), "head_size": one_value([size for _, size in each])}
    if table.slopes is not None:
        options["slopes"] = table.slopes[:layers]
    if table.norm == "layer":
        options["norm_eps"] = 1e-5 if table.norm_eps is None else table.norm_eps
    options.pop("cross_heads", None)  # it is of the attention to a source
    return options


def head_options(table: Any) -> dict[str, Any]:
    return {name: getattr(table, name) for name in type(table).model_fields if name in OF_HEAD | {"tied"}}


def attention_span(table: StackTable, longest: int) -> int | None:
    """How far attention sees in a stack that is trained on so many positions."""
    return longest if table.traits.attends and not table.two_way else None


def encoder_parts(
    settings: Settings, tokens: Tokenizer, layers: Mapping[str, int], *, longest: int, head: Mapping[str, Any]
) -> dict[str, Part]:
    """The parts of a network of one stack, which are an encoder's, and a head: of its first layers. `head` is what decides what
    the head computes beside the options of [model]."""
    model: StackTable = settings.model
    return {
        "encoder.front": Part(words_of(tokens)),
        "encoder.stack": Part(in_table("model", stack_options(model, layers["encoder"])), attention_span(model, longest)),
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

    parts: Callable[[Settings, Any, Mapping[str, int]], dict[str, Part]]  # of a vocabulary, and of so many layers
    layers: Callable[[Any], dict[str, int]] = _one_stack  # of [model]: how many layers each stack has
    scales: Callable[[Any], dict[str, float]] = _one_scale  # of [model]: what vectors of each embedding are multiplied by
    named: Callable[[str], str] = _unchanged  # what a weight would be called in a network that has an encoder
    masked: bool = True  # the last row of the embedding stands for what is masked
    continues: bool = False  # predicts the next token: fits into a decoder, and has no encoder
    in_decoder: Callable[[str, Any], str] | None = None  # of [model]: a language model's weight in the decoder of this one


def weights_of(settings: Settings) -> Weights | None:
    """None of what is no network."""
    return None if settings.preset.estimator.shape is None else settings.spec.weights


def layers_of(settings: Settings) -> dict[str, int]:
    """How many layers each stack has; none where there is no network."""
    weights = weights_of(settings)
    return {} if weights is None else weights.layers(settings.model)


def parts_of(settings: Settings, tokenizer: Any, layers: Mapping[str, int]) -> dict[str, Part]:
    """The parts of a run's network, of so many layers; those of one stack are an encoder's. None of what is no network."""
    weights = weights_of(settings)
    return {} if weights is None else weights.parts(settings, tokenizer, layers)


def loudness(settings: Settings) -> dict[str, float]:
    """What the vectors of each embedding are multiplied by."""
    weights = weights_of(settings)
    return {} if weights is None else weights.scales(settings.model)
