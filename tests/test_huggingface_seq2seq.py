"""Import from and export to Hugging Face of encoder-decoders: identical outputs in both directions, and refusals."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from small_runs import train_here

import weft
from weft.cli.main import main
from weft.errors import ModelError, UsageError
from weft.interop.hf_checkpoint import HFConfig
from weft.interop.hf_export import export_model
from weft.interop.hf_seq2seq import feature_order
from weft.interop.hf_start_tokens import renumber_seq2seq
from weft.interop.huggingface import MODEL_TYPES, import_model
from weft.runs.load import load
from weft.tasks.seq2seq.objective import pad_rows
from weft.tensors import read_external
from weft.text.start_tokens import StartTokens

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from hf_seq2seq_models import KINDS, LINES, Pair, make_folder  # noqa: E402

NEAR, CPU = 1e-4, torch.device("cpu")
TARGET = "the river then a bird"


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    model = make_folder(request.param, directory / "theirs")
    run_dir = import_model(directory / "theirs", directory / "run").run_dir.path
    return Pair(request.param, model, directory / "theirs", run_dir)


def original_ids(folder: Path) -> list[int]:
    return [
        token_id for token_id in renumber_seq2seq(HFConfig(folder, MODEL_TYPES), folder).original_ids if token_id is not None
    ]


def sources(run: Any, lines: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    return pad_rows(run.predictor.members[0].sources(lines), CPU)


def targets(run: Any, texts: list[str]) -> torch.Tensor:
    """The tokens that the decoder reads; all texts have the same number of tokens."""
    tokenizer = run.vocabulary.target
    return torch.tensor([[*tokenizer.start_tokens.target, *tokenizer.encode(text).tolist()] for text in texts])


@torch.no_grad()
def our_logits(run: Any, lines: list[str], texts: list[str]) -> torch.Tensor:
    y, _ = run.model(targets(run, texts), run.model.encode(*sources(run, lines)))
    logits: torch.Tensor = run.model.head.head.logits(y)
    return logits


# ---- identical outputs


@torch.no_grad()
def test_encoder_states_and_logits_match_transformers(pair):
    """For a batch with padding, which both mask."""
    run, order = load(pair.run_dir, device="cpu"), torch.tensor(original_ids(pair.folder))
    tokens, token_mask = sources(run, LINES)
    theirs = pair.model(
        input_ids=order[tokens],
        attention_mask=token_mask.long(),
        decoder_input_ids=order[targets(run, [TARGET] * len(LINES))],
    )
    expected = theirs.encoder_last_hidden_state
    if run.config.model.encoder.position_encoding == "sinusoidal":
        expected = expected[..., feature_order(expected.size(-1))]
    actual = run.model.encoder(tokens, token_mask).values
    assert (actual - expected)[token_mask].abs().max() < NEAR
    logits = our_logits(run, LINES, [TARGET] * len(LINES))
    assert (logits - theirs.logits[..., order]).abs().max() < NEAR
    weights = run.model.state_dict()
    tables = {
        weights[f"{name}.weight"].data_ptr()
        for name in ("encoder.embedder.embedding", "decoder.embedder.embedding", "head.head")
    }
    assert len(tables) == {"bart-scaled": 3, "t5-gated": 2, "marian-unshared": 2}.get(pair.kind, 1)
    assert logits.std() > 0.1


def test_sources_and_start_tokens_are_those_of_transformers(pair):
    run, ids = load(pair.run_dir, device="cpu"), original_ids(pair.folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(pair.folder / "tokenizer.json"))
    for line, row in zip(LINES, run.predictor.members[0].sources(LINES), strict=True):
        assert [ids[token] for token in row] == tokenizer(line)["input_ids"]
    start = [tokenizer.decode([ids[token]]) for token in run.vocabulary.target.start_tokens.target]
    assert start == (["</s>", "<s>"] if pair.kind.startswith("bart") else ["<pad>"])
    assert [run.vocabulary.target.id_to_token(token_id) for token_id in range(3)] == ["<unk>", "<s>", "</s>"]


def test_greedy_outputs_match_token_for_token(pair):
    """weft never generates <unk> and <s>, nor rows of the embedding without a token."""
    run, ids = load(pair.run_dir, device="cpu"), original_ids(pair.folder)
    banned = [ids[0], ids[1], *(row for row in range(pair.model.config.vocab_size) if row not in ids)]
    start = list(run.vocabulary.target.start_tokens.target)
    forced = {"forced_bos_token_id": ids[start[1]]} if len(start) > 1 else {}
    outputs = run.predict(LINES, beam_size=1, max_new_tokens=12)
    for line, output in zip(LINES, outputs, strict=True):
        tokens, _ = sources(run, [line])
        with torch.no_grad():
            expected = pair.model.generate(
                torch.tensor(ids)[tokens],
                num_beams=1,
                do_sample=False,
                max_new_tokens=11 + len(start),
                decoder_start_token_id=ids[start[0]],
                bad_words_ids=[[token] for token in banned],
                **forced,
            )
        assert [ids[token] for token in [*start, *output.token_ids]] == expected[0].tolist()
    assert len({token for output in outputs for token in output.token_ids}) >= 3  # they do not repeat a single token


@torch.no_grad()
def test_scores_are_the_log_probabilities_of_the_text(pair):
    run, ids = load(pair.run_dir, device="cpu"), original_ids(pair.folder)
    score = run.score((LINES[0], TARGET))
    row, num_start = [*targets(run, [TARGET])[0].tolist(), 2], len(run.vocabulary.target.start_tokens.target)
    theirs = pair.model(
        input_ids=torch.tensor(ids)[sources(run, LINES[:1])[0]], decoder_input_ids=torch.tensor([[ids[t] for t in row[:-1]]])
    )
    log_probs = theirs.logits[0][:, ids].log_softmax(-1)  # without rows of the embedding that have no token
    expected = [float(log_probs[i, token]) for i, token in enumerate(row[1:])][num_start - 1 :]
    np.testing.assert_allclose(score.token_log_probs, expected, atol=1e-3)
    assert len(score.tokens) == len(row) - num_start and score.tokens[-1] == "</s>"


def test_export_restores_the_imported_model(pair, tmp_path, caplog):
    run: Any = load(pair.run_dir, device="cpu")
    with caplog.at_level(logging.WARNING, "transformers"):
        notes = [] if run.config.model.share_embeddings or pair.kind == "marian-unshared" else [SEPARATE]
        assert export_model(run, tmp_path / "back") == notes
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert type(model) is type(pair.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    batch = tokenizer(LINES, padding=True, return_tensors="pt")
    tokens, token_mask = sources(run, LINES)
    assert torch.equal(batch["attention_mask"].bool(), token_mask)
    assert torch.equal(batch["input_ids"][token_mask], tokens[token_mask])
    with torch.no_grad():
        texts = [TARGET] * len(LINES)
        theirs = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], decoder_input_ids=targets(run, texts)
        )
        assert (theirs.logits - our_logits(run, LINES, texts)).abs().max() < NEAR
        expected = model.generate(**tokenizer(LINES[1], return_tensors="pt"), max_new_tokens=12)[0].tolist()
    start = list(run.vocabulary.target.start_tokens.target)
    assert [*start, *run.predict(LINES[1], beam_size=1, max_new_tokens=13 - len(start)).token_ids] == expected
    again: Any = load(import_model(tmp_path / "back", tmp_path / "again").run_dir.path, device="cpu")
    assert again.vocabulary.target.start_tokens == run.vocabulary.target.start_tokens
    assert again.config.model == run.config.model
    assert (our_logits(again, LINES, texts) - our_logits(run, LINES, texts)).abs().max() < NEAR


SEPARATE = "source and target have their own embeddings, which BART has since transformers 5"


# ---- a run like any other


def write_pairs(path: Path) -> Path:
    rows = [f"{line}\t{' '.join(reversed(line.split()))}" for line in LINES * 4]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("kind", ["bart", "t5", "marian"])
def test_an_imported_run_predicts_and_is_fine_tuned_and_exported(tmp_path, capsys, kind):
    make_folder(kind, tmp_path / "theirs")
    run_dir, data = tmp_path / "run", write_pairs(tmp_path / "pairs.tsv")
    assert main(["import", str(tmp_path / "theirs"), "--output-dir", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"{run_dir}\n"
    assert main(["predict", str(run_dir), LINES[0], "--max-new-tokens", "5"]) == 0
    assert main(["info", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "seq2seq" in out and "train none, trained elsewhere" in out
    assert expect_error(capsys, "evaluate", str(run_dir), "--quiet") == (
        2,
        f"{run_dir}: an imported run has no data; set --data",
    )
    assert main(["evaluate", str(run_dir), "--data", str(data), "--quiet", "--beam-size", "1"]) == 0
    assert "chrF" in capsys.readouterr().out
    imported: Any = load(run_dir, device="cpu")
    values = json.loads(json.dumps(imported.config.to_dict()))
    values |= {"data": {"train": str(data), "valid": 0.2, "max_length": 40 if kind != "t5" else 512}}
    values["train"] = {"max_steps": 2, "init_from": str(run_dir), "device": "cpu", "batch_tokens": 256, "lr": 1e-4}
    train_here(values, tmp_path / "tuned")
    tuned: Any = load(tmp_path / "tuned", device="cpu")
    assert tuned.vocabulary.target.start_tokens == imported.vocabulary.target.start_tokens
    before, after = (our_logits(run, LINES, [TARGET] * len(LINES)) for run in (imported, tuned))
    assert 1e-3 < (before - after).abs().mean() < 1.0  # two steps from the imported weights
    assert main(["export", str(tmp_path / "tuned"), "--format", "hf", "--output-dir", str(tmp_path / "back")]) == 0
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    tokens, token_mask = sources(tuned, LINES)
    with torch.no_grad():
        theirs = model(
            input_ids=tokens, attention_mask=token_mask.long(), decoder_input_ids=targets(tuned, [TARGET] * len(LINES))
        )
    assert (theirs.logits - after).abs().max() < NEAR


def test_training_reads_the_start_tokens_of_the_tokenizer(tmp_path):
    """BART: <s> before a source, </s> <s> before a target; the loss does not count them."""
    from weft.data.corpus import corpus_from_lines
    from weft.tasks.seq2seq.batching import PairExamples
    from weft.tasks.seq2seq.objective import Seq2SeqObjective, pair_nll

    make_folder("bart", tmp_path / "theirs")
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    tokenizer = run.vocabulary.target
    corpus, other = (corpus_from_lines(tokenizer, lines) for lines in (["cat", "the bird"], ["sat", "tree"]))
    batch = PairExamples(corpus, other).batch(np.arange(2))
    cat, sat = tokenizer.encode("cat").tolist(), tokenizer.encode("sat").tolist()
    assert batch.source[0, : len(cat) + 2].tolist() == [1, *cat, 2]
    assert batch.tokens[0, : len(sat) + 3].tolist() == [2, 1, *sat, 2]
    assert batch.token_mask[0, : len(sat) + 3].tolist() == [True, False, *[True] * (len(sat) + 1)]
    with torch.inference_mode():
        nll, counts = pair_nll(run.model, corpus, other, CPU)
    scores = run.score([("cat", "sat"), ("the bird", "tree")])
    np.testing.assert_allclose(nll, [-score.log_prob for score in scores], rtol=1e-5)
    assert counts.tolist() == [len(score.tokens) for score in scores]
    objective = Seq2SeqObjective(valid=None, tokenizer=tokenizer, device=CPU)
    with torch.inference_mode():
        assert objective.greedy_outputs(run.model, corpus) == [
            output.text for output in run.predict(["cat", "the bird"], beam_size=1)
        ]


def test_the_positions_of_bart_include_the_start_tokens(tmp_path):
    """40 positions: <s>, 38 tokens, </s> of a source; </s>, <s>, 38 tokens of a target."""
    make_folder("bart", tmp_path / "theirs")
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    longest = "x" * 38
    assert len(run.vocabulary.source.encode(longest)) == 38
    assert run.score((longest, longest)).log_prob < 0
    assert len(run.predict(longest, beam_size=2, min_new_tokens=39).token_ids) == 39
    for line in ((longest + "x", "a"), ("a", longest + "x")):
        with pytest.raises(weft.errors.WeftError, match=r"41 .*tokens exceed the model's limit of 40"):
            run.score(line)
    assert len(run.predictor.members[0].sources([longest + "xx"])[0]) == 40  # truncated
    data = tmp_path / "long.tsv"
    values = json.loads(json.dumps(run.config.to_dict()))
    values["train"] = {"max_steps": 1, "device": "cpu", "init_from": str(tmp_path / "run")}
    for source, target, side in (("xx", "x", "source"), ("x", "xx", "target")):
        data.write_text("a\tb\n" + "x" * 37 + f"{source}\t" + "x" * 37 + f"{target}\n")
        values["data"] = {"train": str(data), "max_length": 40}
        with pytest.raises(weft.errors.DataError, match=rf"{side} has 41 tokens, more than data.max_length \(40\)"):
            train_here(values, tmp_path / side)
        values["data"]["truncate"] = True
        train_here(values, tmp_path / f"{side}-truncated")


@torch.no_grad()
def test_explanations_of_bart_are_about_its_tokens(tmp_path):
    from weft.explain.attention import attention
    from weft.explain.hooks import attention_weights, record_activations
    from weft.explain.options import ExplainConfig
    from weft.tasks.encoder_decoder.explain import encode_input

    make_folder("bart", tmp_path / "theirs")
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    model_input = encode_input(run, LINES[0], ExplainConfig(target=TARGET))
    positions = torch.arange(len(model_input.targets))
    actual = model_input.log_probs(positions)[positions, torch.tensor(model_input.targets)]
    np.testing.assert_allclose(actual, run.score((LINES[0], TARGET)).token_log_probs, atol=1e-5)
    output = run.predict(LINES[0], beam_size=1, max_new_tokens=4, return_alignments=True)
    assert output.alignment.weights.shape == (len(output.token_ids), len(run.predictor.members[0].sources(LINES[:1])[0]))
    layers = attention(run, LINES[0], ExplainConfig(target=TARGET, component="cross")).data["layers"]
    assert [np.array(layer["weights"]).shape[1] for layer in layers] == [len(model_input.targets)] * 3
    np.testing.assert_allclose(np.array(layers[0]["weights"]).sum(-1), 1.0, atol=1e-3)
    with record_activations(run.model, layers[0]["name"]) as calls:
        run.model(targets(run, [TARGET]), run.predictor.encode(LINES[:1]))
    np.testing.assert_allclose(layers[0]["weights"], attention_weights(calls[0])[0, :, 1:], atol=1e-3)  # without </s>


def test_special_tokens_in_a_text_are_not_special(tmp_path):
    make_folder("t5", tmp_path / "theirs")
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    for text in ("the </s> cat", "<s>", "x<unk>y"):
        tokens = run.vocabulary.source.encode(text).tolist()
        assert not {1, 2} & set(tokens), text


# ---- runs of weft


NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "pegasus": ("PegasusForConditionalGeneration", {"share_embeddings": True}),
    "pegasus-tied": (
        "PegasusForConditionalGeneration",
        {"share_embeddings": True, "tie_embeddings": True, "bias": False, "head_bias": False},
    ),
    "marian": ("MarianMTModel", {"norm_position": "post", "num_layers": 2}),
    "bart": (
        "BartForConditionalGeneration",
        {
            "norm_position": "post",
            "position_encoding": "learned",
            "embedding_norm": True,
            "share_embeddings": True,
            "tie_embeddings": True,
            "encoder": {"num_layers": 2, "num_heads": 2},
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "position_encoding": "relative-bias",
            "norm": "rmsnorm",
            "bias": False,
            "head_bias": False,
            "share_embeddings": True,
            "scale_embeddings": False,
            "tie_embeddings": True,
            "num_heads": 2,
            "head_dim": 5,
        },
    ),
}


def native_run(directory: Path, model: dict[str, Any], **train: Any) -> Any:
    values = {
        "task": "seq2seq",
        "recommend": False,
        "data": {"train": str(write_pairs(directory / "pairs.tsv")), "max_length": 60},
        "tokenizer": {"type": "bpe", "vocab_size": 280},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1, "num_heads": 4, **model},
        "train": {"max_steps": 2, "lr": 0.05, "batch_tokens": 200, "device": "cpu", "ema_decay": 0.0, **train},
    }
    train_here(values, directory / "run")
    return load(directory / "run", device="cpu")


@pytest.mark.parametrize("name", NATIVE)
def test_runs_of_weft_give_the_same_outputs_in_transformers(tmp_path, name):
    class_name, options = NATIVE[name]
    run = native_run(tmp_path, options)
    assert export_model(run, tmp_path / "there") == []
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "there").eval()
    assert type(model).__name__ == class_name
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    for line in LINES[:2]:
        tokens, _ = sources(run, [line])
        batch = tokenizer(line, return_tensors="pt")
        assert batch["input_ids"].tolist() == tokens.tolist()
        with torch.no_grad():
            theirs = model(input_ids=tokens, decoder_input_ids=targets(run, [TARGET]))
            expected = model.generate(**batch, max_new_tokens=8)[0].tolist()
        assert (theirs.logits - our_logits(run, [line], [TARGET])).abs().max() < NEAR
        assert [1, *run.predict(line, beam_size=1, max_new_tokens=8).token_ids] == expected
    again: Any = load(import_model(tmp_path / "there", tmp_path / "again").run_dir.path, device="cpu")
    assert (our_logits(again, LINES[:1], [TARGET]) - our_logits(run, LINES[:1], [TARGET])).abs().max() < NEAR


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"position_encoding": "rotary", "qk_norm": True, "share_embeddings": True},
            "Pegasus, the nearest architecture, has no equivalent of model.qk_norm = true, model.position_encoding = 'rotary'; "
            "train with model.qk_norm = false, model.position_encoding = 'sinusoidal'",
        ),
        (
            {"hidden_size": 15, "num_heads": 3, "norm_eps": 1e-3},
            "Pegasus, the nearest architecture, has no equivalent of model.norm_eps = 0.001, model.hidden_size = 15; "
            "train with model.norm_eps = 1e-05, an even model.hidden_size",
        ),
        (
            {"norm_position": "post", "encoder": {"ffn_dim": 8, "hidden_size": 8}, "decoder": {"num_cross_heads": 2}},
            "Marian, the nearest architecture, has no equivalent of model.encoder.hidden_size = 8 with model.decoder.hidden_size = 16, "
            "model.decoder.num_cross_heads = 2; train with equal values of model.encoder.hidden_size and "
            "model.decoder.hidden_size, num_cross_heads equal to num_heads",
        ),
        (
            {"position_encoding": "relative-bias", "norm": "rmsnorm", "bias": False, "encoder": {"num_heads": 2}}
            | {"share_embeddings": True, "norm_eps": 1e-6, "ffn_dim": 8, "decoder": {"activation": "squared-relu"}},
            "T5, the nearest architecture, has no equivalent of model.decoder.activation = 'squared-relu', model.head_bias = true, "
            "model.encoder.activation = 'relu' with model.decoder.activation = 'squared-relu', "
            "different heads in encoder and decoder; train with model.decoder.activation = 'gelu', model.head_bias = false, "
            "equal values of model.encoder.activation and model.decoder.activation, equal model.num_heads and model.head_dim",
        ),
    ],
)
def test_a_run_without_an_equal_architecture_is_refused(tmp_path, model, message):
    """All options of the nearest architecture that do not fit are named."""
    with pytest.raises(UsageError) as caught:
        export_model(native_run(tmp_path, model, max_steps=1), tmp_path / "out")
    assert str(caught.value) == f"export: {message}"
    assert not (tmp_path / "out").exists()


def test_recurrent_runs_and_two_tokenizers_are_refused(tmp_path):
    from seq2seq_runs import make_pairs, seq2seq_run_file

    values = seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv", 40), "lstm", "train.max_steps=1", "train.num_validations=1")
    train_here(values, tmp_path / "run")
    with pytest.raises(UsageError) as caught:
        export_model(load(tmp_path / "run", device="cpu"), tmp_path / "out")
    for option in ("model.layer_type = 'lstm'", "model.attention = 'multiplicative'", "model.ffn_dim = 0", "two tokenizers"):
        assert option in str(caught.value)


# ---- refusals


@pytest.fixture(params=["bart", "t5", "marian"])
def theirs(request, tmp_path):
    make_folder(request.param, tmp_path / "theirs")
    return tmp_path / "theirs"


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def error_message(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(folder, folder.parent / "out")
    assert not (folder.parent / "out" / "resolved.toml").exists()
    return str(caught.value)


def test_sizes_that_the_weights_do_not_have_are_rejected(theirs):
    """Before memory of that size is allocated."""
    config = json.loads((theirs / "config.json").read_text())
    is_t5 = config["model_type"] == "t5"
    vocab_size = config["vocab_size"]
    large = {name: 10**12 for name in ("vocab_size", "decoder_vocab_size") if name in config}
    (theirs / "config.json").write_text(json.dumps({**config, **large}))
    shared = "shared.weight"
    assert error_message(theirs) == f"{theirs}: {shared!r} is {vocab_size}x24, expected {10**12}x24 from config.json"
    (theirs / "config.json").write_text(json.dumps({**config, "d_model": 48_000}))
    assert error_message(theirs) == f"{theirs}: {shared!r} is {vocab_size}x24, expected {vocab_size}x48000 from config.json"
    option = "d_ff" if is_t5 else "decoder_ffn_dim"
    (theirs / "config.json").write_text(json.dumps({**config, option: 2**20}))
    assert "expected 1048576x24 from config.json" in error_message(theirs)
    option = "num_layers" if is_t5 else "encoder_layers"
    (theirs / "config.json").write_text(json.dumps({**config, option: 10**9}))
    assert "not a valid model: model.encoder.num_layers" in error_message(theirs)
    (theirs / "config.json").write_text(json.dumps({**config, option: 4}))
    assert " is missing" in error_message(theirs)
    (theirs / "config.json").write_text(json.dumps({**config, option: "many"}))
    assert error_message(theirs) == f"{theirs / 'config.json'}: {option}: expected an integer greater than 0, got 'many'"
    for size in (24.0, -24, True):
        (theirs / "config.json").write_text(json.dumps({**config, "d_model": size}))
        message = f"d_model: expected an integer greater than 0, got {size!r}"
        assert error_message(theirs) == f"{theirs / 'config.json'}: {message}"


def test_a_pickle_is_not_read(theirs):
    (theirs / "model.safetensors").unlink()
    (theirs / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    assert error_message(theirs) == (
        f"{theirs}: pytorch_model.bin is a pickle, which can run code and is not loaded; convert it to safetensors"
    )


UNSUPPORTED = [
    ("t5", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16 is not supported, only 32"),
    (
        "t5",
        {"feed_forward_proj": "gated-mish"},
        "feed_forward_proj: unknown activation 'gated-mish'; did you mean 'gated-silu'?",
    ),
    ("t5", {"eos_token_id": 7}, "eos_token_id is not the ID of '</s>' in the tokenizer, 1"),
    ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder = False is not supported, only True"),
    ("bart", {"normalize_before": True}, "normalize_before = True is not supported, only False"),
    ("marian", {"decoder_vocab_size": 9}, "decoder_vocab_size differs from vocab_size: two vocabularies are not supported"),
    ("marian", {"max_position_embeddings": "x"}, "max_position_embeddings: expected an integer greater than 0, got 'x'"),
]


@pytest.mark.parametrize(("kind", "values", "message"), UNSUPPORTED)
def test_unsupported_configs_are_rejected(tmp_path, kind, values, message):
    make_folder(kind, tmp_path / "theirs")
    (tmp_path / "theirs" / "generation_config.json").unlink()
    edit(tmp_path / "theirs" / "config.json", **values)
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs' / 'config.json'}: {message}"


def test_start_tokens_that_do_not_exist_are_rejected(tmp_path):
    make_folder("bart", tmp_path / "theirs")
    edit(tmp_path / "theirs" / "generation_config.json", decoder_start_token_id=5000)
    message = "texts start with token ID 5000, which is not in the tokenizer"
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs' / 'config.json'}: {message}"
    edit(tmp_path / "theirs" / "generation_config.json", decoder_start_token_id="2")
    message = "decoder_start_token_id: expected a token ID, got '2'"
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs' / 'config.json'}: {message}"
    (tmp_path / "theirs" / "generation_config.json").unlink()
    run_dir = import_model(tmp_path / "theirs", tmp_path / "run").run_dir
    text = (run_dir.path / "tokenizer.json").read_text()
    for ids in ("[2, 999]", "[]", f"{[1] * 9}"):
        corrupted = text.replace('"ids": [2, 1]', f'"ids": {ids}').replace(
            '"tokens": ["</s>", "<s>"]', f'"tokens": {["x"] * ids.count(",") + ["x"] if ids != "[]" else []}'.replace("'", '"')
        )
        assert corrupted != text
        (tmp_path / "tokenizer.json").write_text(corrupted)
        with pytest.raises(ModelError, match="corrupted: target_start must be from 1 to 8 token IDs"):
            weft.text.tokenizers.Tokenizer.load(tmp_path / "tokenizer.json")


def test_texts_without_an_end_or_a_start_are_refused(tmp_path):
    make_folder("t5", tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer.json"
    parts = json.loads(path.read_text())
    parts["post_processor"]["single"] = parts["post_processor"]["single"][:1]
    path.write_text(json.dumps(parts))
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs'}: its tokenizer does not end texts with '</s>'"
    parts["post_processor"] = None
    path.write_text(json.dumps(parts))
    import_model(tmp_path / "theirs", tmp_path / "run")
    edit(tmp_path / "theirs" / "generation_config.json", decoder_start_token_id=1)
    assert error_message(tmp_path / "theirs") == (
        f"{tmp_path / 'theirs'}: its tokenizer has no token '<s>', and its decoder starts with '</s>'"
    )
    run: Any = load(tmp_path / "run", device="cpu")
    run.vocabulary.target.start_tokens = StartTokens((), (2, 1, 1))
    with pytest.raises(UsageError) as caught:
        export_model(run, tmp_path / "back")
    assert str(caught.value) == "export: its decoder starts with 3 tokens; Hugging Face models have at most 2"


def test_sentencepiece_files_are_refused_with_a_fix(tmp_path):
    make_folder("marian", tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / "theirs" / name).write_text("{}")
    assert error_message(tmp_path / "theirs") == (
        f"{tmp_path / 'theirs'}: source.spm is a SentencePiece file, which is not read, and there is no tokenizer.json; "
        "write one with the pieces of source.spm and the IDs of vocab.json, as a Unigram model of the package tokenizers"
    )
    (tmp_path / "theirs" / "source.spm").rename(tmp_path / "theirs" / "spiece.model")
    assert error_message(tmp_path / "theirs") == (
        f"{tmp_path / 'theirs'}: spiece.model is a SentencePiece file, which is not read, and there is no tokenizer.json; "
        "write one with AutoTokenizer.from_pretrained and save_pretrained of transformers"
    )


def test_positions_that_are_not_sines_are_refused(tmp_path):
    from safetensors.torch import save_file

    make_folder("marian", tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_external(path)[0].items()}
    name = "encoder.embed_positions.weight"
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "theirs")
    tensors[f"model.{name}"] = model.model.encoder.embed_positions.weight.detach().clone()
    save_file(tensors, path)
    import_model(tmp_path / "theirs", tmp_path / "run")
    tensors[f"model.{name}"][3] += 0.1
    save_file(tensors, path)
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs'}: {name!r} are not sinusoidal positions"
    save_file({"model.shared.weight": torch.zeros(27, 27)}, path)
    edit(tmp_path / "theirs" / "config.json", d_model=27, vocab_size=27, decoder_vocab_size=27)
    message = "d_model = 27 is not supported, only even numbers"
    assert error_message(tmp_path / "theirs") == f"{tmp_path / 'theirs' / 'config.json'}: {message}"


def test_bart_with_vocabulary_and_merges(tmp_path):
    """Without tokenizer.json, <s> is added to sources as well."""
    make_folder("bart", tmp_path / "theirs")
    before: Any = load(import_model(tmp_path / "theirs", tmp_path / "before").run_dir.path, device="cpu")
    full = json.loads((tmp_path / "theirs" / "tokenizer.json").read_text())["model"]
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(full["vocab"]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in full["merges"]]
    (tmp_path / "theirs" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    after: Any = load(import_model(tmp_path / "theirs", tmp_path / "after").run_dir.path, device="cpu")
    assert after.vocabulary.source.start_tokens == before.vocabulary.source.start_tokens
    logits = [our_logits(run, LINES, [TARGET] * len(LINES)) for run in (before, after)]
    assert torch.equal(*logits) and math.isfinite(float(logits[0].sum()))
