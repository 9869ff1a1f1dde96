"""`weft import` and `weft export`: models of other programs as runs, and runs as models of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import Bare
from weft.cli.output import note, write
from weft.errors import UsageError, nearest

FORMATS = ("hf",)


def _formats() -> list[str]:
    return list(FORMATS)


def check_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError(f"no such format {name!r}{nearest(name, FORMATS)}")


@dataclass(kw_only=True)
class Import(Bare):
    """Make a run of a model that another program trained; nothing is fetched, and no code of it is run.

    hf: a local Hugging Face folder with a BERT, RoBERTa or DistilBERT (a run of task masked-lm) or a GPT-2 (lm).
    """

    format: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=_formats, help="What it is: hf.")]
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The folder: config.json, model.safetensors, a tokenizer.")]
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run folder to make.")]
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.format)
        from weft.cli.train import leaving_nothing
        from weft.interop.huggingface import import_folder

        with leaving_nothing(self.out):
            notes = import_folder(self.source, self.out).notes
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.out}\n")
        return 0


@dataclass(kw_only=True)
class Export(Bare):
    """Write a run as a model that another program loads.

    hf: a folder for AutoModel.from_pretrained and AutoTokenizer.from_pretrained; masked language models as BERT, language
    models as GPT-2. An option that has no form there is named.
    """

    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", autocompletion=_formats, help="What to write: hf.")]
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make.")]
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes; errors only.")] = False

    def run(self) -> int:
        check_format(self.to)
        from weft.cli.train import leaving_nothing
        from weft.interop.hf_export import export_folder
        from weft.run import load

        with leaving_nothing(self.out):
            notes = export_folder(load(self.folder, device="cpu"), self.out)
        for text in notes:
            note(f"weft: {text}", quiet=self.quiet)
        write(f"{self.out}\n")
        return 0
