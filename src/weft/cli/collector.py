"""Python's garbage collector, which is kept away from what a command imports.

Importing weft and torch makes 170,000 objects that the collector searches, and that stay until the end. It would search them
again and again while they are made, and all of them once more at the end: together a third of the time of a short command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


@contextmanager
def paused() -> Iterator[None]:
    """Context manager: nothing is collected in it, and nothing that exists at its end ever will be."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class PausedImport(MetaPathFinder):
    """Finds a module as usual, but pauses the collector while it is imported, whichever command does so first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with paused():
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader alone
        return spec


def pause_imports(name: str) -> None:
    """Pause the collector while the module is imported, if it is."""
    if name not in sys.modules:
        sys.meta_path.insert(0, PausedImport(name))
