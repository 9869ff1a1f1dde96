"""Initialize a model with the weights of another run, if they compute the same function in both.

`ours` is the new model, `theirs` the run that it is initialized from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import ConfigError
from weft.nn.lora import adapter_names, merge_adapters
from weft.training.weight_compatibility import Part, Weights, embedding_scale, layers_of, parts_of, weights_of

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

EMBEDDING, SEGMENTS = "encoder.embedder.embedding.weight", "encoder.embedder.segments.weight"
POSITIONS = "stack.positions.table.weight"
# weights with a row per token; the head of a task with other outputs has another name
NOISE_ROWS = (EMBEDDING, "decoder.embedder.embedding.weight", "head.head.weight", "head.head.bias")


class BuiltRun(NamedTuple):
    """A configuration and its tokenizer, which determine the meaning of the weights."""

    config: RunConfig
    tokenizer: Any


class InitRun(NamedTuple):
    """The run that another run is initialized from."""

    path: Path
    built: BuiltRun
    tensors: Mapping[str, Tensor]


def _abbreviate(names: list[str]) -> str:
    """The first three names, and the number of the others."""
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


# ---- names


def _becomes_decoder(theirs: Weights, ours: Weights) -> bool:
    """Whether theirs is a language model that initializes the decoder of ours."""
    return theirs.is_causal and ours.decoder_name is not None


def _our_name(name: str, theirs: RunConfig, ours: RunConfig) -> str | None:
    """The name that a weight of theirs has in our model; None if it has no equivalent, such as the head of another task."""
    if theirs.spec is ours.spec:
        return name
    their_weights, our_weights = weights_of(theirs), weights_of(ours)
    if their_weights is None or our_weights is None:
        return None
    if their_weights.decoder_name is not None and our_weights.decoder_name is not None:  # both are encoder-decoders
        return name
    if their_weights.is_causal and our_weights.is_causal:  # both are language models
        return name
    if their_weights.is_causal and our_weights.decoder_name is not None:
        return our_weights.decoder_name(name, ours.model)
    encoder_name = their_weights.encoder_name(name)
    return encoder_name if encoder_name.startswith("encoder.") and not our_weights.is_causal else None


def _part_of(name: str, weights: Weights | None) -> str:
    """The part of the network that a weight belongs to."""
    name = name if weights is None else weights.encoder_name(name)
    if name.startswith("encoder.embedder.char_encoder."):
        return "char_encoder"
    part = ".".join(name.split(".")[:2])
    return part if part in ("encoder.embedder", "encoder.stack", "decoder.embedder", "decoder.stack") else "head"


# ---- conversion of tensors, without changing the function


def _without_segments(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights without segment embeddings: a single text is a first segment, whose vector can be added to the token embeddings.
    If these are also the output weights, all logits change by the same amount, and probabilities do not change."""
    if SEGMENTS not in theirs or EMBEDDING not in theirs:
        return theirs
    embedding = theirs[EMBEDDING].data_ptr()  # tied output weights are the same tensor
    folded = theirs[EMBEDDING] + theirs[SEGMENTS][0]
    rest = {name: weight for name, weight in theirs.items() if name != SEGMENTS}
    return {name: folded if weight.data_ptr() == embedding else weight for name, weight in rest.items()}


