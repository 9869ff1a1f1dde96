"""What the weights of a run mean: everything in its resolved tables that decides what a network computes with them.

Two runs may have tensors of the same names and shapes and compute different functions: other heads, positions, activations,
norms, directions. An option is taken to matter unless it is listed here as one that does not, so a new option is compared
from the day it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.config import plain
from weft.models.pair_tables import Seq2SeqTable
from weft.models.seq2seq import scales
from weft.models.tables import StackTable
from weft.text.labelled_tokens import LabelledTokens

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


def _alike(values: list[Any]) -> Any:
    """One value where all layers have the same."""
    return values[0] if values and all(value == values[0] for value in values) else values


def _at(at: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{at}.{name}": value for name, value in options.items()}


def _words(tokenizer: Any) -> dict[str, Any]:
    return {"tokenizer": tokenizer.hash[:8]}


def _stack(table: StackTable, layers: int) -> dict[str, Any]:
    """What a stack computes, of its first layers: options that say the same in different words are made equal."""
    free = OF_TRAINING | IN_NAMES | OF_HEAD | TIES
    options = {name: getattr(table, name) for name in type(table).model_fields if name not in free}
    if isinstance(table.feed_forward, int):
        options["feed_forward"] = "some"  # how many hidden units, shapes tell
    if table.traits.attends:
        each = [table.heads_of(layer) for layer in range(layers)]
        options |= {"heads": _alike([heads for heads, _ in each]), "head_size": _alike([size for _, size in each])}
    if table.slopes is not None:
        options["slopes"] = table.slopes[:layers]
    if table.norm == "layer":
        options["norm_eps"] = 1e-5 if table.norm_eps is None else table.norm_eps
    options.pop("cross_heads", None)  # it is of the attention to a source
    return options


def _head(table: Any) -> dict[str, Any]:
    return {name: getattr(table, name) for name in type(table).model_fields if name in OF_HEAD | {"tied"}}


def _span(table: StackTable, longest: int) -> int | None:
    return longest if table.traits.attends and not table.two_way else None


def layers_of(settings: Settings) -> dict[str, int]:
    """How many layers each stack has; none where there is no network."""
    model = settings.model
    if isinstance(model, Seq2SeqTable):
        return {"encoder": model.encoder.layers, "decoder": model.decoder.layers}
    return {"encoder": model.layers} if isinstance(model, StackTable) else {}


def _joint(table: Seq2SeqTable, layers: int) -> dict[str, Any]:
    """What a decoder computes where it looks at a source."""
    free = OF_TRAINING | IN_NAMES | OF_HEAD | TIES
    options = {name: getattr(table, name) for name in type(table).model_fields if name not in free}
    if table.decoder.traits.attends:
        crossed = [table.decoder.cross_heads_of(layer)[0] for layer in range(layers)]
        return options | {"decoder.cross_heads": _alike(crossed)}
    if table.attention == "none":  # around recurrent layers it is a part that is there or not
        return {name: ABSENT for name in options}
    return options


def _pair_parts(settings: Settings, tokenizer: Any, layers: Mapping[str, int]) -> dict[str, Part]:
    model, longest = settings.model, settings.data.longest
    parts = {}
    for side, tokens in (("encoder", tokenizer.source), ("decoder", tokenizer.target)):
        table = getattr(model, side)
        parts[f"{side}.front"] = Part(_words(tokens))
        parts[f"{side}.stack"] = Part(_at(f"model.{side}", _stack(table, layers[side])), _span(table, longest))
    parts["joint"] = Part(_at("model", _joint(model, layers["decoder"])))
    parts["shared"] = Part({"model.shared": model.shared})
    parts["head"] = Part(_at("model", _head(model)) | _words(tokenizer.target))
    return parts


def parts_of(settings: Settings, tokenizer: Any, layers: Mapping[str, int]) -> dict[str, Part]:
    """The parts of a run's network, of so many layers; those of one stack are an encoder's. None of what is no network."""
    model, data = settings.model, settings.data
    if isinstance(model, Seq2SeqTable):
        return _pair_parts(settings, tokenizer, layers)
    if not isinstance(model, StackTable):
        return {}
    tokens = tokenizer.tokenizer if isinstance(tokenizer, LabelledTokens) else tokenizer
    longest = data.window if settings.task in ("lm", "masked-lm") else data.longest
    head = _words(tokens)
    if settings.task in ("classify", "tag"):
        head = {"labels": list(tokenizer.labels.names), "data.multi": plain(data).get("multi")}
    parts = {
        "encoder.front": Part(_words(tokens)),
        "encoder.stack": Part(_at("model", _stack(model, layers["encoder"])), _span(model, longest)),
        "head": Part(_at("model", _head(model)) | head),
    }
    if settings.task == "tag" and (spelling := settings.model.letters()) is not None:
        letters = {**_stack(spelling, spelling.layers), "pool": spelling.pool}
        parts["spelling"] = Part(_at("model.spelling", letters) | {"letters": tokenizer.letters.hash[:8]})
    return parts


def loudness(settings: Settings) -> dict[str, float]:
    """What the vectors of each embedding are multiplied by."""
    if not isinstance(settings.model, Seq2SeqTable):
        return {"encoder": 1.0}
    source, target = scales(settings.model)
    return {"encoder": source, "decoder": target}
