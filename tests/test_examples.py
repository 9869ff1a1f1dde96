"""The examples: every command in a run file or in examples/README.md, run for a few steps."""

from __future__ import annotations

import json
import math
import re
import runpy
import shlex
import shutil
import zipfile
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import main
from weft.config import override, read_toml
from weft.metrics.tagging import validate
from weft.models.config import ATTENTION_ENCODINGS, CONNECTIONS, INPUT_ENCODINGS
from weft.models.seq2seq_config import BRIDGES
from weft.models.smoothing import SMOOTHINGS
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.mixers import MIXERS
from weft.nn.recurrent import NONLINEARITIES
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.tasks.registry import TASKS, find_task

EXAMPLES = Path(__file__).parents[1] / "examples"
README, DATA = EXAMPLES / "README.md", EXAMPLES / "data"
FILES = sorted(EXAMPLES.glob("*.toml"))
PARALLEL = ("letters.txt", "reversed.txt", "sentences.en", "sentences.de")
LABELLED = ("reviews.csv", "questions.txt", "tickets.jsonl", "speech.conllu", "entities.txt", "syllables.txt")
FIRST = {"tales.txt": 100, "speech.conllu": 400, "entities.txt": 400, "syllables.txt": 400}  # lines that are enough
SPOKEN = ("spoken.tsv", "spoken.zip", "spoken.wav")
PICTURES = ("shapes", "moving")  # each a .tsv and a .zip
TUNED = ("dpo", "policy-gradient")  # they have the architecture of their initial model
RARE = {(task, "rnn") for task in ("seq2seq", "qa", "captioning", "asr", "instruction-tuning", "reward-model", *TUNED)}
RARE |= {(task, arch) for task in TUNED for arch in ("transformer", "lstm", "gru")}
RARE |= {(task, arch) for task in TASKS if task != "lm" for arch in ("mingru", "minlstm")}
QUIET = ["--quiet"]
TELLING = {
    "predict",
    "explain",
    "--gradients",
    "geometry",
    "similarity",
    "prune",
    "import",
    "export",
    "align",
    "word-map",
}  # on standard error
BRIEF = ["--quiet", "--max-tokens", "300"]
FEW = ["--quiet", "--set", "train.max_steps=3", "--set", "train.num_validations=1", "--set", "train.batch_tokens=256"]


def commands(path: Path) -> list[list[str]]:
    """The words of every command of a file, as a shell would split them: indented comments, or blocks of a page."""
    text, mark = path.read_text(), "#   "
    if path.suffix == ".md":
        text, mark = "".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)), ""
        text = re.sub(r" *\\\n *", " ", text)
    return [shlex.split(line)[1:] for line in re.findall(rf"^{mark}(weft [a-z].*)$", text, re.MULTILINE)]


def settings(path: Path, words: list[str]) -> RunConfig:
    """What a train command's run file says after its --set options."""
    changes = [value for option, value in pairwise(words) if option == "--set"]
    return resolve(override(read_toml(path.parents[1] / words[1]), changes), base=path.parent)


