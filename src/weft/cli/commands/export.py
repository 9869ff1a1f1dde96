"""`weft export`: write a run as a model of another program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.formats import EXPORT_FORMATS, check_format, export_formats
from weft.cli.options import FILES, QuietCommand, RunDirectory
from weft.cli.output import warn, write
from weft.errors import UsageError


@dataclass(kw_only=True)
class Export(QuietCommand):
    """Export a run as a model of another program.

    hf: a directory for AutoModel.from_pretrained and AutoTokenizer.from_pretrained; masked language models as BERT, language
    models as GPT-2, encoder-decoders as BART, Marian, Pegasus or T5. An option without an equivalent is named and refused.
    arpa: an n-gram model as a file that KenLM and SRILM read; compressed if its name ends in .gz.
    vectors: word vectors as a file whose suffix selects the format: .txt or .vec (word2vec text), .bin (word2vec binary),
    .safetensors, .npy.
    ctranslate2: an encoder-decoder or language model with attention as a directory for ctranslate2.Translator or Generator.
    """

    run_dir: RunDirectory
    format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", autocompletion=export_formats, help="Model format: hf, arpa, vectors or ctranslate2."
        ),
    ] = "hf"
    quantization: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="ctranslate2: int8, int16, float16, bfloat16 or float32.  [default: float32]"),
    ] = None
    output_dir: Annotated[
        Path,
        typer.Option("--output-dir", "-o", rich_help_panel=FILES, metavar="PATH", help="Output directory, or file."),
    ]

    def run(self) -> int:
        check_format(self.format, EXPORT_FORMATS)
        from weft.interop.arpa_run import export_arpa
        from weft.interop.ctranslate2_export import export as export_ctranslate2
        from weft.interop.export_record import ExportOptions
        from weft.interop.hf_export import export_model
        from weft.interop.vector_files import export_vectors
        from weft.runs.finished import remove_on_failure
        from weft.runs.load import load

        if self.quantization is not None and self.format != "ctranslate2":
            raise UsageError("quantization", f"not used with `format` {self.format!r}", "remove it")
        export = {"arpa": export_arpa, "vectors": export_vectors, "hf": export_model}.get(self.format, export_model)
        with remove_on_failure(self.output_dir):
            run = load(self.run_dir, device="cpu")
            if self.format == "ctranslate2":
                notes = export_ctranslate2(run, self.output_dir, ExportOptions(self.quantization))
            else:
                notes = export(run, self.output_dir)
        for text in notes:
            warn(text, quiet=self.quiet)
        write(f"{self.output_dir}\n")
        return 0
