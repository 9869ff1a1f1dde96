"""Starting from the weights of another run, instead of from chance: only where they compute here what they compute there."""

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
    """A run as far as its weights have a meaning."""

    config: RunConfig
    tokenizer: Any


class InitRun(NamedTuple):
    """The run that another one starts from."""

    path: Path
    made: BuiltRun
    tensors: Mapping[str, Tensor]


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"


# ---- names


def _adopts(theirs: Weights, ours: Weights) -> bool:
    """Whether theirs is a language model, which becomes the decoder of ours."""
    return theirs.continues and ours.in_decoder is not None


def _name(name: str, theirs: RunConfig, ours: RunConfig) -> str | None:
    """What a weight of theirs is called here; None where it has no place: a head is of its task."""
    if theirs.spec is ours.spec:
        return name
    there, here = weights_of(theirs), weights_of(ours)
    if there is None or here is None:
        return None
    if there.continues and here.in_decoder is not None:
        return here.in_decoder(name, ours.model)
    known = there.named(name)
    return known if known.startswith("encoder.") and not here.continues else None


def _part_of(name: str, weights: Weights | None) -> str:
    """The part that a weight of a network belongs to."""
    name = name if weights is None else weights.named(name)
    if name.startswith("encoder.embedder.char_encoder."):
        return "char_encoder"
    side = ".".join(name.split(".")[:2])
    return side if side in ("encoder.embedder", "encoder.stack", "decoder.embedder", "decoder.stack") else "head"


# ---- tensors that mean the same in another form


