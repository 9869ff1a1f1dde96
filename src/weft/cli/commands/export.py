"""`weft export`: write a run as a model of another program."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import FILES, QuietCommand, RunDirectory
from weft.cli.output import warn, write
from weft.errors import UsageError
from weft.interop.formats import all_problems, check_export, export_run, find_format, format_names

DEFAULT = "hf"


@dataclass(kw_only=True)
class Export(QuietCommand):
    """Export a run as a model of another program.

    Without --format and --output-dir: which formats are possible for this run, and why others are not.

    hf: a directory for AutoModel.from_pretrained and AutoTokenizer.from_pretrained of transformers.
    sentence-transformers: a directory for SentenceTransformer, which computes the vectors of weft embed.
    ctranslate2: an encoder-decoder or language model with attention for CTranslate2; --quantization int8 and others.
    onnx: graphs for onnxruntime, tokenizers, labels, and examples in Python and JavaScript; --quantization int8.
    gguf: a directory with a file for llama.cpp; --quantization f16 or q8_0 makes it smaller.
    arpa: an n-gram model as a file that KenLM and SRILM read; compressed if its name ends in .gz.
    vectors: word vectors as a file whose suffix selects the format: .txt or .vec (word2vec text), .bin (word2vec binary),
    .safetensors, .npy.

    A directory also has README.md, a model card, and export.json: versions, checksums, and the largest difference from the run.
    An option without an equivalent is named and refused.
    """

    run_dir: RunDirectory
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=format_names,
            help=f"Model format: {', '.join(format_names())}.  [default: {DEFAULT}]",
        ),
    ] = None
    quantization: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Quantize the weights, if the format can.  [default: float32]")
    ] = None
    license: Annotated[
        str | None, typer.Option(metavar="ID", help="License in the model card, such as apache-2.0.  [default: unknown]")
    ] = None
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores for the model card, from weft evaluate RUN --json.")
    ] = None
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="PATH", help="Output directory, or file."),
    ] = None

    def run(self) -> int:
        if self.format is not None:
            find_format(self.format)  # before the run is read
        from weft.interop.export_record import ExportOptions
        from weft.runs.finished import remove_empty_parents
        from weft.runs.load import load

        if self.output_dir is None:
            self._list()
            return 0
        run, name = load(self.run_dir, device="cpu"), self.format or DEFAULT
        options = ExportOptions(self.quantization, self.license, self.scores)
        check_export(name, run.config, options)
        with remove_empty_parents(self.output_dir):
            notes = export_run(run, name, self.output_dir, options)
        for text in notes:
            warn(text, quiet=self.quiet)
        write(f"{self.output_dir}\n")
        return 0

    def _list(self) -> None:
        """Print the formats with what prevents them."""
        given = {"`format`": self.format, "`quantization`": self.quantization}
        given |= {"`license`": self.license, "`scores`": None if self.scores is None else str(self.scores)}
        for option in (option for option, value in given.items() if value is not None):
            raise UsageError("output_dir", f"required with {option}", "set `output_dir`")
        from weft.cli.export_table import export_lines
        from weft.runs.load import load

        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        lines = export_lines(all_problems(load(self.run_dir).config), width)
        write("".join(f"{line}\n" for line in lines))
