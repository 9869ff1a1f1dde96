"""ARPA files as runs: imported models are evaluated, compared and sampled from; n-gram runs are exported."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import kenlm
import pytest
from command_line import expect_error, set_stdin

from weft.cli.main import main
from weft.runs.load import load
from weft.tasks.lm.task import LM

TEXT = "\n".join(["the cat sat on the mat", "the dog sat", "a cat saw the dog on a mat", "the cat saw a mat"] * 6) + "\n"
RUN = """
task = "lm"
[data]
train = "text.txt"
read_as = "{read}"
[tokenizer]
type = "{tokens}"
[model]
arch = "ngram"
order = {order}
"""


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    return tmp_path


def counted(name: str, *, read: str = "lines", tokens: str = "whitespace", order: int = 3) -> str:
    Path("run.toml").write_text(RUN.format(read=read, tokens=tokens, order=order))
    assert main(["train", "run.toml", "--quiet", "--output-dir", f"runs/{name}"]) == 0
    return f"runs/{name}"


def scores(capsys: pytest.CaptureFixture[str], run: str) -> dict[str, float]:
    capsys.readouterr()
    assert main(["evaluate", run, "--data", "text.txt", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    return {score["name"]: score["value"] for score in data["scores"]}


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_kenlm_reads_an_exported_run(name, capsys):
    run = counted("own")
    assert main(["export", run, "--format", "arpa", "--output-dir", name]) == 0
    assert capsys.readouterr().out == f"{name}\n"
    plain = gzip.decompress(Path(name).read_bytes()) if name.endswith(".gz") else Path(name).read_bytes()
    Path("plain.arpa").write_bytes(plain)
    theirs = kenlm.Model("plain.arpa")
    lines = ["the cat sat on the mat", "a dog saw a cat"]
    for line, result in zip(lines, load(run, LM).score(lines), strict=True):
        assert math.isclose(result.log_prob / math.log(10), theirs.score(line), abs_tol=1e-5)


def test_an_imported_model_can_be_evaluated_compared_and_sampled_from(capsys, monkeypatch):
    own = counted("own")
    main(["export", own, "--format", "arpa", "--output-dir", "model.arpa"])
    assert main(["import", "model.arpa", "--format", "arpa", "--output-dir", "runs/theirs"]) == 0
    assert scores(capsys, "runs/theirs") == pytest.approx(scores(capsys, own), abs=1e-6)

    assert main(["generate", "runs/theirs", "the", "--greedy", "--max-new-tokens", "3"]) == 0
    theirs = capsys.readouterr().out
    assert main(["generate", own, "the", "--greedy", "--max-new-tokens", "3"]) == 0
    assert theirs == capsys.readouterr().out != ""

    set_stdin(monkeypatch, b"the cat sat\n")
    assert main(["score", "runs/theirs"]) == 0 and capsys.readouterr().out.endswith("the cat sat\n")
    assert main(["info", "runs/theirs"]) == 0
    output = capsys.readouterr().out
    assert "imported, trained elsewhere" in output and "train none, trained elsewhere" in output
    assert "model.arpa" not in Path("runs/theirs/resolved.toml").read_text()
    assert Path("runs/theirs/resolved.toml").read_text().count('smoothing = "file"') == 1


def test_a_character_model_round_trips_with_its_tokenizer(capsys):
    own = counted("own", read="windows", tokens="char")
    assert main(["export", own, "--format", "arpa", "--output-dir", "model.arpa"]) == 0
    assert "such as \\x{20}" in capsys.readouterr().err
    code, message = expect_error(capsys, "import", "model.arpa", "--format", "arpa", "--output-dir", "runs/theirs")
    assert (code, message) == (
        4,
        "model.arpa: its words contain whitespace, so that texts cannot be split into them at spaces; "
        "set --tokenizer-from to the run whose tokenizer made it",
    )
    assert not Path("runs/theirs").exists()
    assert main(["import", "model.arpa", "--format", "arpa", "--output-dir", "runs/theirs", "--tokenizer-from", own]) == 0
    assert "reads running text" in capsys.readouterr().err
    assert scores(capsys, "runs/theirs") == pytest.approx(scores(capsys, own), abs=1e-6)


def test_training_does_not_refit_an_imported_model(capsys):
    run = RUN.format(read="lines", tokens="whitespace", order=3) + 'smoothing = "file"\n'
    Path("run.toml").write_text(run)
    code, message = expect_error(capsys, "train", "run.toml", "--quiet")
    assert code == 2
    names = "kneser-ney, backoff, add-delta, mle"
    assert message == f"model.smoothing: 'file' is only for imported models; choose from {names}"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("import", "x", "--output-dir", "y", "--tokenizer-from", "z"),
            2,
            "--tokenizer-from: not available for format 'hf', which has its own tokenizer",
        ),
        (
            ("import", "none.arpa", "--format", "arpa", "--output-dir", "y"),
            4,
            "none.arpa: cannot read the file: No such file or directory",
        ),
        (("import", ".", "--format", "arpa", "--output-dir", "y"), 4, ".: is a directory; an ARPA model is a file"),
        (
            ("import", "text.txt", "--format", "arpa", "--output-dir", "y"),
            4,
            "text.txt:24: the file ends before \\end\\; it is incomplete",
        ),
        (
            ("export", "runs/own", "--format", "arpa", "--output-dir", "runs"),
            2,
            "export: runs is a directory; name a file, such as runs/model.arpa",
        ),
        (
            ("import", "model.arpa", "--format", "arpa", "--output-dir", "y", "--tokenizer-from", "runs/other"),
            4,
            "model.arpa: word 3 is 'the', but token 3 of the tokenizer is '\\n'",
        ),
    ],
)
def test_bad_imports_and_exports_are_one_line_errors(words, code, message, capsys):
    if "runs/own" in words or "model.arpa" in words:
        main(["export", counted("own"), "--format", "arpa", "--output-dir", "model.arpa"])
    if "runs/other" in words:
        counted("other", tokens="char", read="windows")
    capsys.readouterr()
    assert expect_error(capsys, *words) == (code, message)
    assert not Path("y").exists()


def test_a_network_cannot_be_exported_to_arpa(capsys):
    Path("run.toml").write_text(
        'task = "lm"\n[data]\ntrain = "text.txt"\ncontext_length = 8\n[tokenizer]\ntype = "char"\n[model]\narch = "rnn"\nhidden_size = 4\n'
        "[train]\nmax_steps = 1\n"
    )
    assert main(["train", "run.toml", "--quiet", "--output-dir", "runs/rnn"]) == 0
    capsys.readouterr()
    code, message = expect_error(capsys, "export", "runs/rnn", "--format", "arpa", "--output-dir", "model.arpa")
    assert (code, message) == (
        2,
        "export: arch 'rnn' of task 'lm' is not an n-gram model; train with arch = 'ngram' of task 'lm'",
    )


def test_subword_tokens_are_noted_on_export_and_import(capsys):
    own = counted("own", tokens="bpe")
    assert main(["export", own, "--format", "arpa", "--output-dir", "model.arpa"]) == 0
    message = (
        "its words are tokens of a bpe tokenizer: tokenize texts in the same way, or import it with the tokenizer of this run"
    )
    assert f"weft: warning: {message}\n" in capsys.readouterr().err
    assert main(["import", "model.arpa", "--format", "arpa", "--output-dir", "runs/pieces"]) == 0
    assert "its words look like subwords" in capsys.readouterr().err
    assert main(["import", "model.arpa", "--format", "arpa", "--output-dir", "runs/same", "--tokenizer-from", own]) == 0
    assert "subwords" not in capsys.readouterr().err
    assert scores(capsys, "runs/same") == pytest.approx(scores(capsys, own), abs=1e-6)
