"""Recommended settings: what recipes choose for which data, and how they are applied to a run file."""

import math
import random
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import toy_qa
from label_runs import single_label_rows, tagged_sentences, text_pair_rows, write_conll, write_tsv
from small_runs import make_text

import weft
from weft.cli.main import main
from weft.data.profile import DataProfile, profile_data
from weft.errors import ConfigError, UsageError
from weft.runs import recommend as module
from weft.runs import trial
from weft.runs.callback import CallbackAdapter, TrainCallback
from weft.runs.recommend import complete, describe, recommend, recommend_ladder, with_arch
from weft.runs.resolve import read_config, resolve
from weft.runs.run_dir import RunDir
from weft.tasks.recipe import bpe_size, scaled, scaled_steps
from weft.tasks.registry import TASKS, find_task
from weft.training.duration import format_minutes, seconds_per_step, training_seconds
from weft.training.neural import NeuralTrainer

WORDS = [
    "the",
    "a",
    "old",
    "new",
    "man",
    "woman",
    "dog",
    "house",
    "sees",
    "likes",
    "hears",
    "builds",
    "small",
    "large",
    "red",
    "green",
    "quickly",
    "never",
]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recommend as on a machine with a GPU."""

    def profile(config: Any) -> DataProfile:
        return replace(cpu_profile(config), is_gpu=True)

    cpu_profile = module._profile
    monkeypatch.setattr(module, "_profile", profile)


def sentence(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(5, 12)))


def write_pairs(path: Path, count: int, source: Any, target: Any) -> dict[str, Any]:
    chance = random.Random(1)
    path.write_text("".join(f"{source(chance)}\t{target(chance)}\n" for _ in range(count)))
    return {"task": "seq2seq", "data": {"train": str(path), "valid": 0.1}}


def word(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefgh", k=chance.randint(3, 9)))


def phones(chance: random.Random) -> str:
    return " ".join(chance.choices(["a", "b", "tʃ", "eɪ", "ʃ"], k=chance.randint(3, 9)))


def cyrillic(chance: random.Random) -> str:
    return " ".join("".join(chance.choices("абвгдежз", k=4)) for _ in range(6))


# ---- profiles


def test_a_profile_counts_the_split_and_samples_its_texts(tmp_path):
    values = write_pairs(tmp_path / "pairs.tsv", 200, word, phones)
    train = resolve(with_arch(values), base=tmp_path).datasets["train"]
    profile = profile_data(train, has_valid=True, is_gpu=False)
    assert profile.num_examples == 180  # without the tenth that is validation data
    source, target = profile.texts
    assert source.is_single_words and not source.is_symbols
    assert target.is_symbols and target.alphabet == set("abtʃeɪ")
    rows = [record.source for record in train.records()]
    assert source.mean_chars == pytest.approx(sum(map(len, rows)) / len(rows))
    assert profile.num_chars == pytest.approx(sum(len(record.source) + len(record.target) for record in train.records()))


def test_sentences_are_neither_words_nor_symbols(tmp_path):
    values = write_pairs(tmp_path / "pairs.tsv", 200, sentence, cyrillic)
    profile = profile_data(resolve(with_arch(values), base=tmp_path).datasets["train"], has_valid=True, is_gpu=False)
    assert not any(text.is_single_words or text.is_symbols for text in profile.texts)
    assert profile.shared_alphabet == 0


# ---- rules


@pytest.mark.parametrize(("words", "size"), [(690_000, 8000), (100_000_000, 32_000), (10, 1000), (50_000, 4000)])
def test_more_text_has_more_subwords(words, size):
    assert bpe_size(words) == size


def test_steps_grow_slower_than_the_data():
    assert scaled_steps(6000, 29_000, 29_000, (2000, 100_000)) == 6000
    assert scaled_steps(6000, 4 * 29_000, 29_000, (2000, 100_000)) == 12_000
    assert scaled_steps(6000, 10**12, 29_000, (2000, 100_000)) == 100_000
    assert scaled(10, 400, 100, -0.5, (1, 40)) == 5


# ---- recipes


def test_pronunciations_are_spelled_and_learned_by_an_lstm(tmp_path, on_gpu):
    chosen = recommend(write_pairs(tmp_path / "pairs.tsv", 300, word, phones), base=tmp_path)
    config = chosen.config
    assert (config.tokenizer.source.type, config.tokenizer.target.type) == ("char", "whitespace")
    assert (config.arch, config.model.encoder.hidden_size) == ("lstm-input-feeding", 1024)
    assert (config.train.monitor, config.train.keep, config.train.patience) == ("token_error_rate", "last", 0)


def test_sentences_are_split_into_shared_subwords_and_learned_by_a_transformer(tmp_path, on_gpu):
    chosen = recommend(write_pairs(tmp_path / "pairs.tsv", 2500, sentence, sentence), base=tmp_path)
    config = chosen.config
    assert (config.tokenizer.type, config.tokenizer.vocab_size) == ("bpe", bpe_size(2250 * 17))
    assert config.arch == "transformer" and config.model.share_embeddings and config.model.tie_embeddings
    assert config.train.optimizer == "muon"


def test_languages_with_other_letters_have_a_tokenizer_each(tmp_path, on_gpu):
    config = recommend(write_pairs(tmp_path / "pairs.tsv", 2500, sentence, cyrillic), base=tmp_path).config
    assert (config.tokenizer.source.type, config.tokenizer.target.type) == ("bpe", "bpe")
    assert not config.model.share_embeddings


@pytest.mark.parametrize("option", ["share_embeddings", "copy_mechanism"])
def test_a_model_that_shares_tokens_gets_one_tokenizer(tmp_path, option):
    values = {**write_pairs(tmp_path / "pairs.tsv", 300, word, phones), "model": {option: True}}
    chosen = recommend(values, base=tmp_path)
    assert chosen.config.tokenizer.type == "char" and chosen.config.train.monitor == "token_error_rate"


def test_on_a_cpu_a_smaller_model_is_chosen_where_the_large_one_takes_hours(tmp_path):
    chosen = recommend(write_pairs(tmp_path / "pairs.tsv", 20_000, sentence, sentence), base=tmp_path)
    assert chosen.config.arch == "transformer" and chosen.config.model.hidden_size == 128


def test_a_list_of_words_is_read_line_by_line(tmp_path):
    (tmp_path / "names.txt").write_text("".join(f"{word(random.Random(number))}\n" for number in range(400)))
    config = recommend({"task": "lm", "data": {"train": "names.txt", "valid": 0.1}}, base=tmp_path).config
    assert (config.data.read_as, config.tokenizer.type, config.arch) == ("lines", "char", "gpt")
    assert config.model.dropout > 0 and config.train.max_epochs is not None


@pytest.mark.parametrize(("epochs", "dropout"), [(1.0, 0.0), (5.0, 0.1), (30.0, 0.35)])
def test_a_text_that_is_read_more_often_needs_more_dropout(tmp_path, epochs, dropout):
    text = make_text(tmp_path / "text.txt")
    text.write_text("".join(f"{sentence(random.Random(number))}.\n" for number in range(500)))
    values = {"task": "lm", "data": {"train": str(text)}, "train": {"max_epochs": epochs}}
    assert recommend(values, base=tmp_path).config.model.dropout == dropout


def test_without_validation_data_nothing_stops_early(tmp_path):
    values = write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    del values["data"]["valid"]
    assert recommend(values, base=tmp_path).config.train.patience == 0


def test_spans_are_tagged_jointly(tmp_path):
    data = write_conll(tmp_path / "tags.conll", tagged_sentences(200))
    config = recommend({"task": "tagging", "data": {"train": str(data), "valid": 0.1}}, base=tmp_path).config
    assert config.model.head == "crf" and config.tokenizer.lowercase


def write_labeled(path: Path, rows: list[Any]) -> dict[str, Any]:
    return {"task": "classification", "data": {"train": str(write_tsv(path, rows)), "valid": 0.1}}


def test_texts_are_classified_by_logistic_regression(tmp_path):
    chosen = recommend(write_labeled(tmp_path / "labels.tsv", single_label_rows()), base=tmp_path)
    assert chosen.config.arch == "logistic-regression" and chosen.options == {"model.arch": "logistic-regression"}


def test_a_device_is_no_option_of_networks(tmp_path):
    values = write_labeled(tmp_path / "labels.tsv", single_label_rows())
    assert recommend({**values, "train": {"device": "cpu"}}, base=tmp_path).config.arch == "logistic-regression"


@pytest.mark.parametrize("table", [{"train": {"max_steps": 5}}, {"model": {"hidden_size": 8}}, {"tokenizer": {"type": "char"}}])
def test_a_run_file_with_options_of_networks_gets_one(table, tmp_path):
    values = write_labeled(tmp_path / "labels.tsv", single_label_rows())
    config = recommend({**values, **table}, base=tmp_path).config
    assert config.arch == "gru" and config.train.patience > 0


def test_pairs_of_texts_are_classified_by_a_network(tmp_path):
    path = write_tsv(tmp_path / "pairs.tsv", text_pair_rows(), "label\ta\tb")
    values = {"task": "classification", "data": {"train": str(path), "text_column": ["a", "b"]}}
    assert recommend(values, base=tmp_path).config.arch == "gru"


def test_labeled_words_are_spelled(tmp_path):
    chance = random.Random(1)
    rows = [("xy"[number % 2], word(chance)) for number in range(300)]
    values = {**write_labeled(tmp_path / "names.tsv", rows), "model": {"arch": "lstm"}}
    config = recommend(values, base=tmp_path).config
    assert (config.tokenizer.type, config.model.pooling, config.train.max_steps) == ("char", "last", 1000)


def test_networks_for_few_texts_learn_for_a_short_time_and_longer_for_many(tmp_path):
    texts = [("xy"[number % 2], " ".join(["word"] * 50)) for number in range(20_000)]
    train = recommend({**write_labeled(tmp_path / "many.tsv", texts), "model": {"arch": "gru"}}, base=tmp_path).config.train
    assert (train.max_steps, train.batch_tokens) == (900, 3072)  # 900,000 words, three times 300 steps
    rows = write_labeled(tmp_path / "few.tsv", single_label_rows())
    assert recommend({**rows, "model": {"arch": "gru"}}, base=tmp_path).config.train.max_steps == 300


def test_masked_language_models_read_subwords(tmp_path):
    text = make_text(tmp_path / "text.txt")
    config = recommend({"task": "masked-lm", "data": {"train": str(text)}}, base=tmp_path).config
    assert (config.tokenizer.type, config.model.num_layers, config.model.hidden_size) == ("wordpiece", 4, 256)


def write_manifest(path, count):
    """Recordings that do not exist: recommended settings depend on the texts."""
    path.write_text("".join(f"{number}.wav\tone two {number}\n" for number in range(count)))
    return path


@pytest.mark.parametrize("task", TASKS)
def test_every_recommended_option_is_used(task, tmp_path, on_gpu, monkeypatch):
    """An option that is refused is left out, so a mistake in a recipe would not be seen."""
    removed: list[str] = []
    remove = module._remove
    monkeypatch.setattr(module, "_remove", lambda tables, option: removed.append(option) or remove(tables, option))
    values = {
        "lm": lambda: {"task": "lm", "data": {"train": str(make_text(tmp_path / "text.txt"))}},
        "seq2seq": lambda: write_pairs(tmp_path / "pairs.tsv", 2500, sentence, sentence),
        "tagging": lambda: {
            "task": "tagging",
            "data": {"train": str(write_conll(tmp_path / "tags.conll", tagged_sentences(200)))},
        },
        "classification": lambda: write_labeled(tmp_path / "labels.tsv", single_label_rows()),
        "masked-lm": lambda: {"task": "masked-lm", "data": {"train": str(make_text(tmp_path / "text.txt"))}},
        "asr": lambda: {"task": "asr", "data": {"train": str(write_manifest(tmp_path / "manifest.tsv", 200))}},
        "denoising": lambda: {"task": "denoising", "data": {"train": str(make_text(tmp_path / "text.txt"))}},
        "captioning": lambda: {"task": "captioning", "data": {"train": str(write_manifest(tmp_path / "manifest.tsv", 200))}},
        "word-vectors": lambda: {"task": "word-vectors", "data": {"train": str(make_text(tmp_path / "text.txt"))}},
        "reward-model": lambda: {"task": "reward-model", "data": {"train": str(write_preferences(tmp_path / "pairs.jsonl"))}},
        "instruction-tuning": lambda: {
            "task": "instruction-tuning",
            "data": {"train": str(write_instructions(tmp_path / "instructions.jsonl"))},
        },
        "dpo": lambda: {
            "task": "dpo",
            "data": {"train": str(write_preferences(tmp_path / "pairs.jsonl"))},
            "train": {"init_from": "runs/lm"},
        },
        "policy-gradient": lambda: {
            "task": "policy-gradient",
            "data": {"train": str(write_instructions(tmp_path / "prompts.jsonl")), "reward_from": "runs/reward"},
            "train": {"init_from": "runs/lm"},
        },
        "qa": lambda: {"task": "qa", "data": {"train": str(toy_qa.write_tsv(tmp_path / "qa.tsv", toy_qa.make_questions(200)))}},
    }
    for arch in (None, *find_task(task).presets):
        run_file = values[task]()
        recommend(run_file if arch is None else {**run_file, "model": {"arch": arch}}, base=tmp_path)
        assert removed == [], arch


def write_preferences(path: Path) -> Path:
    path.write_text("".join(f'{{"chosen": "good {index}", "rejected": "bad {index}"}}\n' for index in range(200)))
    return path


def write_instructions(path: Path) -> Path:
    path.write_text("".join(f'{{"instruction": "Say {index}.", "output": "{index}"}}\n' for index in range(200)))
    return path


def test_preferences_are_learned_by_a_linear_model_unless_the_run_file_has_options_of_networks(tmp_path, on_gpu):
    values = {"task": "reward-model", "data": {"train": str(write_preferences(tmp_path / "pairs.jsonl"))}}
    assert recommend(values, base=tmp_path).config.arch == "linear"
    assert recommend({**values, "train": {"max_steps": 5}}, base=tmp_path).config.arch == "gru"
    assert recommend({**values, "model": {"arch": "conv"}}, base=tmp_path).config.arch == "conv"


# ---- run files


def test_what_a_run_file_sets_wins(tmp_path, on_gpu):
    values = write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    values |= {"model": {"arch": "lstm", "hidden_size": 24}, "train": {"max_epochs": 2.0, "optimizer": "sgd", "patience": 3}}
    chosen = recommend({**values, "tokenizer": {"type": "byte"}}, base=tmp_path)
    config = chosen.config
    assert (config.arch, config.model.encoder.hidden_size, config.model.decoder.hidden_size) == ("lstm", 24, 24)
    assert (config.train.max_epochs, config.train.max_steps, config.train.optimizer) == (2.0, None, "sgd")
    assert (config.train.patience, config.tokenizer.type) == (3, "byte")
    assert not {"train.max_epochs", "train.patience", "tokenizer.type", "train.muon_lr"} & set(chosen.options)


def test_the_recommended_optimizer_keeps_its_options_if_the_run_file_names_it(tmp_path, on_gpu):
    values = write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    chosen = [recommend({**values, "train": train}, base=tmp_path).config.train for train in ({}, {"optimizer": "adamw"})]
    assert chosen[0] == chosen[1] and chosen[0].optimizer == "adamw"


def test_options_inside_a_table_are_completed(tmp_path, on_gpu):
    data = write_conll(tmp_path / "tags.conll", tagged_sentences(200))
    values = {"task": "tagging", "data": {"train": str(data)}, "model": {"char_encoder": {"hidden_size": 32}}}
    char_encoder = recommend(values, base=tmp_path).config.model.char_encoder
    assert (char_encoder.hidden_size, char_encoder.embedding_dim, char_encoder.pooling) == (32, 64, "last")


def test_recommended_options_that_contradict_the_run_file_are_left_out(tmp_path, on_gpu):
    values = write_pairs(tmp_path / "pairs.tsv", 2500, sentence, sentence)
    # rotary positions need attention
    values["model"] = {"arch": "transformer", "encoder": {"layer_type": "lstm"}}
    config = recommend(values, base=tmp_path).config
    assert config.model.encoder.layer_type == "lstm" and config.train.optimizer == "muon"


def test_nothing_is_recommended_if_the_run_file_says_so(tmp_path):
    values = {**write_pairs(tmp_path / "pairs.tsv", 300, word, phones), "recommend": False}
    chosen = recommend(values, base=tmp_path)
    assert not chosen.options and chosen.config == resolve(with_arch(values), base=tmp_path)


def test_too_little_data_is_trained_with_a_warning(tmp_path, capsys):
    values = write_pairs(tmp_path / "pairs.tsv", 10, word, phones)
    values |= {"model": {"hidden_size": 8}, "train": {"max_steps": 1}}
    chosen = recommend(values, base=tmp_path)
    assert not chosen.options and chosen.warning.startswith("9 training examples are too few")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    assert main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run")]) == 0
    assert "9 training examples are too few" in capsys.readouterr().err


def test_a_wrong_run_file_is_refused_before_data_is_read(tmp_path):
    values = {"task": "lm", "data": {"train": "missing.txt"}, "model": {"hiden_size": 4}}
    with pytest.raises(ConfigError, match="hiden_size"):
        recommend(values, base=tmp_path)


def test_the_choice_is_described_in_one_line(tmp_path, on_gpu):
    chosen = recommend(write_pairs(tmp_path / "pairs.tsv", 300, word, phones), base=tmp_path)
    assert describe(chosen) == "270 pairs, single words: char to whitespace, lstm-input-feeding, 1,500 steps"
    timed = chosen._replace(options={"train.max_minutes": 1.0})
    assert describe(timed) == "270 pairs, single words: 1 minute"


# ---- runs


def tiny_run(tmp_path: Path) -> dict[str, Any]:
    values = write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    return {**values, "model": {"hidden_size": 8}, "train": {"max_steps": 2, "num_validations": 1}}


def test_the_resolved_file_shows_the_choice_and_training_says_it(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(tiny_run(tmp_path)))
    assert main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run")]) == 0
    assert "Settings for 270 pairs, single words: char to whitespace, lstm-input-feeding" in capsys.readouterr().err
    config = read_config(RunDir(tmp_path / "run"))
    assert (config.arch, config.tokenizer.target.type, config.train.monitor) == (
        "lstm-input-feeding",
        "whitespace",
        "token_error_rate",
    )


def test_a_resolved_file_is_a_run_file_that_gives_the_same_run(tmp_path):
    run = weft.train(tiny_run(tmp_path), output_dir=tmp_path / "run")
    again = weft.train(tmp_path / "run" / "resolved.toml", output_dir=tmp_path / "again")
    assert again.config == run.config
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()


def test_a_run_keeps_its_settings_on_another_machine(tmp_path, monkeypatch):
    values = tiny_run(tmp_path)
    weft.train(values, output_dir=tmp_path / "run")
    monkeypatch.setattr(module, "recommend", lambda *_, **__: pytest.fail("the run has settings"))
    assert complete(values, tmp_path / "run", base=tmp_path).config == read_config(RunDir(tmp_path / "run"))


def test_a_changed_run_file_is_refused_in_the_directory_of_the_old_run(tmp_path):
    values = tiny_run(tmp_path)
    weft.train(values, output_dir=tmp_path / "run")
    with pytest.raises(UsageError, match=r"different options \(train.max_steps: 2, now 3\)"):
        weft.train({**values, "train": {**values["train"], "max_steps": 3}}, output_dir=tmp_path / "run")


def test_settings_for_data_in_memory(tmp_path):
    chance = random.Random(1)
    data = iter([(word(chance), phones(chance)) for _ in range(200)])
    values = {"task": "seq2seq", "model": {"hidden_size": 8}, "train": {"max_steps": 2}}
    run = weft.train(values, output_dir=tmp_path / "run", data={"train": data, "valid": 0.1})
    assert run.config.arch == "lstm-input-feeding" and run.config.tokenizer.target.type == "whitespace"
    assert len((tmp_path / "run" / "inputs" / "train.jsonl").read_text().splitlines()) == 200


def test_a_comparison_gives_every_architecture_its_settings_and_one_budget(tmp_path):
    from weft.comparison.plan import ComparisonOptions
    from weft.comparison.runner import ComparisonRunner, RunnerConfig

    values = write_pairs(tmp_path / "pairs.tsv", 2500, sentence, sentence)
    options = ComparisonOptions(models=("transformer", "lstm"))
    runner = ComparisonRunner(values, options, RunnerConfig(tmp_path / "out", 1, 1, overwrite=False), base=tmp_path)
    transformer, lstm = (resolve(variant.values, base=tmp_path) for variant in runner.plan.variants)
    assert transformer.model.encoder.position_encoding == "rotary" and lstm.model.encoder.position_encoding == "none"
    assert transformer.tokenizer == lstm.tokenizer and transformer.tokenizer.type == "bpe"
    assert (transformer.train.max_steps, transformer.train.batch_tokens) == (lstm.train.max_steps, lstm.train.batch_tokens)
    assert all(not variant.values["recommend"] for variant in runner.plan.variants)


# ---- weft init --data


def test_init_prints_a_run_file_with_the_recommended_options(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    assert main(["init", "seq2seq", "--data", "pairs.tsv"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# weft run file with recommended settings for 270 pairs, single words.\n")
    values = tomllib.loads(text)
    assert values["data"] == {"train": "pairs.tsv", "valid": 0.05, "test": 0.05}
    left_out = {"task": "seq2seq", "data": values["data"]}
    assert resolve(values, base=tmp_path) == recommend(left_out, base=tmp_path).config
    assert all("#" in line for line in text.splitlines() if line and not line.startswith(("[", "#", "train = ")))


def test_init_names_a_missing_file_and_says_if_nothing_is_recommended(tmp_path, capsys):
    assert main(["init", "classification", "--data", str(tmp_path / "missing.csv")]) == 3
    assert "missing.csv: file not found" in capsys.readouterr().err
    (tmp_path / "few.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 20)
    assert main(["init", "classification", "--data", str(tmp_path / "few.csv")]) == 0
    assert "training examples are too few to recommend settings for" in capsys.readouterr().out


def test_init_with_an_architecture_recommends_for_it(tmp_path, capsys):
    write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    assert main(["init", "seq2seq", "--arch", "transformer", "--data", str(tmp_path / "pairs.tsv")]) == 0
    values = tomllib.loads(capsys.readouterr().out)
    assert values["model"]["arch"] == "transformer" and values["train"]["optimizer"] == "muon"


def test_init_detects_the_columns_of_a_table(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{index};{('good', 'bad')[index % 2]};this is soup number {index}" for index in range(40)]
    Path("reviews.csv").write_text("\n".join(["id;stars;review", *rows]) + "\n")
    assert main(["init", "classification", "--data", "reviews.csv", "--arch", "naive-bayes"]) == 0
    Path("run.toml").write_text(capsys.readouterr().out)
    data = tomllib.loads(Path("run.toml").read_text())["data"]
    assert (data["text_column"], data["label_column"]) == ("review", "stars")
    assert main(["train", "run.toml"]) == 0
    assert weft.load("runs/run").labels == ("bad", "good")


# ---- a time


def test_the_duration_of_training_is_measured_without_changing_it(tmp_path):
    values = tiny_run(tmp_path)
    untimed = weft.train({**values, "seed": 1}, output_dir=tmp_path / "untimed")
    loops = []
    trainer = NeuralTrainer.loop

    def timed(self, job):
        loop = trainer(self, job)
        loops.append((seconds_per_step(loop), training_seconds(loop)))
        return loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NeuralTrainer, "loop", timed)
        run = weft.train({**values, "seed": 1}, output_dir=tmp_path / "timed")
    ((step, total),) = loops
    assert 0 < step < 10 and 0 < total < 20
    assert run.directory.weights.read_bytes() == untimed.directory.weights.read_bytes()


@pytest.mark.parametrize(("seconds", "text"), [(20, "20 seconds"), (60, "1 minute"), (240, "4 minutes"), (9000, "2.5 hours")])
def test_durations_are_written_in_minutes_or_hours(seconds, text):
    assert format_minutes(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "minutes", "chosen", "budget"),
    [
        ({0: 60.0, 1: 6.0}, 2, 0, None),  # the best fits
        ({0: 100.0, 1: 6.0}, 1, 0, 1),  # more than half of its budget fits
        ({0: 600.0, 1: 6.0}, 1, 1, None),
        ({0: 6000.0, 1: 600.0}, 1, 1, 1),
    ],
)
def test_the_best_model_for_a_time_is_chosen_by_trials(tmp_path, monkeypatch, seconds, minutes, chosen, budget):
    monkeypatch.setattr(trial, "MAX_SLOWDOWN", math.inf)  # both are tried
    measured = iter(seconds.values())
    monkeypatch.setattr(trial, "_measure", lambda *_: (next(measured), 0.1))
    values = write_pairs(tmp_path / "pairs.tsv", 300, word, phones)
    values["train"] = {"max_steps": 7}
    best, small = recommend_ladder(values, base=tmp_path)
    within = trial.recommend_within(values, minutes, base=tmp_path, callback=CallbackAdapter(TrainCallback()))
    assert within.config.model == (best, small)[chosen].config.model
    assert within.config.train.max_minutes == budget
    assert (within.config.train.max_steps is None) == (budget is not None) and within.config.train.max_steps != 7


def test_a_model_that_is_far_too_large_for_the_time_is_not_tried(tmp_path, monkeypatch):
    """A few batches of it would take minutes on a CPU."""
    tried = []
    monkeypatch.setattr(trial, "_measure", lambda config, *_: tried.append(config.model.hidden_size) or (1.0, 0.1))
    text = "".join(f"{sentence(random.Random(number))}.\n" for number in range(3000))
    (tmp_path / "text.txt").write_text(text)
    values = {"task": "lm", "data": {"train": "text.txt"}}
    ladder = recommend_ladder(values, base=tmp_path)
    assert ladder[0].flops > 10 * ladder[-1].flops > 0
    minutes = ladder[-1].flops / module.CPU_FLOPS / 60
    trial.recommend_within(values, minutes, base=tmp_path, callback=CallbackAdapter(TrainCallback()))
    assert tried and ladder[0].config.model.hidden_size not in tried


def test_a_time_too_short_for_any_training_is_refused(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(write_pairs(tmp_path / "pairs.tsv", 300, word, phones)))
    assert main(["train", str(tmp_path / "run.toml"), "--minutes", "0.0001", "-o", str(tmp_path / "run")]) == 2
    assert "--minutes: 0.0001 is too short for lstm-input-feeding: a step takes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_minutes_and_another_budget_on_the_command_line_are_refused(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(write_pairs(tmp_path / "pairs.tsv", 300, word, phones)))
    assert (
        main(["train", str(tmp_path / "run.toml"), "--minutes", "1", "--set", "train.max_steps=5", "-o", str(tmp_path / "run")])
        == 2
    )
    assert "--minutes: cannot be combined with train.max_steps in --set" in capsys.readouterr().err


def test_training_for_some_minutes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trial, "_measure", lambda *_: (600.0, 0.01))
    (tmp_path / "run.toml").write_text(tomli_w.dumps(tiny_run(tmp_path)))
    assert main(["train", str(tmp_path / "run.toml"), "--minutes", "0.05", "-o", str(tmp_path / "run")]) == 0
    assert read_config(RunDir(tmp_path / "run")).train.max_minutes == 0.05
    assert "the recommended training would take 10 minutes; it will end after 3 seconds" in capsys.readouterr().err
