"""The task denoising: texts, batches, runs, predictions, resuming, and fine-tuning on pairs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from seq2seq_runs import make_pairs
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here

import weft
from weft.cli.main import main
from weft.config import override, parse_config
from weft.data.corpus import corpus_from_lines
from weft.data.noise import fill_sentinels, join_texts
from weft.errors import ConfigError, DataError, TrainingInterrupted, UsageError
from weft.interop.hf_export import export_model
from weft.runs.check import check
from weft.runs.job import with_tokenizer_of_init
from weft.tasks.denoising.batching import NoisyBatches, NoisyTexts
from weft.tasks.denoising.corruption import Corrupter
from weft.tasks.denoising.data import DenoisingDataConfig
from weft.text.noise_tokenizer import NoiseTokenizer
from weft.text.start_tokens import StartTokens, post_processor
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"arch": "transformer", "hidden_size": 16, "num_heads": 2, "num_layers": 1, "dropout": 0.1},
    "lstm": {"arch": "lstm-input-feeding", "hidden_size": 16, "dropout": 0.1},
}
SENTENCE = "the old cat sees a dog"


def denoising_run_file(text: Path, *overrides: str, model: str = "transformer") -> dict[str, Any]:
    values: dict[str, Any] = {
        "task": "denoising",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(text), "valid": 0.1, "test": 0.1, "max_length": 32},
        "tokenizer": {"type": "word"},
        "model": MODELS[model],
        "train": {"max_steps": 12, "batch_tokens": 200, "num_validations": 2, "lr": 0.01, "device": "cpu"},
    }
    return override(values, overrides)


class Runs:
    """Run directories by name, each trained on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.text = directory, make_text(directory / "text.txt")

    def run_dir(self, name: str) -> Path:
        out = self.directory / name
        if not out.exists():
            kind, model = name.split("-")
            noise = {"bart": "infilling", "t5": "span-corruption"}[kind]
            train_here(denoising_run_file(self.text, f"data.noise={noise}", "train.num_samples=2", model=model), out)
        return out

    def load(self, name: str) -> Any:
        return weft.load(self.run_dir(name), device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("denoising"))


def tokenizer(kind: str, *texts: str) -> Tokenizer:
    vocab_size = {"bpe": 300, "wordpiece": 60}.get(kind, 8000)
    return train_tokenizer(TokenizerConfig(type=kind, vocab_size=vocab_size), iter(texts))


def data_config(**options: Any) -> DenoisingDataConfig:
    return parse_config(DenoisingDataConfig, {"train": "x.txt", **options}, prefix="data").with_defaults()


# ---- noise tokens


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "word", "whitespace", "wordpiece"])
def test_noise_tokens_are_read_and_written(kind):
    plain = tokenizer(kind, SENTENCE, "the cat. a dog.")
    for noisy, text, expected in (
        (NoiseTokenizer(plain), "the <mask> sees a [MASK]", [plain.vocab_size] * 2),
        (NoiseTokenizer(plain, 5), "the <mask> sees <mask>", [plain.vocab_size, plain.vocab_size + 1]),
        (NoiseTokenizer(plain, 5), "<extra_id_4> sees <extra_id_0>", [plain.vocab_size + 4, plain.vocab_size]),
    ):
        ids = noisy.encode(text).tolist()
        assert [token for token in ids if token >= plain.vocab_size] == expected
        assert noisy.encode(noisy.decode(ids)).tolist() == ids  # names are read again
        assert len(noisy.offsets(text)) == len(ids)
        places = [span for token, span in zip(ids, noisy.offsets(text), strict=True) if token >= plain.vocab_size]
        assert all(noisy.pattern.fullmatch(text[low:high]) for low, high in places)
        batch = noisy.encode_batch(["", text, SENTENCE])
        assert [part.tolist() for part in batch] == [[], ids, plain.encode(SENTENCE).tolist()]


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "word", "whitespace"])
def test_corrupted_texts_are_read_as_they_are_shown(kind):
    plain = tokenizer(kind, "the old cat sees a dog then a bird hears the river")
    for noise, sentinels in (("infilling", 0), ("span-corruption", 30)):
        noisy = NoiseTokenizer(plain, sentinels)
        config = data_config(noise=noise, mean_span_length=1.5, **({"num_sentinels": sentinels} if sentinels else {}))
        texts = join_texts([plain.encode("then the old bird sees a dog")] * 60)
        for source in Corrupter(config, plain).corrupt(texts, np.arange(60), seed=1, epoch=0).source.split():
            assert noisy.encode(noisy.decode(source)).tolist() == source.tolist() or (
                kind == "bpe" and b" " in _pieces(plain, source)
            )


