"""Initialization from the weights of another run, as far as they compute the same function in the new model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.errors import ConfigError
from weft.training.weight_compatibility import Part, Weights, embedding_scale, layers_of, parts_of, weights_of

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

EMBEDDING, SEGMENTS = "encoder.embedder.embedding.weight", "encoder.embedder.segments.weight"
POSITIONS = "stack.positions.table.weight"


class BuiltRun(NamedTuple):
    """A configuration with its tokenizer: what determines the meaning of weights."""

    config: RunConfig
    tokenizer: Any


class InitRun(NamedTuple):
    """The run that another run is initialized from."""

    path: Path
    built: BuiltRun
    tensors: Mapping[str, Tensor]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


# ---- names


def _becomes_decoder(theirs: Weights, ours: Weights) -> bool:
    """Whether theirs is a language model that initializes the decoder of ours."""
    return theirs.continues and ours.in_decoder is not None


def _name(name: str, theirs: RunConfig, ours: RunConfig) -> str | None:
    """The name in our model of a weight of theirs; None if there is none: heads belong to their task."""
    if theirs.spec is ours.spec:
        return name
    there, here = weights_of(theirs), weights_of(ours)
    if there is None or here is None:
        return None
    if there.continues and here.in_decoder is not None:
        return here.in_decoder(name, ours.model)
    encoder_name = there.named(name)
    return encoder_name if encoder_name.startswith("encoder.") and not here.continues else None


def _part_of(name: str, weights: Weights | None) -> str:
    """The part of the network that a weight belongs to."""
    name = name if weights is None else weights.named(name)
    if name.startswith("encoder.embedder.char_encoder."):
        return "char_encoder"
    side = ".".join(name.split(".")[:2])
    return side if side in ("encoder.embedder", "encoder.stack", "decoder.embedder", "decoder.stack") else "head"


# ---- tensors in an equivalent form


def _without_segments(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights without segment embeddings: a single text is a first segment, whose vector can be added to the token embeddings.
    If these are also the output weights, all logits change by the same amount, and probabilities do not change."""
    if SEGMENTS not in theirs or EMBEDDING not in theirs:
        return theirs
    old, folded = theirs[EMBEDDING].data_ptr(), theirs[EMBEDDING] + theirs[SEGMENTS][0]
    rest = {name: weight for name, weight in theirs.items() if name != SEGMENTS}
    return {name: folded if weight.data_ptr() == old else weight for name, weight in rest.items()}


