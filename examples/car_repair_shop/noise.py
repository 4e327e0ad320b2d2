"""A video of an engine: made with a noise, and listened to.

    python examples/car_repair_shop/noise.py engine.avi

A real, uncompressed AVI of two seconds that any player plays, about 60 kB.
"""

import math
import statistics
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT, FRAMES_PER_SECOND = 32, 24, 10
SAMPLES_PER_SECOND = 8000  # 8 bits each, mono
SECONDS = 2
WINDOW = SAMPLES_PER_SECOND // 100


@dataclass
class Noise:
    """What is heard in a video: how many knocks there are in a second, and whether some fail."""

    knocks_per_second: float
    is_uneven: bool


def record(path: Path, *, misfires: bool = True) -> Path:
    """Write a video of an engine that knocks twelve times a second, or misses some of these."""
    beats = [beat / 12 for beat in range(12 * SECONDS) if not (misfires and beat % 5 in (3, 4))]
    sound = bytearray([128]) * (SAMPLES_PER_SECOND * SECONDS)
    for beat in beats:
        start = int(beat * SAMPLES_PER_SECOND)
        for at in range(min(240, len(sound) - start)):
            wave = 110 * math.exp(-at / 60) * math.sin(at * 0.9)
            sound[start + at] = 128 + int(wave)
    frames = []
    for number in range(FRAMES_PER_SECOND * SECONDS):
        time = number / FRAMES_PER_SECOND
        shakes = any(0 <= time - beat < 1 / FRAMES_PER_SECOND for beat in beats)
        frames.append(picture(shift=number % 2 if shakes else 0))
    path.write_bytes(avi(frames, bytes(sound)))
    return path


def picture(shift: int) -> bytes:
    """Return the pixels of a grey engine, a little to the right."""
    rows = bytearray()
    for y in range(HEIGHT):
        for x in range(WIDTH):
            inside = 8 <= x - shift < 24 and 6 <= y < 18
            rows += b"\x70\x70\x78" if inside else b"\x30\x20\x20"
    return bytes(rows)


def avi(frames: list[bytes], sound: bytes) -> bytes:
    """Return an AVI file of pictures and sound, neither compressed."""
    size, share = WIDTH * HEIGHT * 3, len(sound) // len(frames)
    main = struct.pack(
        "<14I", 1_000_000 // FRAMES_PER_SECOND, 0, 0, 0x10, len(frames), 0, 2, size, WIDTH, HEIGHT,
        0, 0, 0, 0,
    )  # fmt: skip
    video = stream(b"vids", 1, FRAMES_PER_SECOND, len(frames), size, 0)
    bitmap = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 24, 0, size, 0, 0, 0, 0)
    audio = stream(b"auds", 1, SAMPLES_PER_SECOND, len(sound), share, 1)
    wave = struct.pack("<HHIIHHH", 1, 1, SAMPLES_PER_SECOND, SAMPLES_PER_SECOND, 1, 8, 0)
    header = chunk(b"avih", main)
    header += listed(b"strl", chunk(b"strh", video) + chunk(b"strf", bitmap))
    header += listed(b"strl", chunk(b"strh", audio) + chunk(b"strf", wave))
    movie, index = b"", b""
    for number, frame in enumerate(frames):
        heard = sound[number * share : (number + 1) * share]
        for name, data in ((b"00db", frame), (b"01wb", heard)):
            index += struct.pack("<4sIII", name, 0x10, len(movie) + 4, len(data))
            movie += chunk(name, data)
    body = listed(b"hdrl", header) + listed(b"movi", movie) + chunk(b"idx1", index)
    return chunk(b"RIFF", b"AVI " + body)


def stream(kind: bytes, scale: int, rate: int, length: int, buffer: int, sample: int) -> bytes:
    """Return the header of a stream of an AVI."""
    return struct.pack(
        "<4s4sIHHIIIIIIII4H", kind, b"\0\0\0\0", 0, 0, 0, 0, scale, rate, 0, length, buffer,
        0xFFFFFFFF, sample, 0, 0, WIDTH, HEIGHT,
    )  # fmt: skip


def chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a RIFF file."""
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def listed(name: bytes, data: bytes) -> bytes:
    """Return a list of chunks."""
    return chunk(b"LIST", name + data)


def listen(video: bytes) -> Noise | None:
    """Return what is heard in an AVI, or ``None`` if it has no sound of the kind made here."""
    if video[:4] != b"RIFF" or video[8:12] != b"AVI ":
        return None
    sound = b"".join(data for name, data in chunks(video, 12, len(video)) if name == b"01wb")
    loudness = [
        max(abs(sample - 128) for sample in sound[start : start + WINDOW])
        for start in range(0, len(sound), WINDOW)
    ]
    if not loudness or max(loudness) < 16:
        return None
    loud = [each > max(loudness) / 2 for each in loudness]
    knocks = [at for at, is_loud in enumerate(loud) if is_loud and not (at and loud[at - 1])]
    gaps = [later - earlier for earlier, later in pairwise(knocks)]
    uneven = len(gaps) > 1 and max(gaps) > 1.5 * statistics.median(gaps)
    return Noise(round(len(knocks) * 100 / len(loudness), 1), uneven)


def chunks(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the chunks of a RIFF file, and those in its lists."""
    while start + 8 <= end:
        name, size = struct.unpack_from("<4sI", data, start)
        if name == b"LIST":
            yield from chunks(data, start + 12, min(end, start + 8 + size))
        else:
            yield name, data[start + 8 : start + 8 + size]
        start += 8 + size + size % 2


if __name__ == "__main__":
    print(listen(record(Path(sys.argv[1] if len(sys.argv) > 1 else "engine.avi")).read_bytes()))
