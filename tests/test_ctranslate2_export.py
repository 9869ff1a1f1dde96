"""Export to CTranslate2: every option value computes the same function, others are named, and the files work without weft."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from seq2seq_runs import Seq2SeqRuns, make_pairs, seq2seq_run_file
from small_runs import make_text, run_file, train_here

import weft
from weft.errors import ModelError, ResourceError, UsageError
from weft.interop import ctranslate2_check, ctranslate2_export
from weft.interop.ctranslate2_export import TOLERANCES, export, problems
from weft.interop.export_record import ExportOptions
from weft.interop.formats import FORMATS
from weft.models.config import GPT, TRANSFORMER, LanguageModelConfig
from weft.models.lm import language_model
from weft.models.seq2seq import encoder_decoder
from weft.models.seq2seq_config import TRANSFORMER as SEQ2SEQ
from weft.models.seq2seq_config import Seq2SeqConfig, merge
from weft.runs.resolve import resolve

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
from weft.interop.ctranslate2_weights import language_model_spec, seq2seq_spec  # noqa: E402

NEAR, NUM_TOKENS, EOS = 2e-5, 30, 2
NAMES = ["<unk>", "<s>", "</s>", *(f"t{index}" for index in range(3, NUM_TOKENS))]
SIZES = {"hidden_size": 16, "num_heads": 2, "num_layers": 2, "ffn_dim": 24}


def randomize(model: torch.nn.Module) -> None:
    """Weights with which every part matters: no zeros, no ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 + (1 if "norm.weight" in name else 0))


def words(rows: list[list[int]]) -> list[list[str]]:
    return [[NAMES[token_id] for token_id in row] for row in rows]


def save(spec: Any, directory: Path, quantization: str = "float32") -> str:
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(directory))
    return str(directory)


def seq2seq(directory: Path, options: dict[str, Any], max_length: int = 40) -> tuple[Any, Any]:
    config = Seq2SeqConfig.model_validate(merge(SEQ2SEQ, {**SIZES, **options})).with_defaults()
    sizes = {"source_vocab_size": NUM_TOKENS, "target_vocab_size": NUM_TOKENS}
    model = encoder_decoder(config, **sizes, max_positions=max_length, vocabulary="").eval()
    randomize(model)
    spec = seq2seq_spec(model.state_dict(), config, (60, 60), max_length)
    spec.register_source_vocabulary(NAMES)
    spec.register_target_vocabulary(NAMES)
    return model, ctranslate2.Translator(save(spec, directory), compute_type="float32", intra_threads=1)


def generator(directory: Path, options: dict[str, Any], context_length: int = 40) -> tuple[Any, Any]:
    config = LanguageModelConfig.model_validate({**GPT, **SIZES, **options}).with_defaults()
    model = language_model(config, vocab_size=NUM_TOKENS, context_length=context_length, vocabulary="").eval()
    randomize(model)
    spec = language_model_spec(model.state_dict(), config, 80, context_length)
    spec.register_vocabulary(NAMES)
    return model, ctranslate2.Generator(save(spec, directory), compute_type="float32", intra_threads=1)


def encoded(model: Any, source: list[int]) -> Any:
    tokens = torch.tensor([source])
    return model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool))


# ---- every option value


SEQ2SEQ_OPTIONS: list[dict[str, Any]] = [
    {},
    *({"position_encoding": name} for name in ("none", "learned", "relative", "relative-bias", "rotary")),
    {"position_encoding": "rotary", "rope_theta": 500.0},
    {"encoder": {"position_encoding": "rotary"}, "decoder": {"position_encoding": "alibi"}},
    {"norm_position": "post", "embedding_norm": True},
    {"norm": "rmsnorm"},
    {"norm": "rmsnorm", "norm_eps": 1e-2, "embedding_norm": True},
    {"norm_eps": 1e-2},
    {"bias": False, "head_bias": False},
    *({"activation": name} for name in ("gelu", "gelu-tanh", "silu", "squared-relu", "swiglu", "geglu-tanh")),
    {"activation": "squared-relu", "bias": False},
    {"share_embeddings": True, "tie_embeddings": True},
    {"scale_embeddings": False},
    {"head_dim": 6},
    {"logit_softcap": 5.0},
    {"encoder": {"qk_norm": True}},
    {"encoder": {"num_layers": 1, "hidden_size": 24, "num_heads": 3, "activation": "gelu"}},
    {"decoder": {"num_heads": [0, 2], "head_dim": 8, "num_cross_heads": [3, 0]}},
    {"position_encoding": "relative", "num_heads": [0, 2], "head_dim": 8},
]


