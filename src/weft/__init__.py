"""weft: train, compare and explain sequence models, from n-grams to Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft import errors
    from weft.report.compare import Comparison, compare
    from weft.report.fit import Fit, fit
    from weft.runs.average import average
    from weft.runs.callback import TrainCallback, TrainProgress
    from weft.runs.check import check
    from weft.runs.distill import distill
    from weft.runs.load import ensemble, load
    from weft.runs.merge import merge
    from weft.runs.run import Run
    from weft.runs.train import train

__version__ = "0.1.0"
_MODULES = {  # public names are imported on first use: `weft --help` and `weft.errors` must not wait for torch
    "Run": "weft.runs.run",
    "TrainCallback": "weft.runs.callback",
    "TrainProgress": "weft.runs.callback",
    "Comparison": "weft.report.compare",
    "Fit": "weft.report.fit",
    "average": "weft.runs.average",
    "check": "weft.runs.check",
    "compare": "weft.report.compare",
    "distill": "weft.runs.distill",
    "ensemble": "weft.runs.load",
    "fit": "weft.report.fit",
    "load": "weft.runs.load",
    "merge": "weft.runs.merge",
    "train": "weft.runs.train",
}
__all__ = [
    "Comparison",
    "Fit",
    "Run",
    "TrainCallback",
    "TrainProgress",
    "__version__",
    "average",
    "check",
    "compare",
    "distill",
    "ensemble",
    "errors",
    "fit",
    "load",
    "merge",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("weft.errors")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