def _pieces(plain: Tokenizer, ids: np.ndarray) -> set[bytes]:
    """The last byte of each token before a noise token: a space there is read as part of the mask."""
    before = [token for token, following in pairwise(ids.tolist()) if following >= plain.vocab_size > token]
    return {plain.decode([token]).encode()[-1:] for token in before}


def test_a_sentinel_that_does_not_exist_is_unknown():
    noisy = NoiseTokenizer(tokenizer("word", SENTENCE), 3)
    assert noisy.encode("the <extra_id_3> <extra_id_999999999>").tolist()[1:] == [noisy.unk_id] * 2
    assert noisy.token_text(noisy.first_noise_id + 2) == noisy.id_to_token(noisy.first_noise_id + 2) == "<extra_id_2>"


def test_noise_tokens_in_training_text_are_ordinary_text(tmp_path):
    path = tmp_path / "masks.txt"
    path.write_text("a <mask> b\n<extra_id_0> c\n[MASK] </s>\n" * 20)
    run = weft.load(train_here(denoising_run_file(path, "train.max_steps=2", "tokenizer.type=char"), tmp_path / "run").path)
    ids = run.vocabulary.encode("a <mask> b")
    assert len(ids) == len("a <mask> b") and ids.max() < run.vocabulary.vocab_size
    assert run.vocabulary.decode(ids) == "a <mask> b"
    assert run.predictor.tokenizer.source.encode("a <mask> b").max() == run.vocabulary.vocab_size


# ---- words and sentences


def units(kind: str, text: str, **options: Any) -> tuple[list[str], list[str]]:
    """The units and the sentences of a text, as texts."""
    plain = tokenizer(kind, text)
    config = data_config(span_unit="word", permute_sentences=True, **options)
    ids = plain.encode(text)
    found = Corrupter(config, plain)._units(join_texts([ids]))
    parts = []
    for starts in found:
        edges = [*np.flatnonzero(starts).tolist(), len(ids)]
        parts.append([plain.decode(ids[low:high]) for low, high in pairwise(edges)])
    return parts[0], parts[1]


def test_words_and_sentences_of_each_tokenizer():
    text = "The cat sat. Was it 3.5 kg?  Yes!"
    words, sentences = units("char", text)
    assert words == ["The", " cat", " sat.", " Was", " it", " 3.5", " kg?", "  Yes!"]
    assert sentences == ["The cat sat.", " Was it 3.5 kg?", "  Yes!"]
    assert units("bpe", text)[1] == units("byte", text)[1] == sentences
    assert units("whitespace", text) == (text.split(), ["The cat sat.", "Was it 3.5 kg?", "Yes!"])
    assert units("word", text)[1][0] == "The cat sat ."
    assert "".join(units("bpe", text)[0]) == text


def test_word_units_need_a_tokenizer_that_marks_words(tmp_path):
    plain = tokenizer("char", SENTENCE)
    other = json.loads(plain.data)
    other["normalizer"] = {"type": "NFC"}
    foreign = Tokenizer(json.dumps(other).encode(), "file")
    with pytest.raises(ConfigError) as caught:
        Corrupter(data_config(span_unit="word"), foreign)
    assert str(caught.value) == (
        "data.span_unit: 'word' is not possible with tokenizer type 'file', which does not mark word starts; "
        "use tokenizer.type = 'bpe', 'unigram', 'wordpiece', 'word' or 'char', or span_unit = 'token'"
    )


# ---- batches


