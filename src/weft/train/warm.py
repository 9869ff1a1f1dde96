"""Starting from the weights of another run, instead of from chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from weft.errors import ConfigError
from weft.tensors import read_tensors


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{len(names)} ({shown}{', ...' if len(names) > 3 else ''})" if names else "none"


def start_from(model: nn.Module, run: Path) -> str:
    """Copy what has the same name and shape from the weights of `run`; in words, what was copied, is new, and was left."""
    weights = run / "model.safetensors"
    if not weights.is_file():
        raise ConfigError(f"train.init_from: {run} has no model.safetensors; name the folder of a trained run")
    theirs: dict[str, Tensor] = read_tensors(weights)[0]
    ours: dict[str, Any] = model.state_dict()
    common = [name for name in ours if name in theirs]
    for name in common:
        if ours[name].shape != theirs[name].shape:
            here, there = (" x ".join(map(str, found[name].shape)) for found in (ours, theirs))
            raise ConfigError(
                f"train.init_from: {name} is {here} here, but {there} in {run}; "
                f"use its tokenizer (--tokenizer-from {run}) and its sizes"
            )
    if not common:
        raise ConfigError(f"train.init_from: {run} has no weights by the names of this model; is it of another kind?")
    model.load_state_dict({name: theirs[name] for name in common}, strict=False)
    new = [name for name in ours if name not in theirs]
    left = [name for name in theirs if name not in ours]
    return f"started from {run}: {len(common)} tensors copied, new here: {_some(new)}, left there: {_some(left)}"
