"""Runs that are decoded by another program."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError, unknown_name
from weft.runs.run import Run
from weft.tasks.spec import I, P

if TYPE_CHECKING:
    from weft.decode.decoder import Decoder

TORCH = "torch"
# engine -> the dotted name of the function that makes its `Decoder` from a run and a quantization or None
ENGINES = {"ctranslate2": "weft.interop.ctranslate2_engine.open_decoder"}


def check_engine(name: str, quantization: str | None) -> None:
    """Refuse an engine that does not exist, and options of engines without one."""
    if name != TORCH and name not in ENGINES:
        raise UsageError("engine", *unknown_name("engine", name, (TORCH, *ENGINES)))
    if quantization is not None and name == TORCH:
        raise UsageError("quantization", f"not used with `engine` {TORCH!r}", f"use `engine` {next(iter(ENGINES))!r}")


class EngineRun(Run[I, P]):
    """A run that another program decodes. Everything else, such as scores of given texts, is computed by weft."""

    def __init__(self, run: Run[I, P], engine: str, quantization: str | None) -> None:
        super().__init__(run.directory, run.config, run.vocabulary, run.device_name)
        self._engine, self._quantization = engine, quantization

    @cached_property
    def decoder(self) -> Decoder:
        module, _, name = ENGINES[self._engine].rpartition(".")
        open_decoder: Any = getattr(import_module(module), name)
        decoder: Decoder = open_decoder(self, self._quantization)
        return decoder