def _with_mask_row(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Embeddings with a last row for the mask token if our model has one. It starts as the mean of all rows."""
    has_mask, had_mask = (weights is not None and weights.masked for weights in map(weights_of, (ours, other)))
    embedding = theirs.get(EMBEDDING)
    if embedding is None or has_mask == had_mask:
        return theirs
    extended = torch.cat([embedding, embedding.mean(0, keepdim=True)]) if has_mask else embedding[:-1]
    return {**theirs, EMBEDDING: extended}


def _rescaled(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Embeddings divided by the factor that our model multiplies them by."""
    their_scale, rescaled = embedding_scale(other), dict(theirs)
    for side, scale in embedding_scale(ours).items():
        factor = their_scale.get(side, 1.0) / scale
        name = f"{side}.embedder.embedding.weight"
        if name in theirs and factor != 1.0:
            rescaled[name] = theirs[name] * factor
    return rescaled


def _with_fewer_positions(theirs: dict[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The first learned positions, as many as our model has: a shorter text is the beginning of a longer one."""
    long = {name for name in theirs if name.endswith(POSITIONS) and name in ours and len(theirs[name]) > len(ours[name])}
    return {name: weight[: len(ours[name])] if name in long else weight for name, weight in theirs.items()}


def _converted(init_run: InitRun, config: RunConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights with the names and in the form of our model."""
    other = init_run.built.config
    named = {_name(name, other, config): weight for name, weight in init_run.tensors.items()}
    theirs = {name: weight for name, weight in named.items() if name is not None}
    theirs = theirs if SEGMENTS in ours else _without_segments(theirs)
    return _with_fewer_positions(_rescaled(_with_mask_row(theirs, config, other), config, other), ours)


# ---- options that must be equal


def _parts(ours: BuiltRun, theirs: BuiltRun) -> tuple[dict[str, Part], dict[str, Part]]:
    """The parts of both networks by the same names, with the layers that both have."""
    here, there = layers_of(ours.config), layers_of(theirs.config)
    weights = weights_of(theirs.config), weights_of(ours.config)
    side = "decoder" if weights[0] and weights[1] and _becomes_decoder(weights[0], weights[1]) else "encoder"
    is_single = len(there) == 1
    if is_single:
        there = {side: there["encoder"]}
    common = {name: min(number, there.get(name, number)) for name, number in here.items()}
    if not is_single:
        parts = parts_of(*theirs, {**there, **common})
        if len(here) == 1 and parts:
            parts["encoder.stack"] = parts["encoder.stack"].moved("model.encoder", "model")
        return parts_of(*ours, common), parts
    parts = parts_of(*theirs, {"encoder": common[side]})
    if len(here) > 1:  # options of [model] there are options of one side here
        parts["encoder.stack"] = parts["encoder.stack"].moved("model", f"model.{side}")
    return parts_of(*ours, common), {name.replace("encoder.", f"{side}."): part for name, part in parts.items()}


# parts without weights: their options concern the weights of these parts
CONCERNED_PARTS = {"joint": ("decoder.stack",), "shared": ("encoder.embedder", "decoder.embedder")}


def _differences(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> dict[str, list[str]]:
    """The differing options that concern each part with copied weights."""
    here, there = _parts(ours, theirs)
    differences: dict[str, list[str]] = {}
    for name in here:
        concerned = CONCERNED_PARTS.get(name, (name,))
        if name in there and copied.intersection(concerned) and (differing := here[name].differences(there[name])):
            differences |= {part: [*differences.get(part, []), *differing] for part in concerned}
    is_rescaled = embedding_scale(theirs.config).get("decoder", 1.0) != embedding_scale(ours.config).get("decoder", 1.0)
    if is_rescaled and {"head", "decoder.embedder"} <= copied and here["head"].options.get("model.tie_embeddings"):
        differences["head"] = [
            *differences.get("head", []),
            "model.tie_embeddings: the embeddings, which are scaled here, are also the output weights",
        ]
    return differences


def _span_note(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> str:
    """A note if the attention spans differ, which is allowed."""
    here, there = _parts(ours, theirs)
    note = ""
    for name in sorted(copied & here.keys() & there.keys()):
        spans = here[name].span, there[name].span
        if None not in spans and spans[0] != spans[1]:
            note += f"; attention span {spans[0]:,} tokens (was {spans[1]:,})"
    return note


def _check_shape(name: str, here: Tensor, there: Tensor, run: Path) -> None:
    if here.shape != there.shape:
        shape, their_shape = ("x".join(map(str, tensor.shape)) for tensor in (here, there))
        raise ConfigError(
            "train.init_from",
            f"{name} is {shape} here and {their_shape} in {run}",
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
    theirs = _converted(init_run, built.config, ours)
    common = [name for name in ours if name in theirs]
    if not strict:
        common = [name for name in common if ours[name].shape == theirs[name].shape]
    differences = _differences(built, init_run.built, {_part_of(name, weights) for name in common})
    if not strict:
        common = [name for name in common if _part_of(name, weights) not in differences]
    elif differences:
        listed = "; ".join(dict.fromkeys(text for texts in differences.values() for text in texts))
        raise ConfigError(
            "train.init_from",
            f"the weights of {run} would compute another function here ({listed})",
            "use the same options, or set train.init_strict = false to skip these weights",
        )
    for name in common:
        _check_shape(name, ours[name], theirs[name], run)
    if not common:
        raise ConfigError("train.init_from", f"no weights of {run} have the names of this model's weights")
    model.load_state_dict({name: theirs[name] for name in common}, strict=False)
    initialized = {ours[name].data_ptr() for name in common}  # a tied tensor has several names
    new = [name for name in ours if name not in common and ours[name].data_ptr() not in initialized]
    names = {name: _name(name, init_run.built.config, built.config) for name in init_run.tensors}
    folded = {SEGMENTS} - theirs.keys()
    unused = [name for name, our_name in names.items() if our_name not in common and name not in folded]
    note = f"Initialized {len(common)} tensors from {run}"
    note += f"; not in {run}: {_listed(new)}" if new else ""
    note += f"; unused: {_listed(unused)}" if unused else ""
    return note + _span_note(built, init_run.built, {_part_of(name, weights) for name in common})
