"""CTranslate2 as an engine: the outputs and scores of weft with every option, the cache of exported models, refusals."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import expect_error
from seq2seq_runs import Seq2SeqRuns, make_pairs, seq2seq_run_file
from small_runs import flip_bit, make_text, run_file, train_here

import weft
from weft.cli.main import main
from weft.config import override
from weft.decode import generate as generation
from weft.decode import predict as prediction
from weft.decode.generate import Continuation
from weft.decode.options import GenerationConfig
from weft.decode.prediction import Prediction
from weft.errors import ModelError, ResourceError, UsageError
from weft.interop import ctranslate2_cache, ctranslate2_engine
from weft.runs.run_dir import RunDir
from weft.text.start_tokens import StartTokens, post_processor
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
pytestmark = pytest.mark.usefixtures("restore_openmp_env")
WORDS = ["abc", "fade", "bed", "a", "", "ccc", "faaf", "dabed", "efe", "bb", "cad", "ffff"]
PROMPTS = ["the cat", "", "a bird sees the", "dog .", "old"]
NEAR = 2e-5


def amplify(run_dir: Path, factor: float = 4.0) -> None:
    """Larger weights: outputs differ between inputs, although the model has hardly been trained."""
    run = weft.load(run_dir, device="cpu")
    tensors = {name: tensor * (factor if tensor.dim() == 2 else 1) for name, tensor in run.model.state_dict().items()}
    directory = RunDir(run_dir)
    directory.write_weights(tensors, run.vocabulary.hash, directory.weights_step())


def assert_equal(theirs: Sequence[Any], ours: Sequence[Any]) -> None:
    """Equal outputs, alternatives, prefixes and ends; equal scores up to rounding."""
    for a, b in zip(theirs, ours, strict=True):
        for x, y in zip(a.ranked(), b.ranked(), strict=True):
            assert (x.text, x.token_ids) == (y.text, y.token_ids)
            assert x.score == pytest.approx(y.score, abs=NEAR * max(1, len(x.token_ids)))
            assert x.log_prob == pytest.approx(y.log_prob, abs=NEAR * max(1, len(x.token_ids)))
            if isinstance(x, Prediction):
                assert (list(x.prefix), x.truncated) == (list(y.prefix), y.truncated)
            else:
                assert x.finish_reason == y.finish_reason


class Both:
    """A run under both engines. `calls` has the number of inputs of each call of weft's own search by CTranslate2's engine."""

    def __init__(self, run_dir: Path) -> None:
        self.ours = weft.load(run_dir, device="cpu")
        self.theirs = weft.load(run_dir, device="cpu", engine="ctranslate2")
        self.calls: list[int] = []

    def count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count from now on."""
        self.calls.clear()
        predict, generate = prediction.predict, generation.generate

        def count_sources(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append(len(request.lengths))
            return predict(request, *args, **kwargs)

        def count_prompts(model: Any, tokenizer: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append(len(prompts))
            return generate(model, tokenizer, prompts, *args, **kwargs)

        monkeypatch.setattr(ctranslate2_engine.prediction, "predict", count_sources)
        monkeypatch.setattr(ctranslate2_engine.generation, "generate", count_prompts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def seq2seq(runs):
    amplify(runs.run_dir("transformer"))
    return Both(runs.run_dir("transformer"))


def language_model(directory: Path, model: str, **options: Any) -> Path:
    return train_here(run_file(make_text(directory / "text.txt"), model, **options), directory / "run").path


@pytest.fixture(scope="module", params=["lines", "windows"])
def gpt(request, tmp_path_factory):
    run_dir = language_model(tmp_path_factory.mktemp("gpt"), "gpt", data__read_as=request.param)
    amplify(run_dir, 3.0)
    return Both(run_dir)


# ---- equal outputs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 1},
        {"temperature": 0.0},
        {"beam_size": 3, "n_best": 3},
        {"length_penalty": 0.0},
        {"length_penalty": 0.6, "patience": 1.0},
        {"patience": 0.0},
        {"max_new_tokens": 1},
        {"max_new_tokens": 3, "n_best": 5},
        {"beam_size": 1, "target_prefix": "A B"},
        {"beam_size": 1, "target_prefixes": ["A B", "C"] * 6},
    ],
    ids=str,
)  # fmt: skip
def test_predictions_are_equal(seq2seq, monkeypatch, options):
    expected = seq2seq.ours.predict(WORDS, **options)
    seq2seq.count(monkeypatch)
    assert_equal(seq2seq.theirs.predict(WORDS, **options), expected)
    assert sum(seq2seq.calls) < len(WORDS) / 2  # most are decoded by CTranslate2
    assert len({output.text for output in expected}) > 3


@pytest.mark.parametrize(
    "options",
    [{"target_prefix": "A"}, {"min_new_tokens": 7}, {"banned_tokens": ["B", "CC"]}, {"max_new_tokens": 90}],
    ids=str,
)
def test_what_ctranslate2_does_differently_is_decoded_by_weft(seq2seq, monkeypatch, options):
    expected = seq2seq.ours.predict(WORDS, **options)
    seq2seq.count(monkeypatch)
    assert_equal(seq2seq.theirs.predict(WORDS, **options), expected)
    assert sum(seq2seq.calls) > 0


def test_inputs_that_are_too_long_and_alignments(seq2seq):
    long = "abcdef" * 4
    for run in (seq2seq.ours, seq2seq.theirs):
        results = run.try_predict([long, "abc"])
        assert results[0].reason == "25 tokens exceed the model's limit of 16; shorten it or set `truncate`"
    assert_equal(seq2seq.theirs.predict([long], truncate=True), seq2seq.ours.predict([long], truncate=True))
    ours, theirs = (run.predict("abc", return_alignments=True).alignment for run in (seq2seq.ours, seq2seq.theirs))
    assert (theirs.weights == ours.weights).all()


def test_progress(seq2seq, monkeypatch):
    monkeypatch.setattr(ctranslate2_engine, "NUM_PER_CALL", 4)
    reports = list[tuple[str, int, int]]()
    seq2seq.theirs.predict(["ab", "c"] * 4, progress=lambda *report: reports.append(report))
    assert reports == [("predicting", 4, 8), ("predicting", 8, 8)]


def test_evaluations_are_equal_and_name_the_engine(seq2seq):
    ours, theirs = seq2seq.ours.evaluate(), seq2seq.theirs.evaluate()
    assert [score.value for score in theirs] == [score.value for score in ours]
    assert theirs["bleu"].signature == ours["bleu"].signature.replace("patience:2", "patience:2/engine:ctranslate2-float32")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "stop": ["e", "dog"]},
        {"temperature": 0.0, "min_new_tokens": 9},
        {"beam_size": 1, "length_penalty": 1.0},
        {"beam_size": 4, "n_best": 3},
        {"beam_size": 4, "length_penalty": 1.0},
    ],
    ids=str,
)
def test_continuations_are_equal(gpt, options):
    """40 new tokens: beyond the context of 16."""
    expected = gpt.ours.generate(PROMPTS, max_new_tokens=40, **options)
    assert_equal(gpt.theirs.generate(PROMPTS, max_new_tokens=40, **options), expected)


