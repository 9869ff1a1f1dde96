"""The structure of video and animation files: their format, and whether their end is missing.

Decoders stop at the end of a file and do not always notice that it came early. The headers say how long a file is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip", b"pnot")
IMAGE_BRANDS = (b"avif", b"avis", b"mif1", b"msf1")  # images in the same boxes as MP4
MATROSKA = b"\x1a\x45\xdf\xa3"
SEGMENT = b"\x18\x53\x80\x67"
MPEG = b"\0\0\x01\xba"


def video_format(head: bytes) -> str | None:
    """FFmpeg's name of a video format from the first bytes of a file; None: not a video.

    The demuxer is never guessed, because some formats of FFmpeg are playlists that name other files and addresses.
    """
    if head[4:8] in MP4_BOXES and head[8:12] not in IMAGE_BRANDS:
        return "mov"
    if head.startswith(MATROSKA):
        return "matroska"
    if head.startswith(b"RIFF") and head[8:12] == b"AVI ":
        return "avi"
    return "mpeg" if head.startswith(MPEG) else None


def is_truncated(content: bytes) -> bool:
    """Whether the headers describe more bytes than there are. False for formats whose decoders notice it."""
    format_name = video_format(content)
    if format_name is None:
        is_riff, is_gif = content.startswith(b"RIFF"), content.startswith(b"GIF8")
        format_name = "webp" if is_riff else "gif" if is_gif else None
    ends: Mapping[str | None, Callable[[bytes], int]] = {
        "mov": _mp4_end,
        "matroska": _matroska_end,
        "avi": _riff_end,
        "webp": _riff_end,
        "gif": _gif_end,
    }
    return format_name in ends and ends[format_name](content) > len(content)


def _mp4_end(content: bytes) -> int:
    """Where the last box ends (ISO/IEC 14496-12, 4.2)."""
    position = 0
    while content[position + 4 : position + 8].isalnum():  # anything else after the boxes is ignored
        size = int.from_bytes(content[position : position + 4], "big")
        if size == 1:  # a 64-bit size follows the type
            size = int.from_bytes(content[position + 8 : position + 16], "big")
        if size == 0:  # to the end of the file
            return len(content)
        position += max(size, 8)
    return position


def _riff_end(content: bytes) -> int:
    """Where the last RIFF chunk ends; AVI files of more than 1 GB have several."""
    position = 0
    while content[position : position + 4] == b"RIFF":
        position += 8 + int.from_bytes(content[position + 4 : position + 8], "little")
    return position


def _matroska_end(content: bytes) -> int:
    """Where the segment ends (RFC 8794 and 9559). Live streams have segments of unknown size."""
    header_size, position = _vint(content, 4)
    position += header_size
    if content[position : position + 4] != SEGMENT:
        return position
    segment_size, start = _vint(content, position + 4)
    is_unknown = segment_size == (1 << (7 * (start - position - 4))) - 1
    return start if is_unknown else start + segment_size


def _vint(content: bytes, position: int) -> tuple[int, int]:
    """A number of variable length and the position after it: the zero bits at its start count its further bytes."""
    first = content[position] if position < len(content) else 0
    length = 9 - first.bit_length()
    value = int.from_bytes(content[position : position + length], "big")
    return value & ((1 << (7 * length)) - 1), position + length


def _gif_end(content: bytes) -> int:
    """Where the trailer ends (GIF89a)."""
    position = 13 + _color_table(content, 10)
    while position < len(content):
        kind = content[position]
        if kind == 0x2C:  # image: descriptor, colors, minimum code size
            position = _sub_blocks_end(content, position + 11 + _color_table(content, position + 9))
        elif kind == 0x21:  # extension
            position = _sub_blocks_end(content, position + 2)
        else:  # the trailer, or damage that the decoder finds
            return position + 1
    return position + 1


def _color_table(content: bytes, position: int) -> int:
    """Bytes of the color table that the flags at a position announce."""
    flags = content[position] if position < len(content) else 0
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _sub_blocks_end(content: bytes, position: int) -> int:
    """The position after blocks that start with their size, the last with 0."""
    while position < len(content) and content[position]:
        position += 1 + content[position]
    return position + 1
