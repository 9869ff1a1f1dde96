"""Options of commands that can decode with another program."""

# no postponed annotations here: typer reads those of inherited fields in the subclass's module, where names may be missing
from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.options import DECODING, ModelCommand


def _engines() -> list[str]:
    from weft.runs.engines import ENGINES, TORCH

    return [TORCH, *ENGINES]


@dataclass(kw_only=True)
class EngineOptions(ModelCommand):
    """The program that decodes, and the precision of its weights."""

    engine: Annotated[
        str,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="NAME",
            autocompletion=_engines,
            help="Program that searches for outputs: torch, or ctranslate2 for the same outputs, faster.",
        ),
    ] = "torch"
    quantization: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="TYPE",
            help="Precision of the weights of ctranslate2, such as int8.  [default: float32]",
        ),
    ] = None

    def engine_options(self) -> tuple[str, str | None]:
        """The `engine` and `quantization` of `weft.load`."""
        return self.engine, self.quantization