def noisy_texts(count: int = 40, **options: Any) -> NoisyTexts:
    plain = tokenizer("char", "abcdefgh")
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 12))) for _ in range(count)]
    return NoisyTexts(corpus_from_lines(plain, lines), Corrupter(data_config(**options), plain))


def test_a_batch_is_a_function_of_seed_epoch_and_index():
    data = noisy_texts()
    first, again = (NoisyBatches(data, batch_tokens=60, seed=5) for _ in range(2))
    for epoch, index in ((3, 2), (0, 0), (3, 2)):
        for one, other in zip(first.batch(epoch, index), again.batch(epoch, index), strict=True):
            assert torch.equal(one, other)
    members = first.buckets.members(0, 0)
    epochs = {tuple(data.corrupted(members, seed=5, epoch=epoch).source.tokens.tolist()) for epoch in range(5)}
    assert len(epochs) == 5


def test_a_batch_has_sources_and_targets_with_special_tokens():
    data = noisy_texts(noise="span-corruption", num_sentinels=9)
    batch, first = data.batch(np.arange(40)), data.corrupter.noise.first_id
    texts = data.texts(np.arange(40)).split()
    for row, text in enumerate(texts):
        source = batch.source[row][batch.source_mask[row]].tolist()
        tokens = batch.tokens[row][batch.token_mask[row]].tolist()
        assert source[-1] == tokens[-1] == Tokenizer.eos_id and tokens[0] == Tokenizer.bos_id
        assert fill_sentinels(source[:-1], tokens[1:-1], first) == text.tolist()
    assert data.loss_count(np.arange(40)) == int(batch.token_mask[:, 1:].sum())
    assert data.tokens(np.arange(40)) == int(batch.token_mask[:, 1:].sum() + batch.source_mask.sum())


@pytest.mark.parametrize(
    ("options", "signature"),
    [
        ({"noise": "none", "deletion_prob": 0.2}, "none/deletion_prob:0.2"),
        ({"noise": "none", "rotation_prob": 1.0}, "none/rotation_prob:1"),
        ({"permute_sentences": True, "deletion_prob": 0.1}, "infilling/0.3/3/deletion_prob:0.1/permute_sentences:1"),
        ({"span_unit": "word", "noise_density": 0.5}, "infilling/0.5/3/word"),
        ({"noise": "span-corruption", "mean_span_length": 2.0}, "span-corruption/0.15/2"),
    ],
)
def test_every_kind_of_noise_reaches_the_batches(options, signature):
    data = noisy_texts(**options)
    assert data_config(**options).describe_noise() == signature
    batch, members = data.batch(np.arange(40)), np.arange(40)
    texts, corrupted = data.texts(members), data.corrupted(members)
    same = [np.array_equal(text, source) for text, source in zip(texts.split(), corrupted.source.split(), strict=True)]
    assert sum(same) < 30 and batch.source.shape[0] == batch.tokens.shape[0] == 40


# ---- texts


def read(path: Path, **options: Any) -> list[str]:
    return list(data_config(train=str(path), **options).sources(Path())["train"].texts("text"))


