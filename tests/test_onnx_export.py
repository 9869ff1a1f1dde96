"""Runs of every task that can be exported, in onnxruntime: equal to the run at other shapes, and the examples say what weft says."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import torch
from caption_runs import run_values, write_features
from label_runs import (
    classification_run_file,
    single_label_rows,
    tagged_sentences,
    tagging_run_file,
    text_pair_rows,
    write_conll,
    write_tsv,
)
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import WORDS, make_text, run_file, train_here
from speech_runs import RATE, make_recordings, say, speech_run_file
from toy_models import build_mixer, enlarge_weights
from toy_qa import make_questions, qa_run_file
from toy_qa import write_tsv as write_questions
from toy_seq2seq import VOCAB_SIZE, build

import weft
from weft.cli.main import main
from weft.errors import ModelError, ResourceError, UsageError
from weft.interop import onnx_check, onnx_export
from weft.interop.export_record import ExportOptions
from weft.interop.onnx_decoders import encoder_decoder_graphs
from weft.interop.onnx_graphs import encoder_graph, shapes
from weft.interop.onnx_ops import exportable
from weft.media.audio import write_wav
from weft.models.classifier import classifier
from weft.models.encoder_config import ClassifierConfig
from weft.nn.bidirectional import Bidirectional
from weft.nn.ctc import best_path
from weft.nn.mixers import recurrent_mixers
from weft.nn.state import KVCache, tree_leaves
from weft.runs.resolve import resolve

SHORT = "train.max_steps=3"
BPE = ("tokenizer.type=bpe", "tokenizer.vocab_size=300")


def _preferences(path: Path) -> dict[str, Any]:
    rng = random.Random(1)
    rows = [(" ".join(rng.choices(WORDS, k=3)), *(" ".join(rng.choices(WORDS, k=4)) for _ in range(2))) for _ in range(60)]
    write_tsv(path, rows, "prompt\tchosen\trejected")
    return {
        "task": "reward-model",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(path), "valid": 0.2, "prompt_column": "prompt"},
        "tokenizer": {"type": "bpe", "vocab_size": 300},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _masked(path: Path) -> dict[str, Any]:
    values = run_file(make_text(path), "transformer", train__max_steps=3, data__context_length=40)
    return values | {"task": "masked-lm", "model": {"arch": "bert", "hidden_size": 16, "num_layers": 1}}


def _instructions(path: Path) -> dict[str, Any]:
    rng = random.Random(1)
    rows = [(" ".join(rng.choices(WORDS, k=3)), " ".join(rng.choices(WORDS, k=4))) for _ in range(60)]
    write_tsv(path, rows, "prompt\tresponse")
    return {
        "task": "instruction-tuning",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(path), "valid": 0.2, "template": "Q: {prompt}\nA: {response}"},
        "tokenizer": {"type": "bpe", "vocab_size": 300},
        "model": {"arch": "gpt", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _denoising(path: Path) -> dict[str, Any]:
    return {
        "task": "denoising",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(make_text(path)), "valid": 0.2, "max_length": 24},
        "tokenizer": {"type": "word"},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _questions(path: Path) -> dict[str, Any]:
    return qa_run_file(
        write_questions(path, make_questions(100)), "transformer", SHORT, "data.max_length=22", "data.doc_stride=4"
    )


def _recordings(path: Path) -> dict[str, Any]:
    return speech_run_file(make_recordings(path.with_suffix("")), model__ctc_weight=1.0)


RUN_FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "classifier": lambda path: classification_run_file(write_tsv(path, single_label_rows(80)), "lstm", SHORT),
    "pairs": lambda path: classification_run_file(
        write_tsv(path, text_pair_rows(80), "label\tone\ttwo"),
        "transformer",
        SHORT,
        "data.max_length=16",
        'data.text_column=["one", "two"]',
    ),
    "tagger": lambda path: tagging_run_file(write_conll(path, tagged_sentences(60)), "gru", SHORT),
    "linear-tagger": lambda path: tagging_run_file(
        write_conll(path, tagged_sentences(60)), "transformer", SHORT, "model.head=linear", *BPE
    ),
    "masked-lm": _masked,
    "qa": _questions,
    "reward": _preferences,
    "gpt": lambda path: run_file(make_text(path), "gpt", train__max_steps=3),
    "lstm-lm": lambda path: run_file(make_text(path), "lstm", train__max_steps=3, data__read_as="lines"),
    "instructions": _instructions,
    "transformer": lambda path: seq2seq_run_file(make_pairs(path), "transformer", SHORT),
    "lstm": lambda path: seq2seq_run_file(make_pairs(path), "lstm", SHORT),
    "copying": lambda path: seq2seq_run_file(make_pairs(path), "joint", SHORT),
    "denoising": _denoising,
    "recognizer": _recordings,
}
TABLES = ("classifier", "pairs", "qa", "reward", "instructions", "transformer", "lstm", "copying")
SENTENCE = "the old cat sees a dog by the river ."


class Exports:
    """Runs by name, and their exports, each made on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, name: str) -> Any:
        path = self.directory / name
        if not path.exists():
            train_here(RUN_FILES[name](self.directory / f"{name}.data.{'tsv' if name in TABLES else 'txt'}"), path)
        return weft.load(path, device="cpu")

    def exported(self, name: str) -> Path:
        path = self.directory / f"{name}.onnx"
        if not path.exists():
            onnx_export.export(self.run(name), path, ExportOptions())
        return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return Exports(tmp_path_factory.mktemp("onnx"))