@torch.no_grad()
@pytest.mark.parametrize("options", SEQ2SEQ_OPTIONS, ids=str)
def test_encoder_decoders_have_equal_probabilities(tmp_path, options):
    model, translator = seq2seq(tmp_path, options)
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(3, NUM_TOKENS, size).tolist(), EOS] for size in (1, 6, 30)]
    targets = [rng.integers(3, NUM_TOKENS, size).tolist() for size in (39, 1, 7)]
    scores = translator.score_batch(words(sources), words(targets), max_batch_size=1, max_input_length=0)
    decoded = translator.translate_batch(  # step by step, with padded sources
        words(sources), beam_size=2, length_penalty=0, min_decoding_length=0, return_end_token=True, return_scores=True,
        max_decoding_length=50 if model.max_positions is None else 40,
    )  # fmt: skip
    for source, target, score, output in zip(sources, targets, scores, decoded, strict=True):
        ours = model.score(torch.tensor([[1, *target, EOS]]), None, encoded(model, source))[0]
        np.testing.assert_allclose(score.log_probs, ours, atol=NEAR)
        found = [1, *map(NAMES.index, output.hypotheses[0])]
        ours = model.score(torch.tensor([found]), None, encoded(model, source))[0]
        assert output.scores[0] == pytest.approx(float(ours.double().sum()), abs=NEAR * len(ours))


LM_OPTIONS: list[dict[str, Any]] = [
    {},
    dict(TRANSFORMER, qk_norm=False, activation="gelu"),
    {"tie_embeddings": True, "zero_init": False},
    *({"position_encoding": name} for name in ("none", "sinusoidal", "learned", "relative", "alibi")),
    {"norm": "layernorm"},  # another epsilon than the norm of queries and keys
    {"norm_eps": 1e-2},
    {"logit_softcap": 0.0, "qk_norm": False, "activation": "swiglu"},
    {"bias": False},
    {"norm_position": "post"},
    {"num_heads": [0, 1], "head_dim": 8},
]


@torch.no_grad()
@pytest.mark.parametrize("options", LM_OPTIONS, ids=str)
def test_language_models_have_equal_probabilities(tmp_path, options):
    model, theirs = generator(tmp_path, options)
    rng = np.random.default_rng(0)
    texts = [[1, *rng.integers(3, NUM_TOKENS, size).tolist()] for size in (39, 1, 7)]
    for text, score in zip(texts, theirs.score_batch(words(texts), max_batch_size=1, max_input_length=0), strict=True):
        np.testing.assert_allclose(score.log_probs, model.score(torch.tensor([text]))[0], atol=NEAR)
    prompts = [text[:5] for text in texts]
    length = 20 if model.max_positions is not None else 60  # beyond the context, where there is no table
    outputs = theirs.generate_batch(
        words(prompts), beam_size=1, length_penalty=0, max_length=length, include_prompt_in_result=False, return_scores=True,
        return_end_token=True, max_batch_size=1,
    )  # fmt: skip
    for prompt, output in zip(prompts, outputs, strict=True):
        new = output.sequences_ids[0]
        ours = model.score(torch.tensor([[*prompt, *new]]))[0, len(prompt) - 1 :]
        assert output.scores[0] == pytest.approx(float(ours.double().sum()), abs=NEAR * len(new))


@torch.no_grad()
def test_relative_bias_of_a_language_model_is_wrong_after_a_prompt(tmp_path):
    """Why it is refused. If this test fails, CTranslate2 has been repaired."""
    model, theirs = generator(tmp_path, {"position_encoding": "relative-bias"})
    prompt = [1, 5, 6, 7, 8]
    (output,) = theirs.generate_batch(
        words([prompt]), beam_size=1, length_penalty=0, max_length=10, include_prompt_in_result=False, return_scores=True
    )
    ours = model.score(torch.tensor([[*prompt, *output.sequences_ids[0]]]))[0, len(prompt) - 1 :]
    assert abs(output.scores[0] - float(ours.sum())) > 1e-3


# ---- what has no equivalent


def seq2seq_problems(directory: Path, *overrides: str, model: str = "transformer") -> list[str]:
    pairs = make_pairs(directory / "pairs.tsv")
    return problems(resolve(seq2seq_run_file(pairs, model, *overrides), base=directory))


