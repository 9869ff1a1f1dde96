"""`weft import`: models of other programs as runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.formats import check_format, formats
from weft.cli.options import COMMON, Command
from weft.cli.output import note, write
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.interop.import_run import ImportedRun


@dataclass(kw_only=True)
class Import(Command):
    """Make a run of a model that another program trained; nothing is fetched, and no code of it is run.

    hf: a local Hugging Face folder with a BERT, RoBERTa or DistilBERT (a run of task masked-lm) or a GPT-2 (lm).
    arpa: an n-gram model of KenLM, SRILM or weft, plain or gzip (lm).
    """

    format: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=formats, help="What it is: hf or arpa.")]
    source: Annotated[
        Path, typer.Argument(metavar="PATH", help="The folder (config.json, model.safetensors, a tokenizer) or the ARPA file.")
    ]
    output_dir: Annotated[Path, typer.Option(metavar="RUN", help="The run folder to make.")]
    tokenizer_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="arpa: the run whose tokens the model has.  [default: words between spaces]"),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.format)
        if self.tokenizer_from is not None and self.format != "arpa":
            raise UsageError("--tokenizer-from", f"a model of format {self.format!r} brings its own tokenizer", "drop it")
        from weft.runs.finished import remove_on_failure

        with remove_on_failure(self.output_dir):
            notes = self._import().notes
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.output_dir}\n")
        return 0

    def _import(self) -> ImportedRun:
        from weft.interop.arpa_run import import_arpa
        from weft.interop.huggingface import import_model

        if self.format == "arpa":
            return import_arpa(self.source, self.output_dir, tokenizer_from=self.tokenizer_from)
        return import_model(self.source, self.output_dir)
