"""isinstance with a protocol: since Python 3.12 it looks attributes up without __getattr__, and so does not see the submodules and
parameters of a torch module. What it answers must not depend on the version."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from typing import Any

import pytest
from torch import nn

from weft.nn.attention import SelfAttention
from weft.nn.experts import Experts, MixtureOfExperts, Router, expert_layers
from weft.nn.positions import RelativeBias


def runtime_protocols() -> dict[str, type]:
    found: dict[str, type] = {}
    for package in ("nn", "models", "explain", "training", "decode", "tasks"):
        root = importlib.import_module(f"weft.{package}")
        for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            if info.name.startswith("weft.nn.triton_") and importlib.util.find_spec("triton") is None:
                continue  # kernels for a GPU
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if isinstance(value, type) and value.__module__ == module.__name__ and vars(value).get("_is_runtime_protocol"):
                    found[f"{module.__name__}.{name}"] = value
    return found


def members(protocol: Any) -> set[str]:
    own = {
        name
        for base in protocol.__mro__
        if base.__module__.startswith("weft")
        for name in (*vars(base), *inspect.get_annotations(base))
    }
    return {name for name in own if not name.startswith("_")}


def has_statically(module: nn.Module, name: str) -> bool:
    return inspect.getattr_static(module, name, None) is not None


def modules() -> list[nn.Module]:
    experts = MixtureOfExperts(
        Router(8, num_experts=4, experts_per_token=2), Experts(8, num_experts=4, ffn_dim=16, activation="gelu")
    )
    positions = RelativeBias(num_heads=2, bidirectional=False)
    return [*experts.modules(), *SelfAttention(8, num_heads=2, positions=positions).modules()]


def test_the_protocols_are_found():
    assert {"weft.nn.experts._RecordsLoad", "weft.nn.positions.HasPositions"} <= set(runtime_protocols())


@pytest.mark.parametrize("name", sorted(runtime_protocols()))
def test_protocols_of_modules_see_no_submodule(name):
    protocol = runtime_protocols()[name]
    for module in modules():
        hidden = {part for part in members(protocol) if part in module._modules or part in module._parameters}
        assert not hidden, f"{name}: isinstance does not see {hidden} of {type(module).__name__} in Python 3.12"
        if isinstance(module, protocol):
            assert all(has_statically(module, part) for part in members(protocol))


def test_layers_with_experts_are_found_by_static_lookup():
    layer = MixtureOfExperts(
        Router(8, num_experts=4, experts_per_token=2), Experts(8, num_experts=4, ffn_dim=16, activation="gelu")
    )
    assert list(expert_layers(nn.Sequential(nn.Linear(8, 8), layer))) == ["1"]
