"""Still pictures become one animated picture: PNG frames in, an animated PNG out, by the standard library alone."""

import struct
import zlib
from collections.abc import Iterator, Sequence

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def animated(frames: Sequence[bytes], *, milliseconds: int = 600) -> bytes:
    """Return an animated PNG that shows each frame so long, for ever; raises ValueError where they do not fit."""
    read = [dict_of(frame) for frame in frames]
    if not read or any(each[b"IHDR"] != read[0][b"IHDR"] for each in read):
        raise ValueError(f"found {len(read)} frames, expected one or more of the same size and kind")
    width, height = struct.unpack(">II", read[0][b"IHDR"][:8])
    chunks = [(b"IHDR", read[0][b"IHDR"]), (b"acTL", struct.pack(">II", len(read), 0))]
    number = 0
    for position, frame in enumerate(read):
        shown = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, milliseconds, 1000, 0, 0)
        chunks.append((b"fcTL", shown))
        number += 1
        if position == 0:  # what a viewer without animation shows
            chunks.append((b"IDAT", frame[b"IDAT"]))
        else:
            chunks.append((b"fdAT", struct.pack(">I", number) + frame[b"IDAT"]))
            number += 1
    return SIGNATURE + b"".join(written(kind, data) for kind, data in [*chunks, (b"IEND", b"")])


def dict_of(frame: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG by kind, its image data joined."""
    if not frame.startswith(SIGNATURE):
        raise ValueError("a frame is no PNG")
    found: dict[bytes, bytes] = {}
    for kind, data in chunks_of(frame):
        found[kind] = found.get(kind, b"") + data
    return found


def chunks_of(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and data of each chunk; raises ValueError for one whose checksum is wrong."""
    position = len(SIGNATURE)
    while position < len(picture):
        (length,) = struct.unpack_from(">I", picture, position)
        kind, data = picture[position + 4 : position + 8], picture[position + 8 : position + 8 + length]
        if written(kind, data) != picture[position : position + 12 + length]:
            raise ValueError(f"chunk {kind!r} of a frame is damaged")
        yield kind, data
        position += 12 + length


def written(kind: bytes, data: bytes) -> bytes:
    """Return a chunk with its length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
