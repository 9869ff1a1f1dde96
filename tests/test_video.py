"""Reading video: frames, times, selection and rotation; damaged, truncated, lying and hostile files."""

from __future__ import annotations

import io
import random
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import av
import numpy as np
import pytest
from media_files import animation, clip, encoded, gradient, media, mutants, problem_of

from weft.media import video as video_module
from weft.media.containers import is_truncated, video_format
from weft.media.files import MediaFile
from weft.media.images import MAX_PIXELS
from weft.media.video import MAX_FRAMES, FrameSelection, frame_size, read_video

CLIPS = {
    "mp4": ("mp4", "mpeg4", "yuv420p"),
    "h264": ("mp4", "libx264", "yuv420p"),
    "mov": ("mov", "mjpeg", "yuvj420p"),
    "mkv": ("matroska", "ffv1", "yuv420p"),
    "webm": ("webm", "libvpx-vp9", "yuv420p"),
    "avi": ("avi", "mpeg4", "yuv420p"),
    "mpg": ("mpeg", "mpeg1video", "yuv420p"),
}
ANIMATIONS = {"GIF": {}, "WEBP": {"lossless": True}, "PNG": {}}
every_clip = pytest.mark.parametrize("name", CLIPS)


def encode(name: str, frames: int = 12, faststart: bool = False) -> bytes:
    format_name, codec, pix_fmt = CLIPS[name]
    return clip(format_name, codec, frames=frames, pix_fmt=pix_fmt, faststart=faststart)


def read(file: MediaFile, size=(8, 12), channels=1, max_frames=100, **options) -> np.ndarray:
    return read_video(file, size=size, channels=channels, max_frames=max_frames, **options)


def indices(frames: np.ndarray) -> list[int]:
    """Numbers of frames, from their brightness."""
    return np.round(frames.reshape(len(frames), -1).mean(1) / 20).astype(int).tolist()


@every_clip
def test_all_frames_of_a_clip(tmp_path, name):
    file = media(tmp_path, encode(name))
    frames = read(file, channels=3)
    assert frames.shape == (12, 8, 12, 3) and frames.dtype == np.uint8
    assert indices(frames) == list(range(12))
    np.testing.assert_array_equal(frames, read(file, channels=3))
    assert read(file, (32, 48), channels=1).shape == (12, 32, 48, 1)


@every_clip
def test_selected_frames(tmp_path, name):
    file = media(tmp_path, encode(name))
    assert indices(read(file, max_frames=4)) == [1, 4, 7, 10]
    assert indices(read(file, max_frames=1)) == [6]
    assert indices(read(file, frame_rate=25.0)) == list(range(12))
    assert indices(read(file, frame_rate=12.5)) == [0, 2, 4, 6, 8, 10]
    assert indices(read(file, frame_rate=50.0)) == sorted([*range(12)] * 2)
    assert indices(read(file, frame_rate=12.5, max_frames=3)) == [2, 6, 10]


@pytest.mark.parametrize("name", ["mp4", "h264", "webm", "mkv", "avi"])
def test_part_of_a_recording(tmp_path, name):
    content = encode(name, frames=100)
    frames = read(media(tmp_path, content))
    for start, duration in ((0.0, 0.2), (0.4, 0.4), (2.0, 0.4), (3.6, None), (3.6, 100.0)):
        first, count = round(25 * start), 1000 if duration is None else round(25 * duration)
        part = MediaFile(tmp_path / "file", start=start, duration=duration)
        np.testing.assert_array_equal(read(part), frames[first : first + count])
    assert problem_of(lambda: read(MediaFile(tmp_path / "file", start=9.0))) == "file: no frames"


@pytest.mark.parametrize("name", ["mp4", "h264", "webm", "mkv"])
def test_clips_are_decoded_once(tmp_path, name, monkeypatch):
    """Also with selected frames and parts: the packets announce the frames."""
    media(tmp_path, encode(name, frames=60))
    calls, decode = [], video_module._decode
    monkeypatch.setattr(video_module, "_decode", lambda *parts: calls.append(parts) or decode(*parts))
    for start, duration, rate in ((0.0, None, None), (0.0, None, 10.0), (1.4, 0.4, None), (1.4, 0.4, 10.0)):
        read(MediaFile(tmp_path / "file", start=start, duration=duration), frame_rate=rate, max_frames=7)
    assert len(calls) == 4


