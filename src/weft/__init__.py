"""weft: sequence models from n-gram counts to Transformers; train, compare, generate and score with one run file."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft import errors
    from weft.report.compare import Comparison, compare
    from weft.runs.callback import TrainCallback, TrainProgress
    from weft.runs.check import check
    from weft.runs.load import ensemble, load
    from weft.runs.run import Run
    from weft.runs.train import train

__version__ = "0.1.0"
_PLACES = {  # where public names come from, on first use: `weft --help` and `weft.errors` must not wait for torch
    "Run": "weft.runs.run",
    "TrainCallback": "weft.runs.callback",
    "TrainProgress": "weft.runs.callback",
    "Comparison": "weft.report.compare",
    "check": "weft.runs.check",
    "compare": "weft.report.compare",
    "ensemble": "weft.runs.load",
    "load": "weft.runs.load",
    "train": "weft.runs.train",
}
__all__ = [
    "Comparison",
    "Run",
    "TrainCallback",
    "TrainProgress",
    "__version__",
    "check",
    "compare",
    "ensemble",
    "errors",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("weft.errors")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """`weft.training` is the function, though there is a package of that name as well: importing that changes nothing here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