def example(directory: Path, *arguments: str) -> str:
    """The output of example.py in a process that has weft neither imported nor on its path."""
    command = [sys.executable, "-I", str(directory / "example.py"), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def pairs(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.split("\n")[:-1]]


def says_label(run, directory, texts):
    prediction = run.predict(texts if len(texts) > 1 else texts[0])
    found = pairs(example(directory, *texts))
    assert [label for label, _ in found] == list(prediction.probabilities)
    assert np.allclose([float(value) for _, value in found], list(prediction.probabilities.values()), atol=1e-5)


def says_tags(run, directory, sentence):
    assert [tag for _, tag in pairs(example(directory, sentence))] == run.predict(sentence).tags


def says_answer(run, directory, question, passage):
    assert example(directory, question, passage) == run.predict((question, passage)).text + "\n"


CHECKS: dict[str, Callable[[Any, Path], None]] = {
    "classifier": lambda run, path: says_label(run, path, (SENTENCE * 40,)),
    "pairs": lambda run, path: says_label(run, path, ("the cat", SENTENCE)),
    "tagger": lambda run, path: says_tags(run, path, "mr bo sees mr unknownword"),
    "linear-tagger": lambda run, path: says_tags(run, path, "mr bo sees mr unknownword"),
}


def check_masks(run: Any, directory: Path) -> None:
    text = "the [MASK] sees a [MASK] ."
    found = pairs(example(directory, text))
    expected = [token for mask in run.predict(text) for token in mask]
    assert [token for _, token, _ in found] == [token.token for token in expected]
    assert np.allclose([float(value) for *_, value in found], [token.probability for token in expected], atol=1e-5)


def check_answers(run: Any, directory: Path) -> None:
    run.model.head.threshold.fill_(-1e9)  # every answer exceeds it
    settings = json.loads((directory / "model.json").read_text())
    (directory / "model.json").write_text(json.dumps(settings | {"threshold": -1e9}))
    for question, passage, _ in make_questions(3, seed=5):
        says_answer(run, directory, question, f"{passage} and {passage} then {passage}")  # several windows


def check_rewards(run: Any, directory: Path) -> None:
    assert float(example(directory, "the cat", SENTENCE)) == pytest.approx(run.predict(("the cat", SENTENCE)).value, abs=1e-5)


def check_continuation(run: Any, directory: Path) -> None:
    expected = run.generate("the old", temperature=0.0, max_new_tokens=20).text
    assert example(directory, "the old", "20").removesuffix("\n").strip() == expected.strip()


def check_output(run: Any, directory: Path) -> None:
    for text in ("giacca", "a<mask>b") if run.task == "denoising" else ("giacca", "ab"):
        assert example(directory, text) == run.predict(text, beam_size=1).text + "\n"


def check_speech(run: Any, directory: Path) -> None:
    audio = write_wav_of("abca", directory.parent / "spoken.wav")
    frames = torch.from_numpy(np.pad(audio, (0, -len(audio) % 40)).reshape(1, -1, 40))
    memory = run.model.encoder(frames, torch.ones(frames.shape[:2], dtype=torch.bool))
    (tokens,) = best_path(run.model.frame_log_probs(memory), memory.token_mask, blank=run.model.blank)
    assert tokens
    assert example(directory, str(directory.parent / "spoken.wav")) == run.vocabulary.decode(tokens) + "\n"


def write_wav_of(text: str, path: Path) -> np.ndarray:
    """Write a recording; returns its 16-bit samples."""
    write_wav(path, say(text), RATE)
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


CHECKS |= {
    "recognizer": check_speech,
    "masked-lm": check_masks,
    "qa": check_answers,
    "reward": check_rewards,
    "gpt": check_continuation,
    "lstm-lm": check_continuation,
    "instructions": check_continuation,
    "transformer": check_output,
    "lstm": check_output,
    "copying": check_output,
    "denoising": check_output,
}
QUICK = ("classifier", "lstm-lm")  # exporting takes seconds
every = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS]
)


