"""The formats of `weft export`: one table, which the command, its refusals, `weft check` and `weft info` read.

The module of a format has two functions:

- `problems(config)`: why a model with this resolved configuration cannot be written, each with what to change; [] if it can. It
  needs no weights, and imports neither torch nor the package of the format, because `weft check` calls it before training.
- `export(run, output_dir, options)`: write the run, and return notes on differences. A directory contains export.json
  and the model card, and gets its name when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from weft.interop.export_record import ExportOptions
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun


class Format(NamedTuple):
    """A format of another program."""

    summary: str
    module: str
    is_directory: bool = True  # a directory with a model card; else one file
    package: str = ""  # that writes the format, if any
    extra: str = ""  # of weft, which installs the package
    quantizations: tuple[str, ...] = ()

    def problems(self, config: RunConfig) -> list[str]:
        """Why a model cannot be written, each with what to change; [] if it can."""
        found: list[str] = import_module(self.module).problems(config)
        return found

    def write(self, run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
        """Write a run. Returns notes on differences."""
        notes: list[str] = import_module(self.module).export(run, output_dir, options)
        return notes


FORMATS: Mapping[str, Format] = {
    "hf": Format("a directory for from_pretrained of transformers", "weft.interop.hf_export"),
    "sentence-transformers": Format(
        "a directory for SentenceTransformer, with the vectors of weft embed", "weft.interop.sentence_transformers_export"
    ),
    "ctranslate2": Format(
        "an attention model as a directory for CTranslate2",
        "weft.interop.ctranslate2_export",
        package="ctranslate2",
        extra="ctranslate2",
        quantizations=("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    ),
    "onnx": Format(
        "graphs for onnxruntime, with examples in Python and JavaScript",
        "weft.interop.onnx_export",
        package="onnxruntime",
        extra="onnx",
        quantizations=("int8",),
    ),
    "gguf": Format(
        "a language model as a file for llama.cpp",
        "weft.interop.gguf_export",
        package="gguf",
        extra="gguf",
        quantizations=("f16", "q8_0"),
    ),
    "arpa": Format("an n-gram model as a file for KenLM and SRILM", "weft.interop.arpa_run", is_directory=False),
    "vectors": Format("word vectors as a file for gensim, fastText or NumPy", "weft.interop.vector_files", is_directory=False),
}


_OPTION = re.compile(r"\b((?:model|tokenizer)\.[\w.]+) = ")
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+()-]{0,99}")  # also expressions of SPDX: MIT OR Apache-2.0


def format_names() -> list[str]:
    return list(FORMATS)


def find_format(name: str) -> Format:
    """The format with this name."""
    if name not in FORMATS:
        raise UsageError("format", *unknown_name("format", name, FORMATS))
    return FORMATS[name]


def all_problems(config: RunConfig) -> dict[str, list[str]]:
    """Why a model cannot be written, for every format; [] if it can."""
    return {name: row.problems(config) for name, row in FORMATS.items()}


def is_lost(problems: Sequence[str]) -> bool:
    """Whether options prevent a format: another value would allow it, with the same task and architecture."""
    return bool(problems) and all(_OPTION.search(text) for text in problems)


def lost_formats(config: RunConfig) -> dict[str, list[str]]:
    """The formats that the value of an option prevents, by its dotted name; only options that problems name first."""
    lost: dict[str, list[str]] = {}
    for name, found in all_problems(config).items():
        for option in dict.fromkeys(option for text in found for option in _OPTION.findall(text.partition(";")[0])):
            lost.setdefault(option, []).append(name)
    return lost


def check_export(name: str, config: RunConfig, options: ExportOptions) -> Format:
    """The format with this name; an error if it cannot represent the model, or its package is missing."""
    row = find_format(name)
    if options.quantization is not None and options.quantization not in row.quantizations:
        problem = f"format {name!r} has no quantization {options.quantization!r}"
        raise UsageError(
            "quantization", problem, f"choose from {', '.join(row.quantizations)}" if row.quantizations else "remove it"
        )
    for option, value in (("license", options.license), ("scores", options.scores)):
        if value is not None and not row.is_directory:
            raise UsageError(option, f"format {name!r} has no model card", "remove it")
    if options.license is not None and _LICENSE.fullmatch(options.license) is None:
        raise UsageError("license", f"expected an ID, got {options.license!r}", "use one such as apache-2.0")
    if found := row.problems(config):
        raise UsageError("export", "; ".join(found))
    if row.package and find_spec(row.package) is None:
        raise UsageError("format", f"{name!r} needs the package {row.package}", f"run pip install 'weft[{row.extra}]'")
    return row


def export_run(run: AnyRun, name: str, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write a run in a format, with a model card if it is a directory. Returns notes on differences."""
    from weft.interop.model_card import read_scores

    row = check_export(name, run.config, options)
    if options.scores is not None:
        read_scores(options.scores)  # before anything is written
    return row.write(run, output_dir, options)