def test_texts_are_lines_or_cells(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n\n  \nthree\n")
    (tmp_path / "b.txt").write_text("four\n")
    table = tmp_path / "t.tsv"
    table.write_text("source\ttarget\nabc\tA B C\nd\tD\n")
    assert read(tmp_path / "a.txt") == ["one two", "three"] and read(tmp_path / "*.txt") == ["one two", "three", "four"]
    assert read(table, text_column="target") == ["A B C", "D"]
    assert read(table, text_column=["source", "target"]) == ["abc", "A B C", "d", "D"]
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt: no text"):
        read(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"noise": "none"},
            "data.noise: 'none' leaves the text as it is; set deletion_prob, permute_sentences or rotation_prob",
        ),
        (
            {"noise": "span-corruption", "permute_sentences": True},
            "data.permute_sentences: not possible with noise 'span-corruption', whose target has only the spans; remove it",
        ),
        ({"num_sentinels": 5}, "data.num_sentinels: not used with noise 'infilling'; remove it"),
        (
            {"noise": "none", "deletion_prob": 0.1, "noise_density": 0.2},
            "data.noise_density: not used with noise 'none'; remove it",
        ),
        ({"noise": "infiling"}, "data.noise: unknown value 'infiling'; did you mean 'infilling'?"),
        ({"text_column": []}, "data.text_column: expected a column name, got []"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        data_config(**options)
    assert str(caught.value) == message


def test_defaults_follow_from_the_noise():
    bart, t5 = data_config(), data_config(noise="span-corruption")
    assert (bart.noise_density, bart.mean_span_length, bart.num_sentinels, bart.num_noise_tokens) == (0.3, 3.0, None, 1)
    assert (t5.noise_density, t5.mean_span_length, t5.num_sentinels, t5.num_noise_tokens) == (0.15, 3.0, 100, 100)


def test_long_texts_are_refused_or_truncated(tmp_path, runs):
    path = tmp_path / "long.txt"
    path.write_text(f"{SENTENCE}\n{'the cat ' * 20}\n" * 10)
    with pytest.raises(DataError) as caught:
        train_here(denoising_run_file(path), tmp_path / "refused")
    assert str(caught.value) == (
        f"{path}:2: text has 41 tokens, more than data.max_length (32) (and in 7 more); increase it or set data.truncate = true"
    )
    values = denoising_run_file(path, "data.truncate=true", "train.max_steps=2", "data.noise_density=0.9")
    run = weft.load(train_here(values, tmp_path / "truncated").path, device="cpu")
    assert run.evaluate()["loss"].value > 0
    loaded = runs.load("bart-transformer")
    with pytest.raises(DataError, match="41 tokens exceed the model's limit of 32; shorten it"):
        loaded.predict("the cat " * 20, add_noise=True)
    assert loaded.predict("the cat " * 20, add_noise=True, truncate=True, max_new_tokens=3).source.count("the") <= 16


# ---- runs


@pytest.mark.parametrize("name", ["bart-transformer", "t5-transformer", "bart-lstm"])
def test_a_text_with_masks_is_restored(runs, name):
    run = runs.load(name)
    for text in ("the <mask> sees a dog", "<mask>", "the", "", SENTENCE):
        output = run.predict(text)
        assert "<mask>" not in output.text and "<extra_id" not in output.text
    assert run.predict("").text == ""
    assert run.predict("", add_noise=True, max_new_tokens=2).source in ("", "<extra_id_0>")
    assert [output.text for output in run.predict(["the <mask> cat", "a dog"])] == [
        run.predict("the <mask> cat").text,
        run.predict("a dog").text,
    ]


def test_sentinels_are_filled_in(runs):
    run = runs.load("t5-transformer")
    best = run.predict("the <mask> sees a <mask>", beam_size=1)
    kept = [word for word in best.text.split() if word in ("sees", "a")]
    assert best.text.startswith("the") and kept[:1] == ["sees"]
    assert run.predict("the <extra_id_0> sees a <extra_id_1>", beam_size=1).text == best.text


@pytest.mark.parametrize("name", ["bart-transformer", "t5-transformer"])
def test_noise_is_added_on_request(runs, name, capsys):
    run = runs.load(name)
    outputs = run.predict([SENTENCE, "the cat"], add_noise=True, seed=1)
    numbered = run.predict(["the cat"], add_noise=True, seed=1, numbers=[2])
    assert numbered[0][:2] == outputs[1][:2] and numbered[0].source == outputs[1].source  # noise does not depend on the batch
    source, target = (run.predictor.tokenizer.source.encode(text).tolist() for text in (outputs[0].source, outputs[0].target))
    restored = fill_sentinels(source, target, run.vocabulary.vocab_size) if name.startswith("t5") else target
    assert run.vocabulary.decode(restored) == SENTENCE and outputs[0].source != SENTENCE
    assert len({run.predict(SENTENCE, add_noise=True, seed=seed, max_new_tokens=1).source for seed in range(9)}) > 3
    with pytest.raises(UsageError, match="add_noise: cannot be combined with `target_prefix`"):
        run.predict(SENTENCE, add_noise=True, target_prefix="the")
    capsys.readouterr()
    assert main(["predict", str(runs.run_dir(name)), SENTENCE, "--add-noise", "--seed", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["text"], shown["corrupted"], shown["target"]) == (SENTENCE, outputs[0].source, outputs[0].target)
    assert shown["predictions"][0]["text"] == outputs[0].text
    assert main(["predict", str(runs.run_dir(name)), SENTENCE, "--add-noise", "--seed", "1"]) == 0
    assert capsys.readouterr().out == (
        f"corrupted\t{outputs[0].source}\ntarget\t{outputs[0].target}\nrestored\t{outputs[0].text}\n"
    )


def test_other_tasks_have_no_noise(tmp_path, capsys):
    values = {"task": "seq2seq", "recommend": False, "data": {"train": str(make_pairs(tmp_path / "pairs.tsv"))}}
    train_here({**values, "train": {"max_steps": 1}, "model": {"arch": "lstm", "hidden_size": 8}}, tmp_path / "pairs")
    assert main(["predict", str(tmp_path / "pairs"), "abc", "--add-noise"]) == 2
    assert "--add-noise: not available for task 'seq2seq'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bart-transformer", "t5-transformer", "bart-lstm"])
