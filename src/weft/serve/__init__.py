"""Serve trained runs: an engine that batches requests (`engine`), and an HTTP API over it (`http`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.serve.engine import Engine
    from weft.serve.limits import Limits
    from weft.serve.ticket import Ticket

_MODULES = {"Engine": "weft.serve.engine", "Limits": "weft.serve.limits", "Ticket": "weft.serve.ticket"}
__all__ = ["Engine", "Limits", "Ticket"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'weft.serve' has no attribute {name!r}")
