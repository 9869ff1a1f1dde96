"""`weft merge`: LoRA adapters become part of the weights."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import FILES, QuietCommand, RunDirectory
from weft.cli.output import status


@dataclass(kw_only=True)
class Merge(QuietCommand):
    """Merge the LoRA adapters of a run into its weights, as a new run.

    The new run computes the same function, and is as fast as a model without adapters.
    """

    run_dir: RunDirectory
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.")
    ]

    def run(self) -> int:
        from weft.runs.merge import merge

        merge(self.run_dir, self.output_dir)
        name = shlex.quote(str(self.output_dir))
        status(f"Run saved to {self.output_dir}\nNext: weft evaluate {name}", quiet=self.quiet)
        return 0