@every
def test_an_exported_run_is_checked_and_its_example_says_what_weft_says(exports, name):
    directory = exports.exported(name)
    record = json.loads((directory / "export.json").read_text())
    assert record["check"]["max_difference"] < (1e-4 if name == "recognizer" else 2e-5)
    assert len({tuple(shape) for shape in record["check"]["shapes"]}) >= 4
    assert {"example.py", "example.mjs", "model.json", "tokenizer.json"} - set(record["files"]) <= {"tokenizer.json"}
    CHECKS[name](exports.run(name), directory)


def test_every_recurrent_operator_equals_its_layer():
    for name in recurrent_mixers():
        layer, operator = (module.eval() for module in (build_mixer(name), build_mixer(name)))
        operator.load_state_dict(layer.state_dict())
        operator = exportable(torch.nn.ModuleList([operator]))[0]
        assert type(operator) is not type(layer)
        x, mask = torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([5, 2, 0])[:, None]
        _, state = layer(torch.randn(3, 2, 8))
        for arguments in ((x,), (x, state), (x, None, mask), (x, state, mask)):
            (y, new), (expected, expected_new) = operator(*arguments), layer(*arguments)
            is_token = mask if len(arguments) == 3 else torch.ones_like(mask)
            torch.testing.assert_close(y[is_token], expected[is_token], atol=1e-6, rtol=1e-5)
            for part, expected_part in zip(tree_leaves(new), tree_leaves(expected_new), strict=True):
                torch.testing.assert_close(part, expected_part, atol=1e-6, rtol=1e-5)


def test_two_directions_are_one_operator_that_equals_both():
    x, mask = torch.randn(3, 5, 8), torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
    for name in recurrent_mixers():
        layers = Bidirectional(build_mixer(name), build_mixer(name)).eval()
        operator = exportable(torch.nn.ModuleList([layers]))[0]
        assert type(operator) is not Bidirectional
        for token_mask in (None, mask):
            (y, new), (expected, expected_new) = operator(x, None, token_mask), layers(x, None, token_mask)
            torch.testing.assert_close(y[mask], expected[mask], atol=1e-6, rtol=1e-5)
            for part, expected_part in zip(tree_leaves(new), tree_leaves(expected_new), strict=True):
                torch.testing.assert_close(part, expected_part, atol=1e-6, rtol=1e-5)


