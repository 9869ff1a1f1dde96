"""Tagged sentences from CoNLL-U and CoNLL columns: reading, error messages, splits and tokenized corpora."""

from __future__ import annotations

import gzip
import lzma
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config import parse_config, to_dict
from weft.data.corpus import write_corpus
from weft.data.dataset import Dataset
from weft.errors import ConfigError, DataError
from weft.tasks.tagging.data import TaggedDataConfig, TaggedFormat, refuse_long, sentence_lengths, tags_of
from weft.tasks.tagging.data import words as words_of
from weft.tasks.tagging.files import Reading
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

# "vámonos al mar": two multiword tokens and an empty node; # and blanks in words
CONLLU = """\
# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\tV\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tS\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
4.1\tnada\tnada\tNOUN\t_\t_\t_\t_\t_\t_
5\tmar\tmar\tNOUN\tN\t_\t1\tobl\t_\t_

# sent_id = 2
1\t10 000\t10 000\tNUM\tM\t_\t0\troot\t_\t_
2\t#\t#\tSYM\tF\t_\t1\tdep\t_\t_
"""
SPANISH = [
    (("vamos", "nos", "a", "el", "mar"), ("VERB", "PRON", "ADP", "DET", "NOUN")),
    (("10 000", "#"), ("NUM", "SYM")),
]
ENTITIES = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def write(path: Path, text: str) -> Path:
    data = text.encode()
    packers = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    return path


def read(*paths: Path, word: str | int | None = None, tag: str | int | None = None) -> list[tuple[tuple[str, ...], ...]]:
    return [(record.words, record.tags) for record in Dataset(paths, TaggedFormat(Reading(word=word, tag=tag))).records()]


def error_message(action, error=DataError) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


# ---- what is read


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz", "a.CONLLU.xz", "a.txt.zst", "a.tsv", "a"])
def test_conllu_is_detected_by_file_name_or_content(name, tmp_path):
    path = write(tmp_path / name, CONLLU)
    assert read(path) == SPANISH
    assert read(path, path) == SPANISH * 2
    assert read(write(tmp_path / f"b.{name}", CONLLU.split("\n", 2)[2])) == SPANISH


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("xpos", "V"), ("lemma", "ir"), ("feats", "Mood=Imp"), ("deprel", "root"), (5, "V"), ("head", "0"), (None, "VERB")],
)
def test_conllu_columns_by_name_and_by_index(tag, expected, tmp_path):
    path = write(tmp_path / "a.conllu", CONLLU)
    assert read(path, tag=tag)[0][1][0] == expected
    assert read(path, tag=tag)[0][0] == SPANISH[0][0]


def test_conllu_lemmas_as_words(tmp_path):
    assert read(write(tmp_path / "a.conllu", CONLLU), word="lemma")[0][0] == ("ir", "nosotros", "a", "el", "mar")
    assert read(write(tmp_path / "a.conllu", CONLLU), word=3)[1] == (("10 000", "#"), ("NUM", "SYM"))


def test_columns_separated_by_spaces_or_tabs(tmp_path):
    path = write(tmp_path / "a.conll", ENTITIES)
    assert read(path) == [(("EU", "rejects"), ("B-ORG", "O")), (("Peter",), ("B-PER",))]
    assert read(path, tag=2) == [(("EU", "rejects"), ("NNP", "VBZ")), (("Peter",), ("NNP",))]
    assert read(path, word=2, tag=4)[0][0] == ("NNP", "VBZ")
    tabs = write(tmp_path / "b.conll", "New York\tB\n#\tO\n# \u00a0\u2028x\tO\n\t\n \nbad \tO\n\n\n")
    assert read(tabs) == [(("New York", "#", "# \u00a0\u2028x"), ("B", "O", "O")), (("bad ",), ("O",))]
    blanks = write(tmp_path / "c.conll", "# O\n  a \t  B  \nb\u00a0c\u3000d O\n")
    assert read(blanks) == [(("#", "a", "b\u00a0c\u3000d"), ("O", "B", "O"))]


TAGGED_WORDS = st.tuples(st.text("ab #-é\u00a0\u2028", min_size=1, max_size=4), st.sampled_from(["O", "B-x"]))


@given(
    sentences=st.lists(st.lists(TAGGED_WORDS, min_size=1, max_size=5), min_size=1, max_size=4),
    between=st.sampled_from(["\n\n", "\n\n \n", "\n\t\n"]),
)
@settings(deadline=None, max_examples=60)
def test_tab_separated_columns_are_read(sentences, between, tmp_path_factory):
    text = between.join("\n".join(f"{word}\t{tag}" for word, tag in sentence) for sentence in sentences)
    path = write(tmp_path_factory.mktemp("any") / "a.conll", text)
    assert read(path) == [tuple(zip(*sentence, strict=True)) for sentence in sentences]


def test_document_starts_are_skipped(tmp_path):
    path = write(tmp_path / "a.conll", f"-DOCSTART- -X- -X- O\n\n{ENTITIES}\n-DOCSTART-\n\nend NN I-NP O")
    assert [words for words, _ in read(path)] == [("EU", "rejects"), ("Peter",), ("end",)]
    assert Dataset((path,), TaggedFormat()).location(2) == f"{path}:10"