def test_continuations_are_computed_by_ctranslate2(gpt, monkeypatch):
    gpt.count(monkeypatch)
    gpt.theirs.generate(PROMPTS, max_new_tokens=5, temperature=0.0)
    assert sum(gpt.calls) < len(PROMPTS)
    gpt.calls.clear()
    long = " ".join(["the cat"] * 20)  # longer than the context
    continuation = gpt.theirs.generate(long, temperature=0.0)
    assert gpt.calls == [1]
    assert_equal([continuation], [gpt.ours.generate(long, temperature=0.0)])
    assert list(gpt.theirs.stream("the", temperature=0.0)) == ["".join(gpt.ours.stream("the", temperature=0.0))]


def test_other_tasks_and_tokenizers(tmp_path):
    """Masks that are not in the tokenizer, several start tokens, and adapters (LoRA)."""
    text = make_text(tmp_path / "text.txt")
    model = {"arch": "transformer", "hidden_size": 16, "num_heads": 2, "num_layers": 1}
    train = {"max_steps": 4, "batch_tokens": 200, "num_validations": 1, "device": "cpu"}
    common = {"recommend": False, "model": model, "train": train}
    data = {"train": str(text), "valid": 0.1, "max_length": 32}
    values = {"task": "denoising", "data": data, "tokenizer": {"type": "word"}, **common}
    both = Both(train_here(values, tmp_path / "denoising").path)
    for options in ({}, {"add_noise": True}, {"beam_size": 1}):
        lines = ["the <mask> sees a dog", "old"]
        assert_equal(both.theirs.predict(lines, **options), both.ours.predict(lines, **options))

    plain = train_tokenizer(TokenizerConfig(type="char"), iter(["abcdef", "ABCDEF "]))
    tokens = [plain.id_to_token(token_id) for token_id in range(plain.vocab_size)]
    processor = post_processor(StartTokens((1,), (2, 1)), tokens)
    (tmp_path / "tokenizer.json").write_text(json.dumps({**json.loads(plain.data), "post_processor": processor}))
    values = seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv"), "learned", "train.max_steps=4")
    values["tokenizer"] = {"file": str(tmp_path / "tokenizer.json")}
    both = Both(train_here(values, tmp_path / "bart").path)
    for options in ({}, {"beam_size": 1}):
        assert_equal(both.theirs.predict(["abc", "fe"], **options), both.ours.predict(["abc", "fe"], **options))

    rows = [{"prompt": f"Repeat {word}.", "response": word} for word in ("tree", "river", "cat") * 8]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"train": str(tmp_path / "rows.jsonl"), "valid": 0.2, "max_length": 100}
    values = {"task": "instruction-tuning", "data": data, "tokenizer": {"type": "char"}, **common}
    values["model"] = {"hidden_size": 16, "num_layers": 1}
    base = train_here(values, tmp_path / "base").path
    values["tokenizer"] = {"file": str(base / "tokenizer.json")}
    both = Both(
        train_here(override(values, ["model.lora_rank=2", "train.lr=0.1", f"train.init_from={base}"]), tmp_path / "lora").path
    )
    options = {"temperature": 0.0, "max_new_tokens": 8}
    assert_equal(both.theirs.generate(["Repeat cat."], **options), both.ours.generate(["Repeat cat."], **options))
    chats = [run.spec.decode.chat(run, [("user", "Hi")], GenerationConfig(**options)) for run in (both.ours, both.theirs)]
    assert "".join(chats[0]) == "".join(chats[1])