def test_evaluation_is_that_of_the_definition(runs, name):
    run = runs.load(name)
    evaluation, again = run.evaluate(), run.evaluate()
    assert list(evaluation.scores) == [
        *("loss", "bits_per_token", "perplexity", "token_accuracy"),
        *("exact_match", "token_error_rate", "character_error_rate", "chrf"),
    ]
    assert evaluation.scores == again.scores  # the noise is the same
    details = evaluation.details()
    corrupted, references, outputs = details.inputs, details.references, evaluation.predictions
    assert len(corrupted) == len(references) == len(outputs) == 12
    # the same targets, scored one by one
    noisy = run.predictor.noisy_texts(None)
    texts = noisy.corrupted(np.arange(12))
    decode = run.predictor.tokenizer.target.decode
    scores = run.score([(decode(s), decode(t)) for s, t in zip(texts.source.split(), texts.target.split(), strict=True)])
    num_tokens = sum(len(score.tokens) for score in scores)
    assert evaluation["loss"].value == pytest.approx(-sum(score.log_prob for score in scores) / num_tokens, rel=1e-4)
    assert [decode(source) for source in texts.source.split()] == corrupted
    assert 0 <= evaluation["token_accuracy"].value <= 100 and "noise:" in evaluation["loss"].signature
    wrong = [output != reference for output, reference in zip(outputs, references, strict=True)]
    assert evaluation["exact_match"].value == pytest.approx(100 * (1 - np.mean(wrong)))


def test_samples_show_the_corrupted_text_the_guess_and_the_reference(runs):
    for name in ("bart-transformer", "t5-transformer"):
        rows = [json.loads(line) for line in (runs.run_dir(name) / "samples.jsonl").read_text().splitlines()]
        assert {row["line"] for row in rows} == {1, 2} and all({"source", "text", "reference"} <= row.keys() for row in rows)
        assert any("<mask>" in row["source"] or "<extra_id_" in row["source"] for row in rows)


def test_ensembles_have_one_kind_of_noise(runs):
    folder = runs.run_dir("bart-transformer")
    both = weft.ensemble([folder, folder], device="cpu")
    assert both.predict("the <mask> cat").text == runs.load("bart-transformer").predict("the <mask> cat").text
    scores = both.evaluate()
    assert "loss" not in scores.scores and scores["chrf"].value == pytest.approx(
        runs.load("bart-transformer").evaluate()["chrf"].value
    )
    with pytest.raises(UsageError, match="different tokenizers"):
        weft.ensemble([folder, runs.run_dir("t5-transformer")], device="cpu").predict("a")


@pytest.mark.parametrize("noise", ["infilling", "span-corruption"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, runs, noise):
    values = denoising_run_file(runs.text, f"data.noise={noise}", "train.batch_tokens=400")
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "parts", SilentCallback(stop_at=5))
    train_here(values, tmp_path / "parts")
    assert run_hashes(tmp_path / "parts") == run_hashes(tmp_path / "whole")