@pytest.mark.parametrize("format_name", ANIMATIONS)
def test_animations(tmp_path, format_name):
    file = media(tmp_path, animation(format_name, **ANIMATIONS[format_name]))
    frames = read(file, (32, 48), channels=3)
    assert frames.shape == (5, 32, 48, 3) and indices(frames) == list(range(5))
    for index in range(5):
        assert np.flatnonzero(frames[index, 0, :, 0] == 255).tolist() == [index]  # frames do not overlap
    assert indices(read(file, max_frames=2)) == [1, 3]
    assert indices(read(file, frame_rate=50.0)) == sorted([*range(5)] * 2)  # 40 ms each


@pytest.mark.parametrize("format_name", ["PNG", "JPEG", "BMP"])
def test_an_image_is_one_frame(tmp_path, format_name):
    file = media(tmp_path, encoded(gradient(8, 12, 1), format_name))
    assert read(file, frame_rate=3.0).shape == (1, 8, 12, 1)


def test_directory_of_frames_in_natural_order(tmp_path):
    for index, name in enumerate(["1.png", "2.PNG", "10.png", "a9.png", "a10.png"]):
        media(tmp_path, encoded(np.full((4, 4, 1), 20 * index, np.uint8), "PNG"), name)
    for name in ("notes.txt", ".hidden.png", "Thumbs.db"):
        media(tmp_path, b"x", name)
    assert indices(read(MediaFile(tmp_path))) == [0, 1, 2, 3, 4]
    assert indices(read(MediaFile(tmp_path), max_frames=2, frame_rate=1.0)) == [1, 3]


def test_directories_that_are_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert problem_of(lambda: read(MediaFile(tmp_path / "empty"))) == "empty: no images in this directory"
    media(tmp_path, b"text", "1.png")
    assert problem_of(lambda: read(MediaFile(tmp_path))).startswith("1.png: not an image")
    monkeypatch.setattr(video_module, "MAX_FRAMES", 0)
    assert problem_of(lambda: read(MediaFile(tmp_path))).endswith(": 1 images are more than the limit of 0")
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert problem_of(lambda: read(MediaFile(tmp_path))).endswith(": cannot be read: Permission denied")


def test_member_of_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "clips.zip", "w") as archive:
        archive.writestr("a.mp4", encode("mp4"))
    assert indices(read(MediaFile(tmp_path / "clips.zip", "a.mp4"))) == list(range(12))


@pytest.mark.parametrize("seed", range(20))
def test_frames_at_a_rate_are_those_that_are_shown(seed):
    rng = random.Random(seed)
    times = np.cumsum([rng.uniform(0.01, 0.3) for _ in range(rng.randint(2, 30))])
    rate = rng.choice([1.0, 4.0, 10.0, 60.0])
    selected = FrameSelection(10_000, rate).select(MediaFile(Path("x")), list(times))
    for tick, index in enumerate(selected.tolist()):
        time = times[0] + tick / rate
        assert index == max(i for i in range(len(times)) if times[i] <= time + 1e-6)
    mean = (times[-1] - times[0]) / (len(times) - 1)
    assert len(selected) == max(1, round((mean * len(times)) * rate))