# ---- the cache


def exports(run_dir: Path) -> list[str]:
    return sorted(os.listdir(run_dir / "ctranslate2"))


def test_an_export_is_used_again_until_the_weights_change(tmp_path, runs, monkeypatch):
    run_dir = shutil.copytree(runs.run_dir("transformer"), tmp_path / "run", ignore=shutil.ignore_patterns("ctranslate2"))
    written = list[str]()
    write_model = ctranslate2_cache.write_model

    def recorded(run: Any, directory: Path, quantization: str) -> Any:
        written.append(quantization)
        return write_model(run, directory, quantization)

    monkeypatch.setattr(ctranslate2_cache, "write_model", recorded)
    for _ in range(2):
        before = weft.load(run_dir, device="cpu", engine="ctranslate2").predict(WORDS)
    assert written == ["float32"]
    weft.load(run_dir, device="cpu", engine="ctranslate2", quantization="int8").predict(WORDS)
    assert written == ["float32", "int8"]
    old = exports(run_dir)
    assert [name.split("-")[0] for name in old] == ["float32", "int8"]

    amplify(run_dir, 0.5)  # trained further
    after = weft.load(run_dir, device="cpu", engine="ctranslate2").predict(WORDS)
    assert_equal(after, weft.load(run_dir, device="cpu").predict(WORDS))
    assert [output.score for output in after] != [output.score for output in before]
    assert written[2:] == ["float32"]
    assert old[0] not in exports(run_dir) and old[1] in exports(run_dir)  # the old one of the same precision is removed

    (model,) = run_dir.glob("ctranslate2/float32-*/model.bin")
    flip_bit(model)
    assert_equal(weft.load(run_dir, device="cpu", engine="ctranslate2").predict(WORDS), after)
    assert written[3:] == ["float32"]


def test_a_run_directory_that_cannot_be_written_to(tmp_path, runs):
    run_dir = shutil.copytree(runs.run_dir("transformer"), tmp_path / "run", ignore=shutil.ignore_patterns("ctranslate2"))
    (run_dir / "ctranslate2").write_text("")  # root may write everywhere, but not into a file
    theirs = weft.load(run_dir, device="cpu", engine="ctranslate2").predict("abc")
    assert_equal([theirs], [weft.load(run_dir, device="cpu").predict("abc")])
    assert (run_dir / "ctranslate2").read_text() == ""


