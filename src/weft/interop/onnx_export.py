"""Export runs to ONNX: graphs for onnxruntime, with all that is needed to use them without weft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import files
from weft.errors import UsageError
from weft.interop.export_record import ExportCheck, ExportOptions, check_output_dir, write_export_record
from weft.models.config import LanguageModelConfig
from weft.models.encoder_config import ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig
from weft.models.frame_to_text_config import FrameToTextConfig
from weft.models.reward_config import RewardConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.models.speech_config import SpeechConfig
from weft.runs.atomic_dir import staged_directory

if TYPE_CHECKING:
    from weft.interop.onnx_models import Exported
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
QUANTIZATIONS = ("int8",)
EXPORTED = (ClassifierConfig, TaggerConfig, MaskedLMConfig, QAConfig, RewardConfig, LanguageModelConfig, Seq2SeqConfig)
EXAMPLES = Path(__file__).with_name("onnx_examples")
SETTINGS = "model.json"


def problems(config: RunConfig) -> list[str]:
    """Each option value of a resolved run file that has no form in ONNX; empty if the run can be exported."""
    if not config.preset.estimator.by_steps:
        return [f"model.arch = {config.arch!r}: only neural networks can be exported"]
    bases = type(config.model).__mro__
    if SpeechConfig in bases and config.model.has_decoder:
        return [f"model.ctc_weight = {config.model.ctc_weight:g}: recognizers with a decoder cannot be exported, only CTC (1)"]
    if (FrameToTextConfig in bases and SpeechConfig not in bases) or not any(base in EXPORTED for base in bases):
        return [f"model.arch = {config.arch!r}: {config.spec.model_noun}s cannot be exported, only models of text and speech"]
    return []


def export(run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write the graphs of a run, its tokenizers and labels, model.json, and two examples that use them. Returns notes.

    Each graph is compared with the run on inputs of several shapes before the directory gets its name.
    """
    _check(run, output_dir, options)
    from weft.interop.model_card import write_card
    from weft.interop.onnx_check import check_graph, difference, quantize, write_graph
    from weft.interop.onnx_graphs import shapes
    from weft.interop.onnx_models import EXPORTERS

    exported = next(EXPORTERS[base] for base in type(run.config.model).__mro__ if base in EXPORTERS)(run)
    sizes, largest, notes = shapes(exported.max_length, exported.longer), 0.0, list[str]()
    # wrapped, because torch and onnxruntime write some of the files
    with files.wrap_os_errors(output_dir), staged_directory(output_dir, last=SETTINGS) as directory:
        for graph in exported.graphs:
            path = write_graph(graph, directory)
            change = check_graph(graph, path, sizes)
            if options.quantization is not None:
                quantize(path)
                change = difference(graph, path, sizes)
                notes.append(f"{path.name}: 8-bit weights change the outputs by up to {change:.2g}")
            largest = max(largest, change)
        _write_files(run, exported, directory)
        files.write_json(directory / SETTINGS, _settings(run, exported, options))
        check = ExportCheck(largest, sizes)
        call = f"python example.py {exported.arguments}"
        write_export_record(directory, run=run.path, name="onnx", check=check, call=call, packages=[*PACKAGES, "torch"])
        write_card(run, "onnx", directory, options, notes)
    return notes


def _check(run: AnyRun, output_dir: Path, options: ExportOptions) -> None:
    """Refuse what cannot be exported, before anything is written."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise UsageError("export", f"ONNX requires the package {package}", "run pip install 'weft[onnx]'")
    if found := problems(run.config):
        raise UsageError("export", found[0])
    if options.quantization not in (None, *QUANTIZATIONS):
        raise UsageError("quantization", f"ONNX has no {options.quantization!r}", f"use {' or '.join(QUANTIZATIONS)}")
    check_output_dir(output_dir)


def _write_files(run: AnyRun, exported: Exported, directory: Path) -> None:
    """Tokenizers, labels and examples."""
    for name, tokenizer in exported.tokenizers.items():
        tokenizer.save(directory / name)
    if exported.labels is not None:
        files.write_json(directory / "labels.json", exported.labels)
    for suffix in ("py", "mjs"):
        parts = [(EXAMPLES / f"{name}.{suffix}.txt").read_text() for name in ("common", exported.example)]
        files.write_text(directory / f"example.{suffix}", "\n".join(parts))


def _settings(run: AnyRun, exported: Exported, options: ExportOptions) -> Mapping[str, Any]:
    """The content of model.json."""
    states: Sequence[Mapping[str, Any]] = []
    if exported.states is not None:
        states = [
            {"input": name, "output": part.output, "type": str(part.dtype).removeprefix("torch."), "shape": part.axes}
            for name, part in exported.states.inputs().items()
            if part.changes
        ]
    return {
        "task": run.task,
        "quantization": options.quantization,
        "tokenizers": list(exported.tokenizers),
        "bos_id": 1,
        "eos_id": 2,
        "max_length": exported.max_length,
        **exported.settings,
        "graphs": [
            {"file": f"{graph.name}.onnx", "inputs": graph.inputs, "outputs": graph.outputs} for graph in exported.graphs
        ],
        "states": states,
    }
