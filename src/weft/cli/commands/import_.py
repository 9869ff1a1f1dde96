"""`weft import`: make a run from a model of another program."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.formats import check_format, formats
from weft.cli.options import FILES, QuietCommand
from weft.cli.output import status, warn, write
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.interop.import_run import ImportedRun


@dataclass(kw_only=True)
class Import(QuietCommand):
    """Import a Hugging Face model as a run.

    hf: a local directory with a BERT, RoBERTa or DistilBERT (task masked-lm), a GPT-2, Llama, Mistral or Qwen2 (task
    lm), or a BART, T5, Marian or Pegasus (task seq2seq). Nothing is downloaded, and no code of the model is run.
    arpa: an n-gram model of KenLM, SRILM or weft, plain or gzip (task lm).
    vectors: word vectors of word2vec, GloVe, fastText or weft: .txt, .vec, .bin, .safetensors or .npy (task word-vectors).
    """

    source: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="Directory with config.json, model.safetensors and a tokenizer, or a file."),
    ]
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", autocompletion=formats, help="Model format: hf, arpa or vectors.")
    ] = "hf"
    tokenizer_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="arpa: use the tokenizer of this run.  [default: words separated by spaces]"),
    ] = None
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.")
    ]

    def run(self) -> int:
        check_format(self.format)
        if self.tokenizer_from is not None and self.format != "arpa":
            raise UsageError("tokenizer_from", f"not available for format {self.format!r}, which has its own tokenizer")
        from weft.runs.finished import remove_on_failure

        with remove_on_failure(self.output_dir):
            notes = self._import().notes
        for text in notes:
            warn(text, quiet=self.quiet)
        write(f"{self.output_dir}\n")
        status(f"Next: weft info {shlex.quote(str(self.output_dir))}", quiet=self.quiet)
        return 0

    def _import(self) -> ImportedRun:
        from weft.interop.arpa_run import import_arpa
        from weft.interop.huggingface import import_model
        from weft.interop.vector_files import import_vectors

        if self.format == "arpa":
            return import_arpa(self.source, self.output_dir, tokenizer_from=self.tokenizer_from)
        if self.format == "vectors":
            return import_vectors(self.source, self.output_dir)
        return import_model(self.source, self.output_dir)
