"""Export text encoders for `SentenceTransformer`: a BertModel and the mean of its outputs, as in `weft embed`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.interop.export_record import ExportCheck, ExportOptions, check_output_dir, write_export_record
from weft.interop.hf_architectures import ENCODERS, encoder_problems
from weft.interop.hf_export import write_model
from weft.models.encoder_config import TaggerConfig
from weft.runs.atomic_dir import staged_directory
from weft.runs.config import RunConfig
from weft.runs.run import AnyRun

if TYPE_CHECKING:
    from weft.interop.hf_export_parts import Exported

MODULES = (("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"))  # name, directory, class
TEXTS = ("", "a", "the old cat sees a river", "Ida lives by the river, in a village.", "0 1 2 3.5 + naïve 東京")


def problems(config: RunConfig) -> list[str]:
    """Why the encoder of a model cannot be a BertModel that reads single texts."""
    if type(config.model) not in ENCODERS:
        return [f"arch {config.arch!r} of task {config.task!r} has no text encoder"]
    if type(config.model) is TaggerConfig:
        return ["a tagger reads words, not texts"]
    return encoder_problems(config.model)


def _convert(run: AnyRun) -> Exported:
    from weft.interop.hf_encoder_export import bert_model

    return bert_model(run)


def _write_modules(directory: Path, exported: Exported) -> None:
    """The files that SentenceTransformer adds to those of transformers."""
    size, max_length = exported.config["hidden_size"], exported.config["max_position_embeddings"]
    modules = [
        {"idx": index, "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (name, path, kind) in enumerate(MODULES)
    ]
    (directory / "1_Pooling").mkdir()
    pooling: dict[str, Any] = {"word_embedding_dimension": size, "pooling_mode_mean_tokens": True, "include_prompt": True}
    files.write_json(directory / "1_Pooling" / "config.json", pooling)
    files.write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    similarity: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    files.write_json(directory / "config_sentence_transformers.json", similarity)
    files.write_json(directory / "modules.json", modules)


def _compare(run: AnyRun, directory: Path) -> ExportCheck:
    """The largest difference of the vectors of a few texts, which are of different lengths."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from weft.interop.hf_check import quiet, refuse_difference

    with quiet():
        model = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
        theirs = model.encode(list(TEXTS), show_progress_bar=False)
    ours = run.embed(list(TEXTS))
    difference = float(np.abs(ours - theirs).max())
    refuse_difference(difference)
    return ExportCheck(difference, [ours.shape])


def export(run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write the encoder, compare its vectors with those of the run if sentence-transformers is installed, and write
    export.json and the model card. Returns notes."""
    from weft.interop.model_card import write_card

    check_output_dir(output_dir)
    exported = _convert(run)
    notes = list(exported.notes)
    with staged_directory(output_dir, last="modules.json") as staging_dir:
        write_model(exported, staging_dir)
        _write_modules(staging_dir, exported)
        check, packages = None, list[str]()
        if find_spec("sentence_transformers") is None:
            notes.append("not compared with the run, because sentence-transformers is not installed")
        else:
            check, packages = _compare(run, staging_dir), ["torch", "transformers", "sentence-transformers"]
        call = "sentence_transformers.SentenceTransformer(DIR).encode(texts)"
        write_export_record(staging_dir, run=run.path, name="sentence-transformers", check=check, call=call, packages=packages)
        write_card(run, "sentence-transformers", staging_dir, options, notes)
    return notes
