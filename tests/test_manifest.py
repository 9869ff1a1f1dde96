"""Manifests: every format gives the same records, and a bad one is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from weft.data.manifest import ManifestColumns, ManifestFormat, MediaRecord, record_location
from weft.errors import DataError
from weft.media.files import MediaFile
from weft.text.reading import FileSummary

Columns = ManifestColumns


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **options: Any) -> list[MediaRecord]:
    return list(ManifestFormat(**options).read((path,), FileSummary([path], "utf-8")))


def rows(path: Path, **options: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """Path relative to the directory of the manifest, texts, and speaker of each record."""
    base = path if path.is_dir() else path.parent
    return [(str(item.media.path.relative_to(base)), item.texts, item.group) for item in read(path, **options)]


def problem(path: Path, **options: Any) -> str:
    """The message, without the directory."""
    with pytest.raises(DataError) as caught:
        read(path, **options)
    assert caught.value.exit_code == 3
    return str(caught.value).replace(f"{path.parent}/", "")


EXPECTED = [("a.wav", ("hello",), "s1"), ("b.wav", ("you, too",), "s2")]
TABLES: dict[str, str] = {
    "header.tsv": "path\ttext\tspeaker\na.wav\thello\ts1\nb.wav\tyou, too\ts2\n",
    "order.tsv": "client_id\tsentence\tup_votes\tclip\ns1\thello\t2\ta.wav\ns2\tyou, too\t0\tb.wav\n",
    "upper.csv": 'Speaker_ID,File,Transcript\ns1,a.wav,hello\ns2,b.wav,"you, too"\n',
    "lines.jsonl": '{"audio_filepath": "a.wav", "text": "hello", "speaker": "s1"}\n'
    '{"audio_filepath": "b.wav", "text": "you, too", "speaker": "s2"}\n',
    "list.json": '[{"audio": "a.wav", "transcript": "hello", "spk": "s1"},\n'
    '{"audio": "b.wav", "transcript": "you, too", "spk": "s2"}]',
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_recognized_by_their_names(tmp_path, name):
    assert rows(write(tmp_path / name, TABLES[name])) == EXPECTED


def test_tables_of_other_programs(tmp_path):
    book = openpyxl.Workbook()
    for row in (("path", "text", "speaker"), ("a.wav", "hello", "s1"), ("b.wav", "you, too", "s2")):
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    assert rows(tmp_path / "book.xlsx") == EXPECTED
    table = pyarrow.table({"path": ["a.wav", "b.wav"], "text": ["hello", "you, too"], "speaker": ["s1", "s2"]})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    assert rows(tmp_path / "table.parquet") == EXPECTED
    names = Columns("path", ("text",), "speaker")
    assert rows(tmp_path / "table.parquet", names=names) == EXPECTED
    parts = pyarrow.table({"audio": ["a.wav"], "sentence": ["x"], "offset": [1.5], "duration": [2]})
    pyarrow.parquet.write_table(parts, tmp_path / "parts.parquet")
    assert read(tmp_path / "parts.parquet")[0].media[2:] == (1.5, 2.0)


def test_a_table_without_a_header(tmp_path):
    """The first row is a record, also if columns are selected by index."""
    path, summary = write(tmp_path / "plain.tsv", "a.wav\thello\ts1\nb.wav\tyou, too\ts2\n"), FileSummary([], "utf-8")
    records = list(ManifestFormat().read((path,), summary))
    assert [(item.media.path.name, item.texts, item.line) for item in records] == [
        ("a.wav", ("hello",), 1),
        ("b.wav", ("you, too",), 2),
    ]
    assert summary.notes == ["plain.tsv: no header; the path is column 1, the text column 2"]
    assert rows(path, names=Columns(1, (2,), 3)) == EXPECTED
    swapped = write(tmp_path / "swapped.csv", "hello,a.wav\nx,b.wav\n")
    assert rows(swapped, names=Columns(2, (1,))) == [("a.wav", ("hello",), ""), ("b.wav", ("x",), "")]
    assert rows(write(tmp_path / "header.csv", "text,path\nhello,a.wav\n"), names=Columns(2, (1,)))[0][0] == "a.wav"


def test_named_columns_and_several_references(tmp_path):
    path = write(tmp_path / "refs.tsv", "id\twav file\ten\ten2\nx\ta.wav\thello\thi\n")
    assert rows(path, names=Columns("wav file", ("en2", "en"))) == [("a.wav", ("hi", "hello"), "")]
    lists = write(tmp_path / "refs.jsonl", '{"image": "a.png", "caption": ["one", "two"]}\n')
    assert rows(lists) == [("a.png", ("one", "two"), "")]


def test_parts_of_recordings(tmp_path):
    """As in NeMo; without an offset, the duration is information about the whole file."""
    path = write(
        tmp_path / "parts.jsonl",
        '{"audio_filepath": "a.wav", "offset": 1.5, "duration": 2, "text": "x"}\n'
        '{"audio_filepath": "a.wav", "duration": 2.0, "text": "y"}\n{"audio_filepath": "a.wav", "offset": 3, "text": "z"}\n',
    )
    assert [item.media[2:] for item in read(path)] == [(1.5, 2.0), (0.0, None), (3.0, None)]
    assert [record_location(item).rpartition(":")[2] for item in read(path)] == ["1", "2", "3"]


COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}, {"id": 3, "file_name": "c.jpg"}],
    "annotations": [
        {"image_id": 2, "caption": "three"},
        {"image_id": 1, "caption": "one"},
        {"image_id": 1, "caption": "two"},
    ],
}


def test_coco(tmp_path):
    path = write(tmp_path / "captions.json", json.dumps(COCO))
    assert rows(path) == [("a.jpg", ("one",), ""), ("a.jpg", ("two",), ""), ("b.jpg", ("three",), "")]


KALDI = {
    "wav.scp": "u1 a.wav\nu2\tb.wav\n",
    "text": "u1 hello\nu2\tyou, too\n",
    "utt2spk": "u1 s1\nu2 s2\n",
}


def kaldi(directory: Path, **files: str) -> Path:
    for name, content in {**KALDI, **{name.replace("wav_scp", "wav.scp"): text for name, text in files.items()}}.items():
        write(directory / "data" / name, content)
    return directory / "data"


def test_a_directory_of_kaldi(tmp_path):
    directory = kaldi(tmp_path)
    assert rows(directory) == EXPECTED
    assert [path.name for path in ManifestFormat().files((directory,))] == ["wav.scp", "text", "utt2spk"]
    kaldi(tmp_path, text="s1 hello\ns2\n", segments="s1 u1 0.5 1.75\ns2 u2 2 -1\n")
    assert [item.media[2:] for item in read(directory)] == [(0.5, 1.25), (2.0, None)]
    assert [item.texts for item in read(directory)] == [("hello",), ("",)]


def test_paths_are_relative_to_the_manifest_or_to_the_root(tmp_path):
    path = write(tmp_path / "lists" / "paths.tsv", "path\ttext\na.wav\tx\n/abs/b.wav\ty\n../c.wav\tz\n")
    assert [item.media.path for item in read(path)] == [
        tmp_path / "lists" / "a.wav",
        Path("/abs/b.wav"),
        tmp_path / "lists" / ".." / "c.wav",
    ]
    assert read(path, root=tmp_path / "wavs")[0].media.path == tmp_path / "wavs" / "a.wav"


def test_members_of_archives(tmp_path):
    """Of an archive as the root, or with the archive in the path; `..` is a name in the archive, not a directory."""
    path = write(tmp_path / "zip.tsv", "path\ttext\nx.zip/a.wav\tx\nd/y.ZIP/b/c.wav\ty\nx.zip/../../e.wav\tz\n")
    assert [item.media[:2] for item in read(path)] == [
        (tmp_path / "x.zip", "a.wav"),
        (tmp_path / "d" / "y.ZIP", "b/c.wav"),
        (tmp_path / "x.zip", "../../e.wav"),
    ]
    inside = write(tmp_path / "inside.tsv", "path\ttext\na.wav\tx\n../b.wav\ty\n/etc/passwd\tz\n")
    root = tmp_path / "x.zip"
    assert [item.media for item in read(inside, root=root)] == [
        MediaFile(root, "a.wav"),
        MediaFile(root, "../b.wav"),
        MediaFile(root, "/etc/passwd"),
    ]


def test_the_summary_counts_files_speakers_and_empty_texts(tmp_path):
    path = write(tmp_path / "all.tsv", "path\ttext\tspeaker\na.wav\tx\ts1\na.wav\tyy\ts1\nb.wav\t\ts2\n")
    format, files = ManifestFormat(), FileSummary([path], "utf-8")
    summary = format.summary((path,), files)
    for record in format.read((path,), files):
        summary.add(record)
    described = summary.describe()
    assert "2 recordings of 2 speakers, 3 texts, 3 characters" in described
    assert "empty texts: 1" in described and "a.wav -> x" in described


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty.tsv": ("", "empty.tsv: file is empty"),
    "header.tsv": ("path\ttext\n", "header.tsv: no files are listed"),
    "one.tsv": ("a.wav\nb.wav\n", "one.tsv:1: expected at least 2 tab-separated columns, got 1"),
    "ragged.tsv": ("path\ttext\na.wav\tx\nb.wav\n", "ragged.tsv:3: expected 2 tab-separated columns, got 1"),
    "other.tsv": (
        "path\tfoo\na.wav\tx\n",
        "other.tsv:1: no column of texts in the header path, foo; name it: data.target_column",
    ),
    "nul.tsv": (b"path\ttext\na.wav\thel\0lo\n", "nul.tsv:2: NUL character"),
    "latin.tsv": ("path\ttext\na.wav\tgr\u00fcn\n".encode("latin-1"), "latin.tsv:2: invalid UTF-8"),
    "nopath.tsv": ("path\ttext\n\thello\n", "nopath.tsv:2: no path"),
    "long.tsv": (f"path\ttext\n{'a' * 1_000_000}\tx\n", "long.tsv:2: a path of 1,000,000 characters"),
    "sound.wav": (b"RIFF\0\0\0\0WAVE", "sound.wav: not a manifest (.tsv, .csv, .jsonl, ...)"),
    "lines.txt": ("a.wav\thello\n", "lines.txt: not a manifest (.tsv, .csv, .jsonl, ...)"),
    "broken.jsonl": ('{"path": \n', "broken.jsonl:1: invalid JSON"),
    "numbers.jsonl": ("[1, 2]\n", "numbers.jsonl:1: expected an object with 'path', got a list"),
    "nokey.jsonl": ('{"path": "a.wav", "foo": "x"}\n', "nokey.jsonl:1: no key 'text'; available: path, foo"),
    "nosource.jsonl": ('{"foo": "a.wav", "text": "x"}\n', "nosource.jsonl:1: no key 'path'"),
    "number.jsonl": ('{"path": "a.wav", "text": 7}\n', "number.jsonl:1: expected a string as 'text', got a number"),
    "norefs.jsonl": ('{"path": "a.wav", "text": []}\n', "norefs.jsonl:1: expected a string as 'text', got a list"),
    "nothing.json": ("[]", "nothing.json: the list is empty"),
    "noname.json": (json.dumps({**COCO, "images": [{"id": 1}]}), "noname.json: no key 'file_name'"),
    "noimages.json": (
        json.dumps({**COCO, "images": 5}),
        "noimages.json: not the captions of COCO; use images with id, file_name",
    ),
    "nocaption.json": (
        json.dumps({**COCO, "annotations": [{"image_id": 1, "caption": None}]}),
        "nocaption.json: expected a string as 'caption', got null",
    ),
    "nocaptions.json": (json.dumps({**COCO, "annotations": []}), "nocaptions.json: no files are listed"),
    **{
        f"offset{number}.jsonl": (
            f'{{"path": "a.wav", "text": "x", "offset": {value}}}\n',
            f"offset{number}.jsonl:1: expected a number of seconds as 'offset', got ",
        )
        for number, value in enumerate(("-1", "Infinity", "NaN", '"1"', "true", "1" + "0" * 400))
    },
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_manifest_is_refused_with_its_line(tmp_path, name):
    content, expected = BAD[name]
    message = problem(write(tmp_path / name, content))
    assert message.startswith(expected) and len(message) < 300


def test_columns_that_do_not_exist(tmp_path):
    path = write(tmp_path / "a.tsv", "path\ttext\na.wav\tx\n")
    assert problem(path, names=Columns(targets=("sentence",))) == "a.tsv:1: no column 'sentence'; available: path, text"
    assert problem(path, names=Columns(group="speaker")) == "a.tsv:1: no column 'speaker'; available: path, text"
    assert problem(path, names=Columns(3)) == "a.tsv:1: no column 3: the table has 2 columns"
    assert "file not found" in problem(tmp_path / "missing.tsv")
    assert "file not found" in problem(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"wav_scp": "u1 sph2pipe -f wav a.sph |\nu2 b.wav\n"}, "data/wav.scp:1: is a command, which is not run"),
        ({"text": "u1 x\nu3 y\n"}, "data/text:2: 'u3' is not in wav.scp"),
        ({"text": "u1 x\nu1 y\n"}, "data/text:2: 'u1' is repeated"),
        ({"wav_scp": "u1\nu2 b.wav\n"}, "data/text:1: no path"),
        ({"wav_scp": ""}, "data/wav.scp: file is empty"),
        ({"segments": "u1 u1 0 1\n"}, "data/text:2: 'u2' is not in segments"),
        ({"segments": "u1 u9 0 1\n"}, "data/text:1: 'u9' is not in wav.scp"),
        ({"segments": "u1 u1 2 1\n"}, "data/text:1: expected 0 <= start < end in segments, got 2 and 1"),
        ({"segments": "u1 u1 nan 1\n"}, "data/text:1: expected 0 <= start < end in segments, got nan and 1"),
        ({"segments": "u1 u1 one\n"}, "data/text:1: expected recording, start and end in segments, got 'u1 one'"),
    ],
)
def test_a_bad_directory_of_kaldi_is_refused(tmp_path, files, expected):
    assert problem(kaldi(tmp_path, **files)).startswith(expected)


@pytest.mark.parametrize("name", ["wav.scp", "text"])
def test_a_directory_that_is_not_one_of_kaldi_is_refused(tmp_path, name):
    directory = kaldi(tmp_path)
    (directory / name).unlink()
    assert problem(directory) == f"data: no {name}; name a manifest, or a directory of Kaldi with wav.scp and text"
