"""`weft export`: write a run as a model of another program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.formats import EXPORT_FORMATS, check_format, export_formats
from weft.cli.options import FILES, QuietCommand, RunDirectory
from weft.cli.output import warn, write
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.runs.run import AnyRun


@dataclass(kw_only=True)
class Export(QuietCommand):
    """Export a run as a model of another program.

    hf: a directory for AutoModel.from_pretrained and AutoTokenizer.from_pretrained; masked language models as BERT, language
    models as GPT-2, encoder-decoders as BART, Marian, Pegasus or T5. An option without an equivalent is named and refused.
    arpa: an n-gram model as a file that KenLM and SRILM read; compressed if its name ends in .gz.
    vectors: word vectors as a file whose suffix selects the format: .txt or .vec (word2vec text), .bin (word2vec binary),
    .safetensors, .npy.
    ctranslate2: an encoder-decoder or language model with attention as a directory for ctranslate2.Translator or Generator.
    onnx: a directory with graphs for onnxruntime, tokenizers, labels, and examples in Python and JavaScript.
    """

    run_dir: RunDirectory
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=export_formats,
            help="Model format: hf, arpa, vectors, ctranslate2 or onnx.",
        ),
    ] = "hf"
    quantization: Annotated[
        str | None,
        typer.Option("--quantization", metavar="TYPE", help="onnx only: int8 for weights of 8 bits. Default: float32."),
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
        from weft.interop.onnx_export import export as export_onnx
        from weft.interop.vector_files import export_vectors
        from weft.runs.finished import remove_on_failure
        from weft.runs.load import load

        options = ExportOptions(self.quantization)
        exporters: dict[str, Callable[[AnyRun, Path], list[str]]] = {
            "arpa": export_arpa,
            "vectors": export_vectors,
            "hf": export_model,
            "ctranslate2": lambda run, path: export_ctranslate2(run, path, options),
            "onnx": lambda run, path: export_onnx(run, path, options),
        }
        if self.quantization is not None and self.format not in ("onnx", "ctranslate2"):
            raise UsageError("quantization", f"not possible with format {self.format!r}", "use format ctranslate2 or onnx")
        with remove_on_failure(self.output_dir):
            notes = exporters[self.format](load(self.run_dir, device="cpu"), self.output_dir)
        for text in notes:
            warn(text, quiet=self.quiet)
        write(f"{self.output_dir}\n")
        return 0
