"""Python's garbage collector, which is kept away from what a command imports.

Importing weft and torch makes 170,000 objects that the collector searches, and that stay until the end. It would search them
again and again while they are made, and all of them once more at the end: together a third of the time of a short command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType


@contextmanager
def paused() -> Iterator[None]:
    """Context manager: nothing is collected in it, and nothing that exists at its end ever will be."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class PausedImport(MetaPathFinder):
    """Finds a module as the other finders do, but pauses the collector while it is imported, wherever that is first done."""

    def __init__(self, name: str) -> None:
        self.name, self.is_asking = name, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self.is_asking = False
        # other loaders may belong to several modules, or pass on what they are given
        if spec is not None and type(spec.loader) is SourceFileLoader:
            self._pause(spec.loader)
        return spec

    def _pause(self, loader: SourceFileLoader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader stays what it was
            self.remove()
            with paused():
                execute(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def remove(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)


@contextmanager
def pausing_import(name: str) -> Iterator[None]:
    """Context manager: the collector is paused while this module is imported, if it is."""
    finder = PausedImport(name)
    if name not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()
