"""`weft export`: runs as models of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.formats import check_format, formats
from weft.cli.options import COMMON, Command
from weft.cli.output import note, write


@dataclass(kw_only=True)
class Export(Command):
    """Write a run as a model that another program loads.

    hf: a folder for AutoModel.from_pretrained and AutoTokenizer.from_pretrained; masked language models as BERT, language
    models as GPT-2. An option that has no form there is named.
    arpa: a file that KenLM and SRILM read, of an n-gram model; compressed if its name ends in .gz.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", autocompletion=formats, help="What to write: hf or arpa.")
    ]
    output_dir: Annotated[Path, typer.Option(metavar="PATH", help="The folder, or the ARPA file, to make.")]
    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.format)
        from weft.interop.arpa_run import export_arpa
        from weft.interop.hf_export import export_model
        from weft.runs.finished import remove_on_failure
        from weft.runs.load import load

        export = export_arpa if self.format == "arpa" else export_model
        with remove_on_failure(self.output_dir):
            notes = export(load(self.run_dir, device="cpu"), self.output_dir)
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.output_dir}\n")
        return 0