def test_attention_without_a_cache_equals_attention_with_an_empty_one():
    layer = build_mixer("attention").eval()
    traced, x = exportable(torch.nn.ModuleList([layer]))[0], torch.randn(2, 4, 8)
    heads, size = layer.num_heads, 8 // layer.num_heads
    empty = KVCache(torch.zeros(2, heads, 0, size), torch.zeros(2, heads, 0, size), torch.zeros(2, 0, dtype=torch.long))
    for part, expected in zip(tree_leaves(traced(x, empty)), tree_leaves(layer(x)), strict=True):
        torch.testing.assert_close(part, expected)


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "gru": {"layer_type": "gru", "pooling": "max"},
    "gru-reset-before": {"layer_type": "gru-reset-before", "bidirectional": False, "pooling": "last"},
    "mingru": {"layer_type": "mingru", "pooling": "max"},
    "minlstm": {"layer_type": "minlstm", "pooling": "max"},
    "sigmoid": {"layer_type": "rnn", "nonlinearity": "sigmoid", "pooling": "last"},
    "conv": {"layer_type": "conv", "pooling": "attention"},
    **{
        encoding: {"layer_type": "attention", "num_heads": 2, "skip_connection": "residual", "position_encoding": encoding}
        for encoding in ("relative", "relative-bias", "alibi", "learned", "sinusoidal", "rotary")
    },
    "experts": {"layer_type": "attention", "num_heads": 2, "skip_connection": "residual", "num_experts": 4, "norm": "rmsnorm"},
    "conformer": {
        "layer_type": "attention", "num_heads": 2, "skip_connection": "residual", "norm": "layernorm", "conv_kernel": 3,
    },
    "pruned": {"layer_type": "attention", "num_heads": [0, 2], "head_dim": 8, "skip_connection": "residual"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_layer_type_and_position_encoding_has_a_graph(tmp_path, name):
    config = ClassifierConfig(**{"hidden_size": 16, "num_layers": 2, **CLASSIFIERS[name]}).with_defaults()
    options = {"vocab_size": 20, "num_labels": 3, "max_positions": 40, "segments": False, "multilabel": False}
    model = enlarge_weights(classifier(config, **options)).eval()
    graph = encoder_graph(
        model,
        lambda model, text: model.head.log_probs(model(text)),
        result=("log_probs", ("batch", 3)),
        vocab_size=20,
        segments=False,
    )
    assert onnx_check.check_graph(graph, onnx_check.write_graph(graph, tmp_path), shapes(40)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gru/gru-reset-before/every-step", "rnn/lstm/additive-before", "conv/lstm/additive-feeding", "copying-transformer",
        "sigmoid-before-size", "relative-bias-transformer", "learned-before", "copying-shared-tied",
    ],
)  # fmt: skip
def test_every_kind_of_encoder_decoder_has_graphs(tmp_path, name):
    graphs, _ = encoder_decoder_graphs(build(name), source_vocab_size=VOCAB_SIZE, vocab_size=VOCAB_SIZE)
    for graph in graphs:
        assert onnx_check.check_graph(graph, onnx_check.write_graph(graph, tmp_path), shapes(32)) < 2e-5


def test_int8_is_smaller_and_its_difference_is_recorded(exports, tmp_path, capsys):
    run_dir, out = exports.run("lstm-lm").path, tmp_path / "int8"
    assert main(["export", str(run_dir), "--format", "onnx", "--quantization", "int8", "-o", str(out)]) == 0
    captured = capsys.readouterr()
    record = json.loads((out / "export.json").read_text())
    assert captured.out == f"{out}\n"
    assert "model.onnx: 8-bit weights change the outputs by up to " in captured.err
    assert 1e-5 < record["check"]["max_difference"] < 0.5
    assert json.loads((out / "model.json").read_text())["quantization"] == "int8"
    operators = {node.op_type for node in onnx.load(out / "model.onnx").graph.node}
    assert "DynamicQuantizeLSTM" in operators and "LSTM" not in operators