def lm_problems(directory: Path, model: str = "gpt", **options: Any) -> list[str]:
    values = run_file(make_text(directory / "text.txt"), model)
    values["model"] |= options
    return problems(resolve(values, base=directory))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.qk_norm=true", "model.qk_norm = true: CTranslate2 has no equivalent in encoder-decoders"),
        ("model.decoder.qk_norm=true", "model.decoder.qk_norm = true: CTranslate2 has no equivalent in encoder-decoders"),
        ("model.skip_connection=highway", 'model.skip_connection = "highway": CTranslate2 has no equivalent'),
        ("model.norm=none", 'model.norm = "none": CTranslate2 has no equivalent'),
        ("model.encoder.conv_kernel=3", "model.encoder.conv_kernel = 3: CTranslate2 has no equivalent"),
        ("model.num_experts=4", "model.num_experts = 4: CTranslate2 has no equivalent"),
        ("model.encoder.bidirectional=false", "model.encoder.bidirectional = false: CTranslate2 has no equivalent"),
        ("model.attention=none", 'model.attention = "none": CTranslate2 has no equivalent'),
        (
            "model.encoder.position_encoding=alibi",
            'model.encoder.position_encoding = "alibi": CTranslate2 has no equivalent in encoders',
        ),
        (
            "model.encoder.norm_eps=0.001",
            "model.encoder.norm_eps = 0.001: CTranslate2 has one epsilon, but that of the decoder is 1e-05",
        ),
        ("model.head_dim=[4,8]", "model.head_dim = [4, 8]: CTranslate2 has one head size in all layers"),
    ],
)
def test_options_of_encoder_decoders_without_an_equivalent(tmp_path, override, expected):
    assert seq2seq_problems(tmp_path, override) == [expected]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"position_encoding": "relative-bias"},
            'model.position_encoding = "relative-bias": CTranslate2 computes it wrongly after a prompt of several tokens',
        ),
        (
            {"position_encoding": "alibi", "num_heads": 3, "head_dim": 4},
            "model.num_heads = 3: with alibi, CTranslate2 has these slopes for one power of 2 in all layers",
        ),
        (
            {"position_encoding": "alibi", "num_heads": 2, "alibi_slopes": [[0.5, 0.25]]},
            "model.alibi_slopes = [[0.5, 0.25]]: CTranslate2 has the slopes of the paper",
        ),
        ({"ffn_dim": 0, "activation": None}, "model.ffn_dim = 0: CTranslate2 has a feed-forward sublayer in each layer"),
        ({"num_heads": [0], "head_dim": 4}, "model.num_heads = [0]: CTranslate2 has at least one head"),
    ],
)
def test_options_of_language_models_without_an_equivalent(tmp_path, options, expected):
    assert lm_problems(tmp_path, **options) == [expected]


def test_runs_that_can_and_cannot_be_exported(tmp_path):
    assert seq2seq_problems(tmp_path) == lm_problems(tmp_path) == lm_problems(tmp_path, "transformer") == []
    assert 'model.layer_type = "lstm": CTranslate2 has no equivalent' in seq2seq_problems(tmp_path, model="lstm")
    assert 'model.layer_type = "conv": CTranslate2 has no equivalent' in lm_problems(tmp_path, "conv")
    assert "model.copy_mechanism = true: CTranslate2 has no equivalent" in seq2seq_problems(tmp_path, model="joint")
    ngram = run_file(make_text(tmp_path / "text.txt")) | {"model": {"arch": "ngram"}}
    (problem,) = problems(resolve(ngram, base=tmp_path))
    assert problem == 'task = "lm" with model.arch = "ngram": CTranslate2 has language models and encoder-decoders of texts'


# ---- exported directories


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gpt")
    return train_here(run_file(make_text(directory / "text.txt"), "gpt", data__read_as="lines"), directory / "run").path


def call_of(directory: Path, text: str) -> dict[str, Any]:
    """The variables after the call of export.json."""
    record = json.loads((directory / "export.json").read_text())
    scope: dict[str, Any] = {"directory": str(directory), "text": text}
    exec(record["call"], scope)
    return scope