def test_each_file_has_its_own_format(tmp_path):
    one, other = write(tmp_path / "a.conllu", CONLLU), write(tmp_path / "b.conll", ENTITIES)
    assert [tags[0] for _, tags in read(one, other)] == ["VERB", "NUM", "B-ORG", "B-PER"]


def test_statistics_include_three_examples(tmp_path):
    path = write(tmp_path / "a.conllu", ("\ufeff" + CONLLU).replace("\n", "\r\n"))
    summary = Dataset((path,), TaggedFormat()).summary
    assert (summary.count, summary.words, summary.characters, summary.bytes, summary.num_crlf) == (2, 7, 21, 21, 14)
    assert summary.describe() == (
        f"{path}: 2 sentences, 7 words (at most 5 per sentence), 7 tags, utf-8, 14 CRLF line endings\n"
        "  note: a.conllu: CoNLL-U, words are FORM, tags UPOS\n"
        "  note: a.conllu: removed a byte order mark at the start\n"
        "  tags: ADP, DET, NOUN, NUM, PRON, SYM, VERB\n"
        "  e.g.: vamos/VERB nos/PRON a/ADP el/DET mar/NOUN\n"
        "  e.g.: 10 000/NUM #/SYM"
    )
    other = write(tmp_path / "b.conll", ENTITIES)
    assert Dataset((other, other, other), TaggedFormat()).summary.describe().split("\n")[:2] == [
        f"{other} and {other} and 1 more: 6 sentences, 9 words (at most 2 per sentence), 3 tags, utf-8, LF line endings",
        "  note: b.conll: words are in column 1, tags in column 4 of 4, separated by spaces",
    ]


# ---- what is refused