def test_a_graph_that_differs_is_refused_and_nothing_is_written(exports, tmp_path, monkeypatch):
    run = exports.run("classifier")
    source = exports.exported("classifier") / "model.onnx"
    monkeypatch.setattr(onnx_check, "write_graph", lambda graph, directory: source)
    with torch.no_grad():
        run.model.head.scores.bias[0] += 1e-2
    with pytest.raises(
        ModelError, match=r"the outputs of model.onnx differ from those of the run by 0\.0.*; nothing was written"
    ):
        onnx_export.export(run, tmp_path / "out", ExportOptions())
    assert list(tmp_path.iterdir()) == []


def test_differences_that_are_no_numbers_are_infinite():
    mask = {"mask": torch.tensor([[True, False]])}
    ours = torch.tensor([[[1.0], [2.0]]])
    compare = onnx_check._difference
    assert compare(ours, np.array([[[1.5], [9.0]]]), "mask", mask) == 0.5
    assert compare(ours, np.array([[[1.0], [np.nan]]]), "mask", mask) == 0.0
    assert compare(ours, np.array([[[1.0], [np.nan]]]), None, mask) == np.inf
    assert compare(ours, np.array([[1.0], [2.0]]), None, mask) == np.inf
    assert compare(torch.tensor([-np.inf]), np.array([-np.inf]), None, mask) == 0.0


def test_what_cannot_be_exported_is_refused_with_its_option(exports, tmp_path):
    text = make_text(tmp_path / "text.txt")
    ngram = run_file(text) | {"model": {"arch": "ngram"}}
    assert onnx_export.problems(resolve(ngram | {"train": {}}, base=tmp_path)) == [
        "model.arch = 'ngram': only neural networks can be exported"
    ]
    run = weft.load(train_here(ngram | {"train": {}}, tmp_path / "ngram").path)
    with pytest.raises(UsageError, match=r"export: model\.arch = 'ngram': only neural networks can be exported"):
        onnx_export.export(run, tmp_path / "out", ExportOptions())
    assert onnx_export.problems(exports.run("classifier").config) == []


def test_recognizers_with_a_decoder_and_captioners_are_refused(tmp_path):
    recognizer = resolve(speech_run_file(make_recordings(tmp_path), model__ctc_weight=0.3), base=tmp_path)
    assert onnx_export.problems(recognizer) == [
        "model.ctc_weight = 0.3: recognizers with a decoder cannot be exported, only CTC (1)"
    ]
    captioner = resolve(run_values({"train": str(write_features(tmp_path))}), base=tmp_path)
    (problem,) = onnx_export.problems(captioner)
    assert problem.startswith("model.arch = ") and problem.endswith("cannot be exported, only models of text and speech")


def test_wrong_calls_are_refused(exports, tmp_path, monkeypatch):
    run = exports.run("classifier")
    with pytest.raises(UsageError, match="quantization: ONNX has no 'int4'; use int8"):
        onnx_export.export(run, tmp_path / "out", ExportOptions("int4"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file, not a directory; choose another `output_dir`"):
        onnx_export.export(run, tmp_path / "file", ExportOptions())
    with pytest.raises(UsageError, match="is not empty; choose another `output_dir`"):
        onnx_export.export(run, tmp_path, ExportOptions())
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr("weft.interop.onnx_check.write_graph", Mock(side_effect=full))
        with pytest.raises(ResourceError, match="out: no space left on disk; nothing was changed; free some space and try"):
            onnx_export.export(run, tmp_path / "out", ExportOptions())
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"export: ONNX requires the package onnx; run pip install 'weft\[onnx\]'"):
        onnx_export.export(run, tmp_path / "out", ExportOptions())
