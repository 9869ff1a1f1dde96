"""Media files: what cannot be read is a DataError with one line, whatever a file or an archive contains."""

from __future__ import annotations

import os
import random
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from weft.errors import DataError
from weft.media import files
from weft.media.files import MediaFile, import_extra, is_archive

NOISE = random.Random(0).randbytes(5000)


def problem(file: MediaFile, action: str = "read") -> str:
    with pytest.raises(DataError) as caught:
        getattr(file, action)()
    assert caught.value.where.startswith(str(file.path))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(file.path))


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "sounds.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/noise.WAV", NOISE)
        file.writestr("text.txt", "two words " * 50)
        file.writestr("empty.wav", b"")
        file.mkdir("folder")
    return path


ACTIONS = ("read", "open", "stream", "size", "fingerprint")


def test_a_file_and_a_member_are_read(tmp_path, archive):
    path = tmp_path / "noise.wav"
    path.write_bytes(NOISE)
    for file in (MediaFile(path), MediaFile(archive, "a/noise.WAV")):
        assert file.read() == file.open().read() == NOISE
        assert file.read(100) == NOISE[:100]
        assert file.size() == 5000
        assert file.suffix == ".wav"
        with file.stream() as stream:
            stream.seek(4000)
            assert stream.read(5000) == NOISE[4000:]
    assert str(MediaFile(archive, "a/noise.WAV")) == f"{archive}/a/noise.WAV"
    assert is_archive(archive) and is_archive(Path("X.ZIP")) and not is_archive(path)


@pytest.mark.parametrize("action", ACTIONS)
def test_files_that_cannot_be_read(tmp_path, archive, action):
    (tmp_path / "empty.wav").touch()
    os.mkfifo(tmp_path / "pipe.wav")
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "text.zip").write_text("not an archive")
    assert problem(MediaFile(tmp_path / "none.wav"), action) == ": file not found"
    if action != "fingerprint":  # a directory may be the frames of a clip
        assert problem(MediaFile(tmp_path), action) == ": not a file"
    assert problem(MediaFile(tmp_path / "pipe.wav"), action) == ": not a file"
    assert problem(MediaFile(tmp_path / "empty.wav"), action) == ": empty file"
    assert problem(MediaFile(tmp_path / ("x" * 300)), action) == ": cannot be read: File name too long"
    assert problem(MediaFile(archive / "x.wav"), action) == ": cannot be read: Not a directory"
    assert problem(MediaFile(tmp_path / "a\0b"), action).startswith(": cannot be read: ")
    assert problem(MediaFile(tmp_path / "none.zip", "x.wav"), action) == ": file not found"
    assert problem(MediaFile(tmp_path / "pipe.zip", "x.wav"), action) == ": not a file"  # and does not wait for a writer
    assert problem(MediaFile(tmp_path / "text.zip", "x.wav"), action) == ": cannot be read: File is not a zip file"
    assert problem(MediaFile(archive, "none.wav"), action) == "/none.wav: not in the archive"
    assert problem(MediaFile(archive, "empty.wav"), action) == "/empty.wav: empty file"
    assert problem(MediaFile(archive, "folder/"), action) == "/folder/: empty file"


@pytest.mark.parametrize("action", ["read", "stream", "fingerprint"])
def test_a_file_without_permission(archive, action):
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # other users may look into it, unlike tmp_path
        directory = Path(name)
        directory.chmod(0o755)
        path, copy = directory / "secret.wav", directory / "secret.zip"
        for file in (path, copy):
            file.write_bytes(archive.read_bytes())
            file.chmod(0)
        if user == 0:  # who may read everything
            os.seteuid(65534)
        try:
            assert problem(MediaFile(path), action) == ": cannot be read: Permission denied"
            assert problem(MediaFile(copy, "a/noise.WAV"), action) == ": cannot be read: Permission denied"
        finally:
            os.seteuid(user)


def test_a_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path, archive, monkeypatch):
    path = tmp_path / "noise.wav"
    path.write_bytes(NOISE)
    monkeypatch.setattr(files, "MAX_MEMBER_BYTES", 1000)
    assert problem(MediaFile(path)) == ": 5,000 bytes are more than the limit of 1,000"
    assert problem(MediaFile(archive, "a/noise.WAV")) == "/a/noise.WAV: 5,000 bytes are more than the limit of 1,000"
    assert MediaFile(path).read(10) == NOISE[:10]