@pytest.fixture
def work_dir(tmp_path, monkeypatch) -> Path:
    """A folder with the examples in it, to run commands from; texts and pairs are cut, for speed."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    data = tmp_path / "examples" / "data"
    for path in [
        data / "tales.txt",
        *data.glob("*.tsv"),
        *data.glob("*/*.txt"),
        *(data / name for name in (*PARALLEL, *LABELLED)),
    ]:
        path.write_text("\n".join(path.read_text().split("\n")[: FIRST.get(path.name, 50)]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# of every task; all of them take minutes
FAST = {"gpt", "bert", "pronounce", "transformer", "sentiment", "entities", "inference", "ngram-kneser-ney", "parse"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in FAST)) for path in [*FILES, README]],
)
def test_every_command_works(work_dir, capsys, path):
    result = commands(path)
    assert result
    for words in result:
        # few lines of the data were copied: --quiet, for a word may be unknown to what was trained with those
        more = QUIET if TELLING & {*words} else {"train": FEW, "compare": BRIEF}.get(words[0], [])
        if words[0] == "compare" and not words[1].endswith(".toml"):
            more = QUIET
        code = main([*words, *more])
        out, err = capsys.readouterr()
        if "model.bidirectional=true" in words:
            assert (code, out) == (2, "")
            assert err in path.read_text()
        else:
            assert (code, err) == (0, ""), words
            assert bool(out) == (words[0] != "train")
            if "--save-alignments" in words:
                directory = Path(words[words.index("--save-alignments") + 1])
                # after few steps, a model may write an empty text, which is aligned with nothing
                assert directory.is_dir() and Path(directory, "000001.svg").exists() == bool(out.strip())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_file_begins_with_the_command_that_trains_it(path):
    trained = [words[1] for words in commands(path) if words[0] == "train"]
    initial = trained[: trained.index(f"examples/{path.name}")]  # runs that this one starts from, or is rewarded by
    assert commands(path)[0][0] == "train"
    assert not initial or read_toml(path)["train"]["init_from"].endswith(Path(initial[0]).stem)
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", [*FILES, EXAMPLES / "stress" / "stress.toml"], ids=lambda path: path.stem)
def test_a_run_file_trains_the_model_that_its_comments_describe(path):
    assert read_toml(path)["recommend"] is False


def test_the_readme_names_every_run_file_and_every_row():
    text = README.read_text()
    assert [path.name for path in FILES if f"]({path.name})" not in text] == []
    rows = re.findall(r"^\| .*\]\(([\w-]+\.toml)\).* \| [\d.]+ \|$", text, re.MULTILINE)  # a model, its run file, minutes
    assert len(rows) >= 30 and [path.name for path in FILES if path.name not in rows] == []


def test_every_option_value_has_an_example():
    trained = [settings(path, words) for path in FILES for words in commands(path) if words[0] == "train"]
    assert {(item.task, item.arch) for item in trained} == {
        (task, kind) for task in TASKS for kind in find_task(task).presets
    } - RARE
    texts = [item for item in trained if item.task == "lm"]
    assert {item.data.read_as for item in texts} == {"windows", "stream", "lines"}
    networks = [item.model for item in texts if item.arch != "ngram"]
    assert {model.nonlinearity for model in networks} == {None, *NONLINEARITIES}
    assert {item.model.smoothing for item in texts if item.arch == "ngram"} == set(SMOOTHINGS)
    assert {model.layer_type for model in networks} == set(MIXERS)
    assert {model.skip_connection for model in networks} == set(CONNECTIONS)
    assert {model.position_encoding for model in networks} == {*INPUT_ENCODINGS, *ATTENTION_ENCODINGS}


def test_every_part_of_encoder_decoders_has_an_example():
    trained = [settings(path, words) for path in FILES for words in commands(path) if words[0] == "train"]
    pairs = [item for item in trained if item.task == "seq2seq"]
    models = [item.model for item in pairs]
    recurrent = {(model.attention, model.attention_placement) for model in models if model.decoder.layer_type != "attention"}
    assert recurrent == {("none", None), *((score, place) for score in ATTENTION_SCORES for place in ("before", "after"))}
    assert {model.bridge for model in models} == {*BRIDGES, None}
    for option in ("input_feeding", "feed_context", "copy_mechanism", "share_embeddings", "tie_embeddings"):
        assert {bool(getattr(model, option)) for model in models} == {True, False}, option
    assert (
        {model.encoder.reverse_source for model in models} == {model.encoder.bidirectional for model in models} == {True, False}
    )
    mixers = {(model.encoder.layer_type, model.decoder.layer_type) for model in models}
    assert {("lstm", "attention"), ("attention", "gru")} < mixers
    assert {item.data.truncate for item in pairs} == {item.tokenizer.source is None for item in pairs} == {True, False}
    assert {item.train.monitor for item in pairs} == {None, "bleu", "chrf", "exact_match"}
    assert {item.data.noise for item in trained if item.task == "denoising"} == {"infilling", "span-corruption"}


def test_every_part_of_classifiers_and_taggers_has_an_example():
    trained = [settings(path, words) for path in FILES for words in commands(path) if words[0] == "train"]
    texts, tags = ([item for item in trained if item.task == task] for task in ("classification", "tagging"))
    assert {Path(item.data.train).suffix for item in texts} == {".csv", ".txt", ".jsonl", ".tsv", ""}
    assert {item.data.multilabel for item in texts} == {len(item.data.columns()) == 2 for item in texts} == {True, False}
    assert {item.data.strip_label_after for item in texts} == {None, ":"}
    assert {item.model.features.analyzer for item in texts if item.arch == "logistic-regression"} == {"word_punct", "char"}
    assert {item.model.head for item in tags} == {"linear", "crf"}
    assert {item.model.char_encoder.layer_type for item in tags if item.arch != "bert"} == {"lstm", "conv"}
    assert {Path(item.data.train).suffix for item in tags} == {".conllu", ".txt"}


def test_tests_named_in_examples_exist():
    named = {match for path in [*FILES, README] for match in re.findall(r"pytest (tests/\S+\.py) -k (\w+)", path.read_text())}
    assert named
    for file, word in named:
        assert re.search(rf"^def test_\w*{word}", (EXAMPLES.parent / file).read_text(), re.MULTILINE)


def test_the_hello_example_spells_hello(work_dir, capsys):
    assert main(["train", "examples/rnn-hello.toml", "--quiet"]) == 0
    assert main(["generate", "runs/rnn-hello", "h", "--greedy"]) == 0
    assert capsys.readouterr().out == "hello\n"


OPENING = {"yes": 0.5, "ok": 0.4, "</s>": 0.1}
AFTER = {"yes": {"yes": 0.4, "ok": 0.3, "</s>": 0.3}, "ok": {"yes": 0.2, "ok": 0.7, "</s>": 0.1}}


def test_greedy_search_misses_the_answer_that_beam_size_two_finds(work_dir, capsys):
    """The tree of Jurafsky and Martin's Figure 10.8: every probability of it, and what each search makes of them."""
    assert main(["train", "examples/yes-ok.toml", "--quiet"]) == 0
    for beam, output, expected in (("1", "yes yes", 0.20), ("2", "ok ok", 0.28), ("9", "ok ok", 0.28)):
        capsys.readouterr()
        assert main(["explain", "runs/yes-ok", "", "--view", "beam-search", "--beam-size", beam, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["views"][0]
        assert data["output"] == output and math.exp(data["score"]) == pytest.approx(expected)
        tokens = {0: ""} | {hypothesis["id"]: hypothesis["token"] for hypothesis in data["hypotheses"]}
        for hypothesis in data["hypotheses"]:
            before = {1: OPENING, 2: AFTER.get(tokens[hypothesis["parent"]]), 3: {"</s>": 1.0}}[hypothesis["step"]]
            assert math.exp(hypothesis["token_log_prob"]) == pytest.approx(before[hypothesis["token"]], abs=1e-6)
    assert len(data["hypotheses"]) == 3 + 6 + 4  # a beam as wide as the tree sees all of it
    assert main(["explain", "runs/yes-ok", "", "--view", "beam-search", "--beam-size", "2"]) == 0
    assert (
        "-1.2730          -1.2730         0.28  ok ok\n-1.6094          -1.6094          0.2  yes yes\n"
        in capsys.readouterr().out
    )


@pytest.fixture(autouse=True)
def scripts_import_each_other(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def test_the_texts_equal_the_output_of_their_script():
    made = runpy.run_path(str(EXAMPLES / "data" / "make.py"))["TEXTS"]
    for name, text in made.items():
        assert (DATA / name).read_bytes() == text().encode(), name
    pairs = runpy.run_path(str(EXAMPLES / "make_data.py"))["texts"]()
    for name, text in pairs.items():
        assert (DATA / name).read_bytes() == text.encode(), name
    labelled = runpy.run_path(str(EXAMPLES / "make_labeled.py"))["texts"]()
    for name, text in labelled.items():
        assert (DATA / name).read_bytes() == text.encode(), name
    lectures = runpy.run_path(str(EXAMPLES / "make_lectures.py"))["texts"]()
    for name, text in lectures.items():
        assert (DATA / name).read_bytes() == text.encode(), name
    feedback = runpy.run_path(str(EXAMPLES / "make_feedback.py"))["texts"]()
    for name, text in feedback.items():
        assert (DATA / name).read_bytes() == text.encode(), name
    asked = runpy.run_path(str(EXAMPLES / "make_answers.py"))["text"]()
    assert (DATA / "purchases.tsv").read_bytes() == asked.encode()
    files = {path.name for path in DATA.iterdir() if path.is_file()}
    assert files == {
        *made,
        *pairs,
        *labelled,
        *feedback,
        *(name for name in lectures if "/" not in name),
        *("similar-words.tsv", "analogies.txt", "en-de-train.tsv", "en-de-test.tsv"),  # written by hand
        "purchases.tsv",
        "dates.tsv",
        "make.py",
        *SPOKEN,
        *(f"{name}{suffix}" for name in PICTURES for suffix in (".tsv", ".zip")),
    }
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 2_000_000


@pytest.mark.parametrize("name", PICTURES)
def test_the_images_equal_the_output_of_their_script(name, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"make_{name}.py", "--output-dir", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / f"make_{name}.py"), run_name="__main__")
    for suffix in (".tsv", ".zip"):
        assert (tmp_path / f"{name}{suffix}").read_bytes() == (DATA / f"{name}{suffix}").read_bytes()


def test_the_recordings_equal_the_output_of_their_script(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_spoken.py", "--output-dir", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "make_spoken.py"), run_name="__main__")
    assert (tmp_path / "spoken.tsv").read_bytes() == (DATA / "spoken.tsv").read_bytes()
    for name in ("s01-zero.wav", "s20-seven.wav"):  # processors round sines differently
        made, expected = (
            np.frombuffer(zipfile.ZipFile(directory / "spoken.zip").read(name), np.uint8).astype(int)
            for directory in (tmp_path, DATA)
        )
        assert len(made) == len(expected) and np.abs(made - expected).max() <= 1


def test_the_countries_equal_the_output_of_their_script():
    babel = pytest.importorskip("babel")
    made = runpy.run_path(str(EXAMPLES / "make_countries.py"))
    results = {path.name: path.read_text() for path in (DATA / "countries").iterdir()}
    names = [line for text in results.values() for line in text.split("\n")[:-1]]
    assert set(results) == {f"{name}.txt" for name in made["LANGUAGES"]}
    assert len(set(names)) == len(names)
    assert {"Saksa", "Dania", "Allemagne"} < set(names)
    if f"Babel=={babel.__version__}" not in (EXAMPLES.parent / "constraints.txt").read_text():
        pytest.skip("another Babel may know other names")
    assert results == made["texts"]()


def test_labels_and_tags_are_correct():
    made = runpy.run_path(str(EXAMPLES / "make_labeled.py"))
    chance = made["StableRandom"](0)
    for _ in range(200):
        word = made["syllables"](chance)
        assert word[0][1] == "B"
        parts = "".join(f"-{letter}" if tag == "B" else letter for letter, tag in word)[1:].split("-")
        assert all(sum(letter in "aeiou" for letter in part.replace("qu", "q")) == 1 for part in parts), parts
        tags = [tag for _, tag in made["entities"](chance)]
        assert validate(tags, "BIO") == []
        both, label = made["inference"](chance)
        premise, hypothesis = both.split("\t")
        if hypothesis.startswith("The ") and hypothesis.split()[2] == "are":
            assert (hypothesis.split()[3] in premise.split()) == (label == "yes")
    # a review without a denial praises with words of praise
    praise, blame = set(made["PRAISE"].split()), set(made["BLAME"].split())
    for row in (DATA / "reviews.csv").read_text().split("\n")[1:-1]:
        if not re.search("not|far|Though|but", row):
            words = set(re.findall("[a-z]+", row.partition(",")[2]))
            assert (bool(words & praise), bool(words & blame)) == ((True, False) if row.startswith("good") else (False, True))


def test_the_dates_equal_the_output_of_their_script():
    babel = pytest.importorskip("babel")
    made = runpy.run_path(str(EXAMPLES / "make_dates.py"))
    rows = [line.split("\t") for line in (DATA / "dates.tsv").read_text().split("\n")[1:-1]]
    assert len({source for source, _ in rows}) == len({target for _, target in rows}) == len(rows) == made["NUM_DAYS"]
    assert made["format_day"](date(2026, 11, 15), "fr", "long") == "15 novembre 2026"
    assert made["format_day"](date(2026, 11, 15), "de", "medium") == "15. November 2026"  # not 15.11.2026
    if f"Babel=={babel.__version__}" not in (EXAMPLES.parent / "constraints.txt").read_text():
        pytest.skip("another Babel may know other names")
    assert (DATA / "dates.tsv").read_bytes() == made["text"]().encode()


def test_numbers_sounds_and_brackets_are_correct():
    made = runpy.run_path(str(EXAMPLES / "make_data.py"))
    words = {
        0: "zero",
        13: "thirteen",
        40_307: "forty thousand three hundred seven",
        900_021: "nine hundred thousand twenty-one",
    }
    assert {number: made["in_words"](number) for number in words} == words
    sounds = {
        "chiesa": "k i e z a",
        "gnocchi": "J o k: i",
        "giacca": "dZ a k: a",
        "scelta": "S e l t a",
        "famiglia": "f a m i L a",
    }
    assert {word: made["sound"](word) for word in sounds} == sounds
    assert {word: made["sound"](word) for word in ("quattro", "ghiaccio", "pizza", "casse")} == {
        "quattro": "k w a t: r o", "ghiaccio": "g i a tS: o", "pizza": "p i ts ts a", "casse": "k a s: e",
    }  # fmt: skip
    rows = [line.split("\t") for line in (DATA / "arithmetic.tsv").read_text().split("\n")[1:-1]]
    assert [_infix(target.split()) for _, target in rows] == [source for source, _ in rows]


def _infix(tokens: list[str]) -> str:
    """A tree in brackets, written as a sum again, by a reader of its own."""
    return _read(tokens, 0)[0]


BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}


def _read(tokens: list[str], at: int) -> tuple[str, int, int]:
    """The text, how strongly it binds, and where it ends."""
    if tokens[at] != "(":
        return tokens[at], 3, at + 1
    operator, (left, single, middle) = tokens[at + 1], _read(tokens, at + 2)
    right, other, end = _read(tokens, middle)
    binds = BINDS[operator]
    first = left if single >= binds else f"( {left} )"
    second = right if other > binds else f"( {right} )"
    return f"{first} {operator} {second}", binds, end + 1


@pytest.mark.parametrize("name", ["arithmetic", "rhyme", "format"])
def test_verified_rewards(name, tmp_path, monkeypatch, capsys):
    """The scripts run, and their functions reward what is right."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    script = runpy.run_path(str(EXAMPLES / "verified_rewards.py"))
    prompts, responses, expected = {
        "arithmetic": (["3+4=", "3+4=", "9+9="], ["7", "8", " 18"], [1.0, 0.0, 1.0]),
        "rhyme": (["cat / "] * 4, ["hat", "cat", "dog", "hut"], [1.0, 0.5, 0.5, 0.0]),
        "format": (["date: "] * 4, ["07-12", "7-12", "31-02", "01.02."], [1.0, 0.0, 0.0, 0.0]),
    }[name]
    assert script["PROBLEMS"][name].reward(prompts, responses) == expected
    arguments = [name, "--steps", "1", "--lm-steps", "1", "--output-dir", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["verified_rewards.py", *arguments])
    script["main"]()
    assert capsys.readouterr().out.count("mean reward") == 2