def test_a_record_without_files_and_a_link(tmp_path, runs):
    run_dir = shutil.copytree(runs.run_dir("transformer"), tmp_path / "run", ignore=shutil.ignore_patterns("ctranslate2"))
    before = weft.load(run_dir, device="cpu", engine="ctranslate2").predict(WORDS)
    (directory,) = (run_dir / "ctranslate2").iterdir()
    (directory / "export.json").write_text('{"files": {}}')
    (directory / "model.bin").unlink()
    assert_equal(weft.load(run_dir, device="cpu", engine="ctranslate2").predict(WORDS), before)
    (run_dir / "ctranslate2").rename(tmp_path / "elsewhere")
    (run_dir / "ctranslate2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="symbolic links are not followed inside a weft directory"):
        weft.load(run_dir, device="cpu", engine="ctranslate2")


# ---- refusals


def test_refusals_in_python(seq2seq, gpt, runs, monkeypatch):
    path = runs.run_dir("transformer")
    with pytest.raises(UsageError, match="engine: unknown engine 'ctranslate'; did you mean 'ctranslate2'"):
        weft.load(path, engine="ctranslate")
    with pytest.raises(UsageError, match="quantization: not used with `engine` 'torch'; use `engine` 'ctranslate2'"):
        weft.load(path, quantization="int8")
    with pytest.raises(UsageError, match="unknown quantization 'int7'"):
        weft.load(path, engine="ctranslate2", quantization="int7")
    with pytest.raises(UsageError, match="engine: cannot be combined with `cache`; use one of them"):
        weft.load(gpt.ours.path, engine="ctranslate2", cache=True)
    with pytest.raises(UsageError, match=r"^engine: CTranslate2 cannot compute this run: model.layer_type = \"lstm\""):
        weft.load(runs.run_dir("lstm"), engine="ctranslate2")
    for options in ({"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"num_samples": 2}):
        (name,) = options
        with pytest.raises(UsageError, match=f"{name}: not available with `engine` 'ctranslate2'; use `engine` 'torch', whose"):
            seq2seq.theirs.predict("abc", **options)
    with pytest.raises(UsageError, match="min_new_tokens"):
        weft.load(runs.run_dir("learned"), engine="ctranslate2", device="cpu").predict("abc", min_new_tokens=50)
    with pytest.raises(UsageError, match="engine: 'ctranslate2' does not sample; set `temperature` 0 or `beam_size`"):
        gpt.theirs.generate("the")
    for options in ({"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 2}, {"stop": ["a"]}):
        (name,) = options
        with pytest.raises(UsageError, match=f"{name}: not available with `engine` 'ctranslate2'; use "):
            gpt.theirs.generate("the", beam_size=2, **options)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ResourceError, match=r"ctranslate2: is not installed; run pip install 'weft\[ctranslate2\]'"):
        weft.load(path, engine="ctranslate2")


def test_commands(seq2seq, gpt, runs, capsys):
    path, lm = str(runs.run_dir("transformer")), str(gpt.ours.path)
    outputs = []
    for engine in ("torch", "ctranslate2"):
        assert main(["predict", path, "fade", "--engine", engine, "--device", "cpu"]) == 0
        assert main(["generate", lm, "the", "--greedy", "--max-new-tokens", "9", "--engine", engine, "--device", "cpu"]) == 0
        assert main(["evaluate", path, "--engine", engine, "--device", "cpu"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert main(["predict", path, "fade", "--engine", "ctranslate2", "--quantization", "int8"]) == 0
    capsys.readouterr()
    expected = "--engine: scores of language models are computed by weft itself; remove it"
    assert expect_error(capsys, "evaluate", lm, "--engine", "ctranslate2") == (2, expected)
    arguments = ["predict", path, "fade", "--engine", "ctranslate2", "--ensemble", path]
    assert expect_error(capsys, *arguments) == (2, "--engine: cannot be combined with --ensemble")
    arguments += ["--quantization", "int8"]
    assert expect_error(capsys, *arguments) == (2, "--quantization: cannot be combined with --ensemble")


def test_threads_are_those_of_torch(runs, monkeypatch):
    opened = list[dict[str, Any]]()

    def recorded(run: Any, directory: Path, quantization: str, **options: Any) -> Any:
        opened.append(options)

    monkeypatch.setattr(ctranslate2_engine, "open_model", recorded)
    weft.load(runs.run_dir("transformer"), device="cpu", engine="ctranslate2")
    assert opened == [{"device": "cpu", "threads": torch.get_num_threads()}]


def test_continuation_type(gpt):
    assert isinstance(gpt.theirs.generate("the", beam_size=2), Continuation)