def _of_one_text(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights without vectors for two texts: a text alone is a first text, and what is added to each of its tokens can as well
    be in their embedding. Where that is the output, too, all scores rise by the same, and probabilities are as they were."""
    if SEGMENTS not in theirs or EMBEDDING not in theirs:
        return theirs
    old, folded = theirs[EMBEDDING].data_ptr(), theirs[EMBEDDING] + theirs[SEGMENTS][0]
    rest = {name: weight for name, weight in theirs.items() if name != SEGMENTS}
    return {name: folded if weight.data_ptr() == old else weight for name, weight in rest.items()}


def _with_words(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Embeddings with a row for the mask, the last, where there is one here; it starts as the mean of all."""
    here, there = (weights is not None and weights.masked for weights in map(weights_of, (ours, other)))
    found = theirs.get(EMBEDDING)
    if found is None or here == there:
        return theirs
    return {**theirs, EMBEDDING: torch.cat([found, found.mean(0, keepdim=True)]) if here else found[:-1]}


def _as_loud(theirs: dict[str, Tensor], ours: RunConfig, other: RunConfig) -> dict[str, Tensor]:
    """Embeddings that are as loud here, where they may be multiplied by something, as they are there."""
    there, changed = embedding_scale(other), dict(theirs)
    for side, here in embedding_scale(ours).items():
        factor = there.get(side, 1.0) / here
        name = f"{side}.embedder.embedding.weight"
        if name in theirs and factor != 1.0:
            changed[name] = theirs[name] * factor
    return changed


def _placed(theirs: dict[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Learned positions, the first as many as there are here: a shorter text is read as the beginning of a longer one."""
    long = {name for name in theirs if name.endswith(POSITIONS) and name in ours and len(theirs[name]) > len(ours[name])}
    return {name: weight[: len(ours[name])] if name in long else weight for name, weight in theirs.items()}


def _translated(origin: InitRun, config: RunConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their weights by the names, and in the form, that they have here."""
    other = origin.made.config
    named = {_name(name, other, config): weight for name, weight in origin.tensors.items()}
    theirs = {name: weight for name, weight in named.items() if name is not None}
    theirs = theirs if SEGMENTS in ours else _of_one_text(theirs)
    return _placed(_as_loud(_with_words(theirs, config, other), config, other), ours)


# ---- what must be equal


def _parts(ours: BuiltRun, theirs: BuiltRun) -> tuple[dict[str, Part], dict[str, Part]]:
    """The parts of both networks by the same names, as far as both have layers."""
    here, there = layers_of(ours.config), layers_of(theirs.config)
    weights = weights_of(theirs.config), weights_of(ours.config)
    side = "decoder" if weights[0] and weights[1] and _adopts(weights[0], weights[1]) else "encoder"
    single = len(there) == 1  # the one stack of theirs has a place here
    if single:
        there = {side: there["encoder"]}
    fewest = {name: min(number, there.get(name, number)) for name, number in here.items()}
    if not single:
        found = parts_of(*theirs, {**there, **fewest})
        if len(here) == 1 and found:
            found["encoder.stack"] = found["encoder.stack"].moved("model.encoder", "model")
        return parts_of(*ours, fewest), found
    found = parts_of(*theirs, {"encoder": fewest[side]})
    if len(here) > 1:  # what stands at [model] there is of one side here
        found["encoder.stack"] = found["encoder.stack"].moved("model", f"model.{side}")
    return parts_of(*ours, fewest), {name.replace("encoder.", f"{side}."): part for name, part in found.items()}


# parts that have no weights of their own: what is about the weights of others
ABOUT = {"joint": ("decoder.stack",), "shared": ("encoder.embedder", "decoder.embedder")}


def _differences(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> dict[str, list[str]]:
    """What differs in each part that weights are copied to, or in what is about them."""
    here, there = _parts(ours, theirs)
    found: dict[str, list[str]] = {}
    for name in here:
        about = ABOUT.get(name, (name,))
        if name in there and copied.intersection(about) and (differs := here[name].against(there[name])):
            found |= {part: [*found.get(part, []), *differs] for part in about}
    louder = embedding_scale(theirs.config).get("decoder", 1.0) != embedding_scale(ours.config).get("decoder", 1.0)
    if louder and {"head", "decoder.embedder"} <= copied and here["head"].options.get("model.tie_embeddings"):
        found["head"] = [
            *found.get("head", []),
            "model.tie_embeddings: true makes the embedding, which is scaled here, the output",
        ]
    return found


def _telling(ours: BuiltRun, theirs: BuiltRun, copied: set[str]) -> str:
    """What differs and is no fault, but is to be known: how far attention sees."""
    here, there = _parts(ours, theirs)
    said = ""
    for name in sorted(copied & here.keys() & there.keys()):
        spans = here[name].span, there[name].span
        if None not in spans and spans[0] != spans[1]:
            said += f"; attention sees {spans[0]:,} tokens here, {spans[1]:,} there"
    return said


def _check_shape(name: str, here: Tensor, there: Tensor, run: Path) -> None:
    if here.shape != there.shape:
        mine, other = (" x ".join(map(str, found.shape)) for found in (here, there))
        raise ConfigError(
            "train.init_from",
            f"{name} is {mine} here, but {other} in {run}",
            f"use its tokenizer (--tokenizer-from {run}) and its sizes, or set train.init_loose to leave such weights",
        )


def load_initial_weights(model: nn.Module, built: BuiltRun, init_run: InitRun, *, loose: bool = False) -> str:
    """Copy the weights of another run; in words, what was copied, is new, and was left. Those that have another shape here, or
    would compute something else, are refused, or with `loose` left."""
    weights, run = weights_of(built.config), init_run.path
    ours: dict[str, Any] = model.state_dict()
    theirs = _translated(init_run, built.config, ours)
    common = [name for name in ours if name in theirs]
    if loose:
        common = [name for name in common if ours[name].shape == theirs[name].shape]
    differs = _differences(built, init_run.made, {_part_of(name, weights) for name in common})
    if loose:
        common = [name for name in common if _part_of(name, weights) not in differs]
    elif differs:
        listed = "; ".join(dict.fromkeys(text for texts in differs.values() for text in texts))
        raise ConfigError(
            "train.init_from",
            f"the weights of {run} would compute something else here ({listed})",
            "use its values, or set train.init_loose to leave such weights",
        )
    for name in common:
        _check_shape(name, ours[name], theirs[name], run)
    if not common:
        raise ConfigError("train.init_from", f"{run} has no weights by the names of this model", "is it of another kind?")
    model.load_state_dict({name: theirs[name] for name in common}, strict=False)
    filled = {ours[name].data_ptr() for name in common}  # a tied tensor has several names
    new = [name for name in ours if name not in common and ours[name].data_ptr() not in filled]
    names = {name: _name(name, init_run.made.config, built.config) for name in init_run.tensors}
    folded = {SEGMENTS} - theirs.keys()
    left = [name for name, here in names.items() if here not in common and name not in folded]
    told = _telling(built, init_run.made, {_part_of(name, weights) for name in common})
    return f"started from {run}: {len(common)} tensors copied, new here: {_some(new)}, left there: {_some(left)}{told}"
