"""Starting from the weights of another run, instead of from chance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import ConfigError, ModelError
from weft.tensors import not_finite, read_tensors


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"


EMBEDDING, SEGMENTS = "encoder.front.embedding.weight", "encoder.front.segments.weight"


def _as_encoder(theirs: dict[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of an encoder under a head: those of a language model have others, and only encoders of that sort
    have a row for the mask, the last."""
    if any(name.startswith("stack.") for name in theirs):
        front = {"embedding.weight": EMBEDDING}
        theirs = {front.get(name, f"encoder.{name}"): weight for name, weight in theirs.items()}
    found = theirs.get(EMBEDDING)
    if found is not None and len(found) == len(ours[EMBEDDING]) - 1:
        theirs = {**theirs, EMBEDDING: torch.cat([found, found.mean(0, keepdim=True)])}
    return theirs if SEGMENTS in ours else _of_one_text(theirs)


def _of_one_text(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights without vectors for two texts: a text alone is a first text, and what is added to each of its tokens can as well
    be in their embedding. Where that is the output, too, all scores rise by the same, and probabilities are as they were."""
    if SEGMENTS not in theirs or EMBEDDING not in theirs:
        return theirs
    old, folded = theirs[EMBEDDING], theirs[EMBEDDING] + theirs[SEGMENTS][0]
    return {name: folded if weight is old else weight for name, weight in theirs.items() if name != SEGMENTS}


def start_from(model: nn.Module, run: Path, *, loose: bool = False) -> str:
    """Copy what has the same name and shape from the weights of `run`; in words, what was copied, is new, and was left. What
    has another shape is refused, or with `loose` left."""
    weights = run / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"train.init_from: {run} has no model.safetensors; name the folder of a trained run")
    theirs: dict[str, Tensor] = read_tensors(weights)[0]
    ours: dict[str, Any] = model.state_dict()
    if EMBEDDING in ours and not any(name.startswith("decoder.") for name in ours):
        theirs = _as_encoder(theirs, ours)
    common = [name for name in ours if name in theirs]
    if loose:
        common = [name for name in common if ours[name].shape == theirs[name].shape]
    for name in common:
        if ours[name].shape != theirs[name].shape:
            here, there = (" x ".join(map(str, found[name].shape)) for found in (ours, theirs))
            raise ConfigError(
                f"train.init_from: {name} is {here} here, but {there} in {run}; "
                f"use its tokenizer (--tokenizer-from {run}) and its sizes, or set train.init_loose to leave such weights"
            )
    if not common:
        raise ConfigError(f"train.init_from: {run} has no weights by the names of this model; is it of another kind?")
    copied = {name: theirs[name] for name in common}
    if (spoilt := not_finite(copied)) is not None:
        raise ModelError(f"{weights}: {spoilt} holds NaN or infinity; nothing can be computed with it")
    model.load_state_dict(copied, strict=False)
    new = [name for name in ours if name not in common]
    left = [name for name in theirs if name not in common]
    return f"started from {run}: {len(common)} tensors copied, new here: {_some(new)}, left there: {_some(left)}"
