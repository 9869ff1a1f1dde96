"""weft: sequence models from n-gram counts to Transformers; train, compare, generate and score with one run file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.runs.load import ensemble, load

__version__ = "0.1.0"
__all__ = ["__version__", "ensemble", "load"]


def __getattr__(name: str) -> Any:
    # on first use: `weft --help` and `weft.errors` must not wait for torch
    if name in ("ensemble", "load"):
        from weft.runs import load as loading

        return getattr(loading, name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