def _with_noise_rows(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Weights with as many rows for noise tokens, after those of the tokenizer, as our model has; rows that theirs lacks are
    the mean of all rows."""
    our_weights, their_weights = weights_of(ours), weights_of(other)
    num_ours = 0 if our_weights is None else our_weights.num_noise_tokens(ours)
    num_theirs = 0 if their_weights is None else their_weights.num_noise_tokens(other)
    resized, num_new = dict(theirs), max(0, num_ours - num_theirs)
    for name in theirs.keys() & set(NOISE_ROWS) if num_ours != num_theirs else ():
        rows = theirs[name]
        mean = rows.mean(0, keepdim=True).expand(num_new, *rows.shape[1:])
        resized[name] = torch.cat([rows[: len(rows) - max(0, num_theirs - num_ours)], mean])
    return resized


def _rescaled(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Weights with embeddings multiplied by the ratio of their embedding scale to ours."""
    their_scale, rescaled = embedding_scale(other), dict(theirs)
    for side, scale in embedding_scale(ours).items():
        factor = their_scale.get(side, 1.0) / scale
        name = f"{side}.embedder.embedding.weight"
        if name in theirs and factor != 1.0:
            rescaled[name] = theirs[name] * factor
    return rescaled


def _with_fewer_positions(theirs: dict[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with learned positions truncated to the number that our model has."""
    too_long = {name for name in theirs if name.endswith(POSITIONS) and name in ours and len(theirs[name]) > len(ours[name])}
    return {name: weight[: len(ours[name])] if name in too_long else weight for name, weight in theirs.items()}


def _with_same_adapters(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights with adapters that are merged into the others, unless our model has the same adapters."""
    names = adapter_names(theirs)
    return theirs if all(name in ours and ours[name].shape == theirs[name].shape for name in names) else merge_adapters(theirs)


def _convert(init_run: InitRun, config: RunConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights with the names and in the form of our model."""
    other = init_run.built.config
    renamed = {_our_name(name, other, config): weight for name, weight in init_run.tensors.items()}
    theirs = {name: weight for name, weight in renamed.items() if name is not None}
    if SEGMENTS not in ours:
        theirs = _without_segments(theirs)
    theirs = _with_noise_rows(theirs, config, other)
    theirs = _rescaled(theirs, config, other)
    return _with_fewer_positions(theirs, ours)


# ---- options that must be equal


def _parts(ours: BuiltRun, theirs: BuiltRun) -> tuple[dict[str, Part], dict[str, Part]]:
    """The parts of our and their network by the same names, with the layers that both have."""
    our_layers, their_layers = layers_of(ours.config), layers_of(theirs.config)
    our_weights, their_weights = weights_of(ours.config), weights_of(theirs.config)
    side = "decoder" if their_weights and our_weights and _becomes_decoder(their_weights, our_weights) else "encoder"
    is_single = len(their_layers) == 1
    if is_single:
        their_layers = {side: their_layers["encoder"]}
    common = {stack: min(count, their_layers.get(stack, count)) for stack, count in our_layers.items()}
    if not is_single:
        parts = parts_of(*theirs, {**their_layers, **common})
        if len(our_layers) == 1 and parts:
            parts["encoder.stack"] = parts["encoder.stack"].in_other_table("model.encoder", "model")
        return parts_of(*ours, common), parts
    parts = parts_of(*theirs, {"encoder": common[side]})
    if len(our_layers) > 1:  # their options in [model] are options of one side in our model
        parts["encoder.stack"] = parts["encoder.stack"].in_other_table("model", f"model.{side}")
    return parts_of(*ours, common), {name.replace("encoder.", f"{side}."): part for name, part in parts.items()}


# parts without weights, and the parts whose weights depend on their options
DEPENDENT_PARTS = {"joint": ("decoder.stack",), "shared": ("encoder.embedder", "decoder.embedder")}


def _differences(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> dict[str, list[str]]:
    """For each part with copied weights, the options that differ and that its weights depend on."""
    our_parts, their_parts = _parts(ours, theirs)
    differences: dict[str, list[str]] = {}
    for name, our_part in our_parts.items():
        dependent = DEPENDENT_PARTS.get(name, (name,))
        if name not in their_parts or not copied.intersection(dependent):
            continue
        if differing := our_part.differences(their_parts[name]):
            differences |= {part: [*differences.get(part, []), *differing] for part in dependent}
    is_rescaled = embedding_scale(theirs.config).get("decoder", 1.0) != embedding_scale(ours.config).get("decoder", 1.0)
    if is_rescaled and {"head", "decoder.embedder"} <= copied and our_parts["head"].options.get("model.tie_embeddings"):
        differences["head"] = [
            *differences.get("head", []),
            "model.tie_embeddings: the embeddings, which are scaled here, are also the output weights",
        ]
    return differences


def _span_note(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> str:
    """A note if the attention spans differ, which is allowed."""
    our_parts, their_parts = _parts(ours, theirs)
    note = ""
    for name in sorted(copied & our_parts.keys() & their_parts.keys()):
        our_span, their_span = our_parts[name].span, their_parts[name].span
        if our_span is not None and their_span is not None and our_span != their_span:
            note += f"; attention span {our_span:,} tokens (was {their_span:,})"
    return note


def _check_shape(name: str, ours: Tensor, theirs: Tensor, run: Path) -> None:
    if ours.shape != theirs.shape:
        our_shape, their_shape = ("x".join(map(str, tensor.shape)) for tensor in (ours, theirs))
        raise ConfigError(
            "train.init_from",
            f"{name} is {our_shape} here and {their_shape} in {run}",
            "use its tokenizer (`tokenizer_from`) and its sizes, or set train.init_strict = false to skip it",
        )


def load_initial_weights(model: nn.Module, built: BuiltRun, init_run: InitRun, *, strict: bool = True) -> str:
    """Copy the weights of another run into a model.

    Args:
        model: The new model.
        built: Its configuration and tokenizer.
        init_run: The other run.
        strict: Raise an error if weights have another shape or would compute another function. If false, skip them.

    Returns:
        A note on the weights that were copied, are new, or were not used.

    Raises:
        ConfigError: Weights do not match, or no weights have the same names.
    """
    weights, run = weights_of(built.config), init_run.path
    ours: dict[str, Any] = model.state_dict()
    init_run = init_run._replace(tensors=_with_same_adapters(init_run.tensors, ours))
    theirs = _convert(init_run, built.config, ours)
    common = [name for name in ours if name in theirs]
    if not strict:
        common = [name for name in common if ours[name].shape == theirs[name].shape]
    differences = _differences(built, init_run.built, {_part_of(name, weights) for name in common})
    if not strict:
        common = [name for name in common if _part_of(name, weights) not in differences]
    elif differences:
        listed = list(dict.fromkeys(text for texts in differences.values() for text in texts))
        other_tokens = any(text.startswith("tokenizer: ") for text in listed)
        same = "use its tokenizer (`tokenizer_from`), and the same options" if other_tokens else "use the same options"
        raise ConfigError(
            "train.init_from",
            f"the weights of {run} would compute another function here ({'; '.join(listed)})",
            f"{same}, or set train.init_strict = false to skip these weights",
        )
    for name in common:
        _check_shape(name, ours[name], theirs[name], run)
    if not common:
        raise ConfigError("train.init_from", f"no weights of {run} have the names of this model's weights")
    model.load_state_dict({name: theirs[name] for name in common}, strict=False)
    initialized = {ours[name].data_ptr() for name in common}  # tied weights are one tensor with several names
    new = [name for name in ours if name not in common and ours[name].data_ptr() not in initialized]
    names = {name: _our_name(name, init_run.built.config, built.config) for name in init_run.tensors}
    folded = {SEGMENTS} - theirs.keys()  # used, as part of the embedding
    unused = [name for name, our_name in names.items() if our_name not in common and name not in folded]
    note = f"Initialized {len(common)} tensors from {run}"
    note += f"; not in {run}: {_abbreviate(new)}" if new else ""
    note += f"; unused: {_abbreviate(unused)}" if unused else ""
    return note + _span_note(built, init_run.built, {_part_of(name, weights) for name in common})
