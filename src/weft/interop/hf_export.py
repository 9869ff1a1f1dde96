"""Export runs as directories for `from_pretrained` of Hugging Face, as models that transformers has: no code is exported."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from weft import files
from weft.errors import UsageError
from weft.interop.export_record import ExportOptions, check_output_dir, write_export_record
from weft.interop.hf_architectures import LANGUAGE_MODELS, SEQ2SEQ, nearest, problems
from weft.runs.atomic_dir import staged_directory
from weft.runs.run import AnyRun

if TYPE_CHECKING:
    from weft.interop.hf_export_parts import Exported

__all__ = ["export", "export_model", "problems"]


def convert(run: AnyRun) -> Exported:
    """The model of a run as its architecture of Hugging Face; an error that names the options that have no equivalent."""
    from weft.interop.hf_encoder_export import export_encoder
    from weft.interop.hf_lm_export import export_gpt2, export_rotary
    from weft.interop.hf_seq2seq_export import export_seq2seq

    found = nearest(run.config)
    if found.problems:
        raise UsageError("export", *found.refusal())
    if found.model_type in SEQ2SEQ:
        return export_seq2seq(run, found.model_type, found.architecture)
    if found.model_type == "gpt2":
        return export_gpt2(run)
    if found.model_type in LANGUAGE_MODELS:
        return export_rotary(run, found.model_type, found.architecture)
    return export_encoder(run)


def write_model(exported: Exported, directory: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer, and generation_config.json if the model generates."""
    from weft.tensors import write_tensors

    # tied tensors are stored once
    contiguous = {name: tensor.contiguous() for name, tensor in exported.tensors.items()}
    write_tensors(directory / "model.safetensors", contiguous, {"format": "pt"})
    for name, content in zip(("tokenizer.json", "tokenizer_config.json"), exported.tokenizer, strict=True):
        files.write_json(directory / name, content)
    if exported.generation is not None:
        files.write_json(directory / "generation_config.json", exported.generation)
    files.write_json(directory / "config.json", exported.config)


def export(run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write a run for transformers, compare the two if transformers is installed, and write export.json and the model card.
    Returns notes on differences."""
    from weft.interop.model_card import write_card

    check_output_dir(output_dir)
    exported = convert(run)
    class_name = exported.config["architectures"][0]
    notes = list(exported.notes)
    with staged_directory(output_dir, last="config.json") as staging_dir:
        write_model(exported, staging_dir)
        check, packages = None, list[str]()
        if find_spec("transformers") is None:
            notes.append("not compared with the run, because transformers is not installed")
        else:
            from weft.interop.hf_check import compare, load_model

            check = compare(run, exported.comparison, load_model(staging_dir, class_name))
            packages = ["torch", "transformers"]
        call = f"transformers.{class_name}.from_pretrained(DIR)"
        write_export_record(staging_dir, run=run.path, name="hf", check=check, call=call, packages=packages)
        write_card(run, "hf", staging_dir, options, notes)
    return notes


def export_model(run: AnyRun, output_dir: Path) -> list[str]:
    """`export` with default options."""
    return export(run, output_dir, ExportOptions())