ROW = "\t_" * 6
BAD_FILES = [
    ("a.conll", "a O\nb\n", ":2: expected 2 columns, got 1: 'b'"),
    ("a.conll", "\na\tO\nb O\n", ":3: expected 2 tab-separated columns, got 1: 'b O'"),
    ("a.conll", "a X O\nb O\n", ":2: expected 3 columns, got 2: 'b', 'O'"),
    ("a.conll", "word\n", ":1: expected at least 2 columns, a word and its tag, got 1: 'word'"),
    ("a.conll", "a\tO\n\tO\n", ":2: tag 'O' has no word"),
    ("a.conll", "a\tO\nb\t\n", ":2: word 'b' has no tag"),
    ("a.conll", "", "file is empty"),
    ("a.conll", "a O\0\n", ":1: NUL character; is this a binary or UTF-16 file? For UTF-16, set data.encoding"),
    ("a.conll", "-DOCSTART- O\n\n", "file has no tagged words; use a file with one word and its tag per line"),
    ("a.conllu", "# text = x\n\n", "file has no tagged words; use a file with one word and its tag per line"),
    ("a.conllu", "1\ta\tO\n", ":1: expected 10 tab-separated columns (CoNLL-U), got 3: '1', 'a', 'O'"),
    (
        "a.conllu",
        f"1\ta\ta\tX{ROW}\n1\tb\tb\tX{ROW}\n",
        ":2: expected ID 2, got '1'; is a blank line missing?",
    ),
    ("a.conllu", f"1\ta\ta\tX{ROW}\nx\tb\tb\tX{ROW}\n", ":2: expected ID 2, got 'x'; is a blank line missing?"),
    ("a.conllu", f"1\ta\ta\t{ROW}\n", ":1: word 'a' has no tag"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES)
def test_an_invalid_file_is_rejected_with_its_line(name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    assert error_message(lambda: read(path)) == f"{path}{message if message.startswith(':') else ': ' + message}"


def test_missing_columns(tmp_path):
    conllu, columns = write(tmp_path / "a.conllu", CONLLU), write(tmp_path / "b.conll", ENTITIES)
    names = "id, form, lemma, upos, xpos, feats, head, deprel, deps, misc"
    assert error_message(lambda: read(conllu, tag="upso")) == (
        f"{conllu}: no column 'upso'; set data.tag_column to one of: {names}"
    )
    assert (
        error_message(lambda: read(conllu, word="upos"))
        == f"{conllu}: word and tag are both column 4; set data.word_column and data.tag_column"
    )
    assert error_message(lambda: read(columns, tag="upos")) == (
        f"{columns}: no column 'upos': only CoNLL-U columns have names; set data.tag_column to a 1-based index"
    )
    assert error_message(lambda: read(columns, word=5)) == (
        f"{columns}: no column 5: the file has 4 columns; set data.word_column"
    )
    assert (
        error_message(lambda: read(columns, word=4))
        == f"{columns}: word and tag are both column 4; set data.word_column and data.tag_column"
    )


MESSAGES = [
    ({"train": []}, "data.train: expected file names, got []"),
    ({"train": "a", "test": 1.0}, "data.test: a fraction must be between 0 and 1, got 1"),
    ({"train": "a", "word_column": 0}, "data.word_column: expected a 1-based index or a name, got 0"),
    ({"train": "a", "tag_column": ""}, "data.tag_column: expected a 1-based index or a name, got ''"),
    ({"train": "a", "word_column": 2, "tag_column": 2}, "data.tag_column: names the same column as word_column, 2"),
    ({"train": "a", "max_length": 2}, "data.max_length: must be at least 3, got 2"),
    (
        {"train": "a", "label_column": "x"},
        "data.label_column: unknown option; did you mean 'tag_column'?",
    ),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES)
def test_invalid_configs_are_rejected(values, message):
    assert error_message(lambda: parse_config(TaggedDataConfig, values, prefix="data"), ConfigError) == message


def test_a_config_round_trips():
    table = parse_config(
        TaggedDataConfig, {"train": "a", "valid": 0.1, "word_column": 1, "tag_column": "upos"}, prefix="data"
    ).with_defaults()
    assert parse_config(TaggedDataConfig, to_dict(table), prefix="data") == table


# ---- parts and corpora


def test_fractions_split_sentences_off_the_end(tmp_path):
    write(tmp_path / "a.conll", "".join(f"w{number} T\nx T\n\n" for number in range(50)))
    sources = TaggedDataConfig(train="a.conll", valid=0.1, test=0.2).sources(tmp_path)
    assert {name: [int(record.words[0][1:]) for record in part.records()] for name, part in sources.items()} == {
        "train": list(range(35)), "valid": list(range(35, 40)), "test": list(range(40, 50)),
    }  # fmt: skip
    assert sentence_lengths(sources["valid"]).tolist() == [2] * 5
    assert tags_of(sources["valid"]) == ["T"] * 10
    assert sources["valid"].location(1) == f"{tmp_path / 'a.conll'}:109"
    few = Dataset((write(tmp_path / "b.conll", "a O\n"),), TaggedFormat(), high=0.9)
    assert error_message(lambda: tags_of(few)) == (
        f"{tmp_path / 'b.conll'}: 1 sentence is too few for the fraction from 0 to 0.9; add sentences, or use separate files for data.valid and data.test"
    )


def test_lines_of_a_corpus_are_its_words(tmp_path):
    path = write(tmp_path / "a.conllu", CONLLU)
    source = TaggedDataConfig(train="a.conllu").sources(tmp_path)["train"]
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), words_of(source).texts())
    corpus = write_corpus(words_of(source), tokenizer, tmp_path, "train.words", progress=lambda done, total: None)
    words = [word for actual, _ in SPANISH for word in actual]
    assert [corpus.tokens[a:b].tolist() for a, b in pairwise(corpus.starts)] == [[*tokenizer.encode(word), 2] for word in words]
    lengths = sentence_lengths(source)
    assert (lengths.tolist(), lengths.dtype) == ([5, 2], "int64")
    assert tags_of(source) == [tag for _, tags in SPANISH for tag in tags]
    other = TaggedDataConfig(train="a.conllu", word_column="lemma").sources(tmp_path)["train"]
    assert error_message(
        lambda: write_corpus(words_of(other), tokenizer, tmp_path, "train.words", must_match=corpus.provenance)
    ) == (f"{path}: not the text that the run was started with (word was None, now 'lemma'); restore it or start a new run")


def test_a_too_long_sentence_is_rejected_with_its_line(tmp_path):
    path = write(tmp_path / "a.conll", "ab O\n\nabc O\nab O\n\nabcdef O\n")
    source = Dataset((path,), TaggedFormat())
    tokenizer = train_tokenizer(TokenizerConfig(type="char"), iter(["abcdef"]))
    corpus = write_corpus(words_of(source), tokenizer, tmp_path, "train.words")
    refuse_long(corpus, source, max_length=8)
    assert error_message(lambda: refuse_long(corpus, source, max_length=7)) == (
        f"{path}:6: sentence has 8 tokens, more than data.max_length (7); increase it or split the sentence with a blank line"
    )
    assert error_message(lambda: refuse_long(corpus, source, max_length=6)).startswith(f"{path}:3 (and 1 more): sentence has 7")


def test_a_dataset_reads_its_files_once_and_interns_words(tmp_path, monkeypatch):
    from weft.tasks.tagging import data as tagged

    path, reads, plainly = write(tmp_path / "a.txt", "a N\nb V\n\na N\n\nb V\n"), [], tagged.read_sentences
    monkeypatch.setattr(tagged, "read_sentences", lambda *given: reads.append(given) or plainly(*given))
    source = Dataset((path,), TaggedFormat(), high=0.67)
    assert [record.words for record in source.records()] == [("a", "b"), ("a",)]
    assert tags_of(source) == ["N", "V", "N"] and list(words_of(source).texts()) == ["a", "b", "a"]
    assert sentence_lengths(source).tolist() == [2, 1] and source.location(1) == f"{path}:4"
    assert source.summary.count == 3 and len(reads) == 1
    first, second = source.records()
    assert first.words[0] is second.words[0] and first.tags[0] is second.tags[0]
