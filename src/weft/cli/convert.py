"""`weft import` and `weft export`: models of other programs as runs, and runs as models of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import COMMON, Bare
from weft.cli.output import note, write
from weft.errors import UsageError, nearest

if TYPE_CHECKING:
    from weft.interop.imported import Imported

FORMATS = ("hf", "arpa")


def _formats() -> list[str]:
    return list(FORMATS)


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError(f"no such format {name!r}{nearest(name, FORMATS)}")


@dataclass(kw_only=True)
class Import(Bare):
    """Make a run of a model that another program trained; nothing is fetched, and no code of it is run.

    hf: a local Hugging Face folder with a BERT, RoBERTa or DistilBERT (a run of task masked-lm) or a GPT-2 (lm).
    arpa: an n-gram model of KenLM, SRILM or weft, plain or gzip (lm).
    """

    format: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=_formats, help="What it is: hf or arpa.")]
    source: Annotated[
        Path, typer.Argument(metavar="PATH", help="The folder (config.json, model.safetensors, a tokenizer) or the ARPA file.")
    ]
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder to make.")]
    tokenizer_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="arpa: the run whose tokens the model has.  [default: words between spaces]"),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.format)
        if self.tokenizer_from is not None and self.format != "arpa":
            raise UsageError(f"--tokenizer-from: a model of format {self.format!r} brings its own tokenizer; drop it")
        from weft.cli.train import leaving_nothing

        with leaving_nothing(self.out):
            notes = self._import().notes
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.out}\n")
        return 0

    def _import(self) -> Imported:
        from weft.interop.arpa_run import import_arpa
        from weft.interop.huggingface import import_folder

        if self.format == "arpa":
            return import_arpa(self.source, self.out, tokenizer_from=self.tokenizer_from)
        return import_folder(self.source, self.out)


@dataclass(kw_only=True)
class Export(Bare):
    """Write a run as a model that another program loads.

    hf: a folder for AutoModel.from_pretrained and AutoTokenizer.from_pretrained; masked language models as BERT, language
    models as GPT-2. An option that has no form there is named.
    arpa: a file that KenLM and SRILM read, of an n-gram model; compressed if its name ends in .gz.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", autocompletion=_formats, help="What to write: hf or arpa.")]
    out: Annotated[Path, typer.Option(metavar="PATH", help="The folder, or the ARPA file, to make.")]
    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.to)
        from weft.cli.train import leaving_nothing
        from weft.interop.arpa_run import export_arpa
        from weft.interop.hf_export import export_folder
        from weft.runs.load import load

        export = export_arpa if self.to == "arpa" else export_folder
        with leaving_nothing(self.out):
            notes = export(load(self.folder, device="cpu"), self.out)
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.out}\n")
        return 0