def test_the_call_of_the_record_gives_the_output_of_an_encoder_decoder(tmp_path, runs):
    run = weft.load(runs.run_dir("transformer"), device="cpu")
    assert export(run, tmp_path / "out", ExportOptions()) == []
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["format"] == "ctranslate2" and record["check"]["max_difference"] < NEAR
    assert {len(shape) for shape in record["check"]["shapes"]} == {2} and len(record["check"]["shapes"]) == 3
    assert {"model.bin", "config.json", "tokenizer.source.json", "tokenizer.target.json"} <= record["files"].keys()
    for text in ("abc", "fade", "b"):
        called, ours = call_of(tmp_path / "out", text), run.predict(text)
        assert (called["output"], called["score"]) == (ours.text, pytest.approx(ours.score, abs=NEAR))


def test_the_call_of_the_record_gives_the_output_of_a_language_model(tmp_path, gpt):
    run = weft.load(gpt, device="cpu")
    (note,) = export(run, tmp_path / "out", ExportOptions())
    assert note == "CTranslate2 reads a prompt of more than 16 tokens without the context limit of 16: shorten it"
    called, ours = call_of(tmp_path / "out", "the old"), run.generate("the old", temperature=0)
    assert called["output"] == ours.text
    assert called["score"] * len(ours.token_ids) == pytest.approx(ours.log_prob, abs=NEAR * len(ours.token_ids))


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16", "bfloat16"])
def test_quantized_models(tmp_path, runs, quantization):
    run = weft.load(runs.run_dir("transformer"), device="cpu")
    before = run.predict("abc")
    export(run, tmp_path / "q", ExportOptions(quantization))
    assert run.predict("abc") == before  # CTranslate2 quantizes in place
    weights = run.path / "model.safetensors"
    assert (tmp_path / "q" / "model.bin").stat().st_size < weights.stat().st_size
    record = json.loads((tmp_path / "q" / "export.json").read_text())
    assert 1e-6 < record["check"]["max_difference"] < 0.5


def test_a_wrong_model_is_not_written(tmp_path, runs, monkeypatch):
    run = weft.load(runs.run_dir("transformer"), device="cpu")
    monkeypatch.setattr(ctranslate2_export, "num_positions", lambda run: (16, 80))
    original = ctranslate2_check.compare_translator

    def wrong(run: Any, *args: Any) -> Any:
        with torch.no_grad():
            run.model.head.head.weight.mul_(1.01)
        return original(run, *args)

    monkeypatch.setattr(ctranslate2_check, "compare_translator", wrong)
    with pytest.raises(ModelError, match=r"log-probabilities of CTranslate2 differ by up to .* nothing was written"):
        export(run, tmp_path / "out", ExportOptions())
    assert list(tmp_path.iterdir()) == []


def test_refusals(tmp_path, runs, monkeypatch):
    run = weft.load(runs.run_dir("transformer"), device="cpu")
    with pytest.raises(UsageError, match="unknown quantization 'int4'"):
        export(run, tmp_path / "out", ExportOptions("int4"))
    with pytest.raises(UsageError, match=r"CTranslate2 cannot compute this run: model.layer_type = \"lstm\""):
        export(weft.load(runs.run_dir("lstm")), tmp_path / "out", ExportOptions())
    ensemble = weft.ensemble([runs.run_dir("transformer")] * 2)
    with pytest.raises(UsageError, match="CTranslate2 has no ensembles, no shallow fusion and no neural caches"):
        export(ensemble, tmp_path / "out", ExportOptions())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is a file, not a directory"):
        export(run, tmp_path / "file", ExportOptions())
    with pytest.raises(UsageError, match="is not empty"):
        export(run, tmp_path, ExportOptions())
    with pytest.raises(ModelError, match="CTranslate2 cannot load it: "):
        ctranslate2_export.open_model(run, tmp_path, "float32", device="cpu", threads=1)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ResourceError, match=r"ctranslate2: is not installed; run pip install 'weft\[ctranslate2\]'"):
        export(run, tmp_path / "out", ExportOptions())


def test_command(tmp_path, runs, capsys):
    run_dir, out = str(runs.run_dir("transformer")), str(tmp_path / "out")
    code, message = expect_error(capsys, "export", run_dir, "--quantization", "int8", "-o", out)
    assert (code, message) == (2, "--quantization: format 'hf' has no quantization 'int8'; remove it")
    from weft.cli.main import main

    assert main(["export", run_dir, "--format", "ctranslate2", "--quantization", "int8", "-o", out]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    translator = ctranslate2.Translator(out)
    assert translator.translate_batch([["a", "b", "</s>"]])[0].hypotheses


def test_the_table_of_formats_lists_every_quantization():
    assert FORMATS["ctranslate2"].quantizations == tuple(TOLERANCES)