def test_the_commands_work(runs, capsys, tmp_path):
    folder = str(runs.run_dir("bart-transformer"))
    assert main(["info", folder]) == 0 and "denoising" in capsys.readouterr().out
    assert main(["explain", folder, "the <mask> cat"]) == 0 and "<mask>" in capsys.readouterr().out
    assert main(["evaluate", folder, "--data", str(runs.text), "--beam-size", "1"]) == 0
    assert "token accuracy" in capsys.readouterr().out
    assert main(["compare", folder, str(runs.run_dir("bart-lstm")), "--output-dir", str(tmp_path / "report")]) == 0
    assert "chrF" in capsys.readouterr().out


def test_check_shows_the_noise_of_the_first_epoch(runs, capsys, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(denoising_run_file(runs.text, "data.noise=span-corruption")))
    assert main(["check", str(path), "--show-examples", "3", "--json"]) == 0
    examples = json.loads(capsys.readouterr().out)["examples"]
    noisy = NoiseTokenizer(runs.load("t5-transformer").vocabulary, 100)
    lines = runs.text.read_text().split("\n")[:3]
    for example, line in zip(examples, lines, strict=True):
        source, target = (noisy.encode(example[name]).tolist() for name in ("corrupted", "target"))
        assert noisy.decode(fill_sentinels(source, target, noisy.first_noise_id)) == line
    assert main(["check", str(path), "--show-examples", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"{examples[0]['corrupted']} " in shown and examples[1]["target"] in shown
    path.write_text(tomli_w.dumps(run_file(runs.text)))
    assert main(["check", str(path), "--show-examples", "2"]) == 2
    assert capsys.readouterr().err == (
        "weft: error: --show-examples: not available for task 'lm', which reads examples as they are\n"
    )


def test_texts_in_memory_are_trained_on(tmp_path):
    values = denoising_run_file(tmp_path / "unused.txt", "train.max_steps=2")
    texts = ["the old cat", "a dog sees a cat"] * 10
    run = weft.train({**values, "data": {}}, data={"train": texts, "valid": 0.2}, output_dir=tmp_path / "run")
    assert run.predict("the <mask> cat", max_new_tokens=2).token_ids


# ---- fine-tuning


@pytest.mark.parametrize("name", ["bart-transformer", "t5-transformer", "bart-lstm"])
def test_pairs_are_learned_from_the_weights_of_denoising(tmp_path, runs, name):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "the cat\ta dog\nold bird\tthe tree\n" * 10)
    values = {
        "task": "seq2seq",
        "recommend": False,
        "data": {"train": str(pairs)},
        "train": {"max_steps": 1, "lr": 1e-12, "ema_decay": 0.0, "weight_decay": 0.0, "device": "cpu"},
    }
    source = runs.run_dir(name)
    values = with_tokenizer_of_init(override(values, [f"train.init_from={source}"]), source)
    callback = SilentCallback()
    run = weft.load(train_here(values, tmp_path / "run", callback).path, device="cpu")
    old, size = runs.load(name), run.vocabulary.source.vocab_size
    assert run.vocabulary.source.hash == old.vocabulary.hash and run.config.arch == old.config.arch
    theirs, ours = old.model.state_dict(), run.model.state_dict()
    assert ours.keys() == theirs.keys()
    for weight, value in ours.items():  # the rows of noise tokens are gone
        torch.testing.assert_close(value, theirs[weight][:size] if value.shape != theirs[weight].shape else theirs[weight])
    assert any(note.startswith(f"Initialized {len(ours)} tensors") and "not in" not in note for note in callback.notes)


def test_other_tokenizers_are_refused(tmp_path, runs):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "the cat\ta dog\n" * 10)
    folder = runs.run_dir("bart-transformer")
    values = {
        "task": "seq2seq",
        "recommend": False,
        "data": {"train": str(pairs)},
        "tokenizer": {"type": "word"},
        "model": {**MODELS["transformer"], "share_embeddings": True, "tie_embeddings": True},
        "train": {"max_steps": 1, "init_from": str(folder)},
    }
    with pytest.raises(ConfigError) as caught:
        train_here(values, tmp_path / "run")
    message = str(caught.value)
    assert message.startswith(f"train.init_from: the weights of {folder} would compute another function here (tokenizer: ")
    assert message.endswith(
        "; use its tokenizer (`tokenizer_from`), and the same options, or set train.init_strict = false to skip these weights"
    )