def rewrite_sizes(path: Path, member: str, size: int) -> None:
    """Let the central directory claim another decompressed size."""
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\x01\x02", 0, data.rfind(member.encode()))
    data[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(data)


def test_a_decompression_bomb_is_refused(tmp_path, archive):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.wav", bytes(10_000_000))
    size = bomb.stat().st_size
    message = f": {size:,} bytes claim to hold 10,000,000: refused as a decompression bomb"
    assert problem(MediaFile(bomb, "zeros.wav")) == message
    assert problem(MediaFile(bomb, "zeros.wav"), "size") == message
    rewrite_sizes(archive, "a/noise.WAV", 2_000_000_000)  # the header lies: the member is small
    assert problem(MediaFile(archive, "a/noise.WAV")).endswith("refused as a decompression bomb")


def test_a_header_that_hides_a_bomb_gives_no_more_than_it_claims(tmp_path):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.wav", bytes(10_000_000))
    rewrite_sizes(bomb, "zeros.wav", 1000)
    assert problem(MediaFile(bomb, "zeros.wav")) == "/zeros.wav: cannot be read: Bad CRC-32 for file 'zeros.wav'"
    assert problem(MediaFile(bomb, "zeros.wav"), "stream").endswith("Bad CRC-32 for file 'zeros.wav'")


def test_an_encrypted_member(archive):
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(signature) + offset] |= 1
    archive.write_bytes(data)
    assert "is encrypted, password required for extraction" in problem(MediaFile(archive, "a/noise.WAV"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_archives_are_data_errors(tmp_path, method):
    path = tmp_path / "sounds.zip"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("text.txt", "some words of text " * 20)
    original, rng, failures = path.read_bytes(), random.Random(method), 0
    for _ in range(150):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        try:
            assert MediaFile(path, "text.txt").read() == b"some words of text " * 20
        except DataError:
            failures += 1
    assert failures > 50


def test_a_compression_that_zipfile_does_not_know(archive):
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.find(signature) + offset] = 97
    archive.write_bytes(data)
    assert problem(MediaFile(archive, "a/noise.WAV")).startswith("/a/noise.WAV: cannot be read: ")


def test_an_archive_that_changes_is_read_again(archive):
    assert MediaFile(archive, "text.txt").read()[:9] == b"two words"
    opened = files._archive(archive)
    assert files._archive(archive) is opened  # kept open
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("text.txt", "new")
    assert MediaFile(archive, "text.txt").read() == b"new"


def test_a_child_process_opens_an_archive_of_its_own(archive, monkeypatch):
    opened = files._archive(archive)
    monkeypatch.setattr(files.os, "getpid", lambda: -1)
    assert files._archive(archive) is not opened


def test_the_fingerprint_depends_on_the_content_and_the_segment(tmp_path, archive):
    path, copy, other = tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "c.wav"
    path.write_bytes(NOISE)
    copy.write_bytes(NOISE)
    other.write_bytes(NOISE[:-1] + bytes([NOISE[-1] ^ 1]))
    parts = [
        *(MediaFile(path), MediaFile(path, start=1.0), MediaFile(path, duration=1.0), MediaFile(path, start=1.0, duration=1.0)),
        *(MediaFile(other), MediaFile(archive, "a/noise.WAV"), MediaFile(archive, "text.txt")),
        MediaFile(archive, "text.txt", start=1.0),
    ]
    assert len({part.fingerprint() for part in parts}) == len(parts)
    assert MediaFile(copy).fingerprint() == MediaFile(path).fingerprint()
    before = MediaFile(archive, "text.txt").fingerprint()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("text.txt", "new")
    assert MediaFile(archive, "text.txt").fingerprint() != before


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError) as caught:
        import_extra("soundfile", "soundfile", "x.flac")
    assert str(caught.value) == "x.flac: requires the package soundfile; run pip install soundfile"


def test_a_package_without_its_library_counts_as_missing(monkeypatch):
    def fails(name: str) -> None:
        raise OSError("sndfile library not found")

    monkeypatch.setattr(files, "import_module", fails)
    with pytest.raises(DataError, match="requires the package soundfile"):
        import_extra("soundfile", "soundfile", "x.flac")
