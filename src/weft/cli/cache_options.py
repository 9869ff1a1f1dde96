"""Options of commands that can add a neural cache to a language model."""

# no postponed annotations here: typer reads those of inherited fields in the subclass's module, where names may be missing
from dataclasses import dataclass
from typing import Annotated

import typer

from weft.cli.options import CACHE, ModelCommand
from weft.errors import UsageError


@dataclass(kw_only=True)
class CacheOptions(ModelCommand):
    """Options of the neural cache. Those that are not set are fitted on the validation data of the run."""

    cache: Annotated[
        bool,
        typer.Option("--cache", rich_help_panel=CACHE, help="Language models: make tokens of the text so far more probable."),
    ] = False
    cache_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=CACHE, metavar="N", help="Number of preceding tokens.  [default: fitted]"),
    ] = None
    cache_theta: Annotated[
        float | None,
        typer.Option(rich_help_panel=CACHE, metavar="X", help="Weight of similar hidden states.  [default: fitted]"),
    ] = None
    cache_weight: Annotated[
        float | None,
        typer.Option(rich_help_panel=CACHE, metavar="X", help="Weight of the cache.  [default: fitted]"),
    ] = None

    def cache_options(self) -> bool | dict[str, float]:
        """The `cache` of `weft.load`."""
        values = {"size": self.cache_size, "theta": self.cache_theta, "weight": self.cache_weight}
        chosen = {name: value for name, value in values.items() if value is not None}
        if chosen and not self.cache:
            raise UsageError(f"cache_{next(iter(chosen))}", "requires `cache`")
        return chosen or self.cache