def test_a_denoising_model_is_not_exported(runs, tmp_path):
    with pytest.raises(
        UsageError, match=r"is a denoising model: .*; train a seq2seq model that starts from it, and export that"
    ):
        export_model(runs.load("bart-transformer"), tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


# ---- tokenizers with other start tokens


@pytest.fixture(scope="module")
def bart_tokenizer(tmp_path_factory) -> Path:
    """Characters, with <s> before a source and </s> <s> before a target."""
    plain, path = tokenizer("char", "abc"), tmp_path_factory.mktemp("bart") / "tokenizer.json"
    tokens = [plain.token_text(token) for token in range(plain.vocab_size)]
    processor = post_processor(StartTokens((1,), (2, 1)), tokens)
    path.write_text(json.dumps({**json.loads(plain.data), "post_processor": processor}))
    return path


@pytest.mark.parametrize("task", ["denoising", "seq2seq"])
def test_check_counts_start_tokens_as_training_does(tmp_path, bart_tokenizer, task):
    """8 positions: <s>, 6 tokens and </s> of a source; </s>, <s> and 6 tokens of a target."""
    separator = "" if task == "denoising" else "\ta"
    for length in (6, 7):
        path = tmp_path / f"{length}{'.txt' if task == 'denoising' else '.tsv'}"
        path.write_text(f"ab{separator}\n{'abc' * 2}{'c' * (length - 6)}{separator}\n" * 4)
        values = denoising_run_file(path, "train.max_steps=1", "data.max_length=8")
        values |= {"task": task, "data": {"train": str(path), "valid": 0.25, "max_length": 8}}
        values["tokenizer"] = {"file": str(bart_tokenizer)}
        found = [finding.name for finding in check(values) if finding.name == "too_long"]
        assert bool(found) == (length == 7)
        if length == 7:
            with pytest.raises(DataError, match=r"has 9 tokens, more than data.max_length \(8\)"):
                train_here(values, tmp_path / f"run{length}")
        else:
            train_here(values, tmp_path / f"run{length}")


def test_training_and_prediction_have_the_same_start_tokens(tmp_path, bart_tokenizer):
    plain = Tokenizer(bart_tokenizer.read_bytes(), "tokenizer")
    data = NoisyTexts(corpus_from_lines(plain, ["abcabc", "ab"]), Corrupter(data_config(max_length=8), plain))
    members = np.arange(2)
    batch, corrupted = data.batch(members), data.corrupted(members)
    for row, (source, target) in enumerate(zip(corrupted.source.split(), corrupted.target.split(), strict=True)):
        assert batch.source[row][batch.source_mask[row]].tolist() == [1, *source, 2]
        assert batch.tokens[row, : len(target) + 3].tolist() == [2, 1, *target, 2]
        assert batch.token_mask[row, : len(target) + 3].tolist() == [True, False, *[True] * (len(target) + 1)]
    assert data.tokens(members) == int(batch.token_mask[:, 1:].sum() + batch.source_mask.sum())
    (tmp_path / "text.txt").write_text("abcab\nab\nbca\ncab\n" * 5)
    values = denoising_run_file(tmp_path / "text.txt", "train.max_steps=2", "data.max_length=8")
    run: Any = weft.load(
        train_here({**values, "tokenizer": {"file": str(bart_tokenizer)}}, tmp_path / "run").path, device="cpu"
    )
    noisy = run.predict("abcab", add_noise=True, beam_size=1)
    again = run.predict(noisy.source, beam_size=1)
    assert (noisy.token_ids, noisy.log_prob) == (again.token_ids, pytest.approx(again.log_prob))
    scored = run.score((noisy.source, noisy.target))
    assert len(scored.tokens) == len(noisy.target) + 1
    with pytest.raises(DataError, match="9 tokens exceed the model's limit of 8; shorten it"):
        run.predict("abcabca", add_noise=True)