@pytest.mark.parametrize(("matrix", "turns"), [((0, 1, -1, 0), 3), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1), ((1, 0, 0, 1), 0)])
def test_rotation_of_phones_is_applied(tmp_path, matrix, turns):
    """The matrix of a track maps (x, y) to (a x + c y, b x + d y), with y downwards (ISO/IEC 14496-12)."""
    buffer = io.BytesIO()
    image = gradient(32, 48)
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuvj444p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    content = bytearray(buffer.getvalue())
    a, b, c, d = (value << 16 for value in matrix)
    struct.pack_into(">9i", content, content.index(b"tkhd") + 4 + 40, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    expected = np.rot90(image, turns)  # counterclockwise
    actual = read(media(tmp_path, bytes(content)), expected.shape[:2], channels=3)[0]
    assert np.abs(actual.astype(int) - expected).mean() < 10


@pytest.mark.parametrize("name", ["mp4", "h264", "mov", "mkv", "webm", "avi"])
def test_truncated_clips_say_how_many_frames_are_left(tmp_path, name):
    content = encode(name, faststart=name in ("mp4", "h264", "mov"))
    assert not is_truncated(content)
    numbers = []
    for length in range(len(content) // 2, len(content) - 1, max(1, len(content) // 40)):
        problem = problem_of(lambda length=length: read(media(tmp_path, content[:length])))
        prefix = "file: the end of the file is missing: "
        assert problem.startswith(prefix) and problem.endswith(" frames can be decoded")
        number = problem.removeprefix(prefix).split()[1 if "only" in problem else 0]
        numbers.append(0 if number == "no" else int(number))
    assert max(numbers) > 1 and sorted(numbers) == numbers and len(set(numbers)) > 2


def test_truncated_clip_without_an_index(tmp_path):
    content = encode("mp4")
    problem = "file: the end of the file is missing: no frames can be decoded"
    assert problem_of(lambda: read(media(tmp_path, content[:-100]))) == problem


@pytest.mark.parametrize("format_name", ANIMATIONS)
def test_truncated_animations(tmp_path, format_name):
    content = animation(format_name, **ANIMATIONS[format_name])
    assert not is_truncated(content)
    problems = [
        problem_of(lambda length=length: read(media(tmp_path, content[:length])))
        for length in range(len(content) // 4, len(content) - 20, len(content) // 20)
    ]
    assert all(problems)
    message = (
        "file: cannot be decoded after 3 frames: " if format_name == "PNG" else "file: the end of the file is missing: only 3"
    )
    assert format_name == "WEBP" or any(problem.startswith(message) for problem in problems)


def test_gif_that_ends_after_a_frame(tmp_path):
    content = animation("GIF")
    assert content[-1:] == b";"
    problem = problem_of(lambda: read(media(tmp_path, content[:-1])))
    assert problem == "file: the end of the file is missing: only 5 frames can be decoded"
    assert len(read(media(tmp_path, content + b"\0 anything"))) == 5


def test_files_after_which_something_follows_are_complete():
    for name in ("mp4", "mkv", "avi"):
        assert not is_truncated(encode(name) + b"\0\0\0\0 anything")
    assert not is_truncated(b"text") and not is_truncated(b"")
    live = bytearray(encode("mkv"))
    start = live.index(b"\x18\x53\x80\x67") + 4
    live[start : start + 8] = b"\x01" + b"\xff" * 7  # a segment of unknown size
    assert not is_truncated(bytes(live))


def test_formats_are_never_guessed_by_ffmpeg(tmp_path):
    assert [video_format(encode(name)) for name in CLIPS] == ["mov", "mov", "mov", "matroska", "matroska", "avi", "mpeg"]
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:secret.mp4\n#EXT-X-ENDLIST\n"
    for content in (playlist, b"ffconcat version 1.0\nfile secret.mp4\n", b"text", b"\0\0\0 ftypavif" + b"\0" * 40):
        assert video_format(content) is None
        assert problem_of(lambda content=content: read(media(tmp_path, content)))


def test_clips_without_video(tmp_path):
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert problem_of(lambda: read(media(tmp_path, buffer.getvalue()))) == "file: not a video: no video stream"
    unknown = encode("mov").replace(b"jpeg", b"zzzz")
    assert problem_of(lambda: read(media(tmp_path, unknown))) == "file: not a video: no decoder"
    assert problem_of(lambda: read(media(tmp_path, b"\0\0\0\x08ftyp"))).startswith("file: not a video: ")
    assert problem_of(lambda: read(MediaFile(tmp_path / "missing.mp4"))) == "missing.mp4: file not found"


def test_damaged_frames_are_errors(tmp_path):
    content = bytearray(encode("mov"))
    starts = [i for i in range(len(content)) if content[i : i + 3] == b"\xff\xd8\xff"]
    assert len(starts) == 12
    content[starts[5] : starts[6]] = b"\0" * (starts[6] - starts[5])
    problem = problem_of(lambda: read(media(tmp_path, bytes(content))))
    assert problem == "file: cannot be decoded after 5 frames: Invalid data found when processing input"


def test_large_frames_are_refused_by_their_headers(tmp_path):
    content = clip("avi", "rawvideo")
    sizes = struct.pack("<II", 48, 32)
    huge = content.replace(sizes, struct.pack("<II", 9000, 9000))
    problem = f"file: 9,000 x 9,000 pixels exceed the limit of {MAX_PIXELS:,}; make the image smaller"
    assert huge != content and problem_of(lambda: read(media(tmp_path, huge))) == problem


def test_thousands_of_hours_allocate_nothing(tmp_path):
    content = bytearray(encode("mp4").replace(b"elst", b"free"))  # the edit list would end the clip after 0.48 seconds
    position = content.index(b"stts") + 12
    assert struct.unpack_from(">II", content, position) == (12, 512)
    struct.pack_into(">II", content, position, 12, 1 << 24)  # each frame takes 22 minutes
    tracemalloc.start()
    problem = problem_of(lambda: read(media(tmp_path, bytes(content)), frame_rate=100.0))
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert problem == f"file: 15,729 seconds at 100 frames per second exceed {MAX_FRAMES:,} frames"
    assert len(read(MediaFile(tmp_path / "file"))) == 12


def test_sample_counts_that_lie(tmp_path):
    content = bytearray(encode("mp4"))
    position = content.index(b"stsz") + 8
    assert struct.unpack_from(">II", content, position) == (0, 12)
    struct.pack_into(">II", content, position, 1, 2_000_000_000)
    assert problem_of(lambda: read(media(tmp_path, bytes(content))))


def test_clips_with_too_many_frames(tmp_path, monkeypatch):
    file = media(tmp_path, encode("mp4"))
    monkeypatch.setattr(video_module, "MAX_FRAMES", 11)
    assert problem_of(lambda: read(file)) == "file: more than 11 frames; split it into clips"
    monkeypatch.setattr(video_module._Clip, "expected_times", lambda clip: [0.0])
    assert problem_of(lambda: read(file)) == "file: more than 11 frames; split it into clips"
    monkeypatch.setattr(video_module, "MAX_FRAMES", 4)
    problem = problem_of(lambda: read(media(tmp_path, animation("GIF"))))
    assert problem == "file: 5 frames are more than the limit of 4"


def test_wrong_expectations_are_corrected(tmp_path, monkeypatch):
    """Packets are not always frames: the frames that are decoded count."""
    file = media(tmp_path, encode("mp4"))
    for expected in ([0.0], [i / 25 for i in range(40)]):
        monkeypatch.setattr(video_module._Clip, "expected_times", lambda clip, expected=expected: expected)
        assert indices(read(file, max_frames=4)) == [1, 4, 7, 10]
        assert indices(read(file, frame_rate=12.5)) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("name", [*CLIPS, *ANIMATIONS])
def test_mutants_give_frames_or_data_errors(tmp_path, name):
    content = encode(name, frames=6) if name in CLIPS else animation(name, frames=3)
    outcomes = []
    for mutant in mutants(content, 60, seed=1):
        file = media(tmp_path, mutant)
        outcomes.append(problem_of(lambda file=file: read(file, frame_rate=10.0)))
    assert sum(map(bool, outcomes)) > 10  # anything but a DataError fails above
    assert all(len(problem.split("\n")) == 1 for problem in outcomes)


def test_missing_package(tmp_path, monkeypatch):
    file = media(tmp_path, encode("mp4"))
    monkeypatch.setitem(sys.modules, "av", None)
    assert problem_of(lambda: read(file)) == "video: requires the package av; run pip install av"


def test_size_and_fingerprint_of_clips(tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip("mp4", "mpeg4"))
    (tmp_path / "a.gif").write_bytes(animation("GIF"))
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "1.png").write_bytes(encoded(gradient(6, 8), "PNG"))
    sizes = [frame_size(MediaFile(tmp_path / name)) for name in ("a.mp4", "a.gif", "frames", "frames/1.png")]
    assert sizes == [(32, 48), (32, 48), (6, 8), (6, 8)]
    (tmp_path / "damaged.mp4").write_bytes(clip("mp4", "mpeg4")[:40])
    assert problem_of(lambda: frame_size(MediaFile(tmp_path / "damaged.mp4")))
    directory = MediaFile(tmp_path / "frames")
    before = directory.fingerprint()
    assert before == directory.fingerprint()
    (tmp_path / "frames" / "2.png").write_bytes(encoded(gradient(6, 8), "PNG"))
    assert directory.fingerprint() != before
