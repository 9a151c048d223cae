"""Small random changes of bytes, like those of bad disks, cut downloads, editors and attackers."""

from __future__ import annotations

import random
import struct

PIECES = (b"\x00", b"\xff", b"\n", b",", b'"', b"[", b"{", b"nan", b"1e999", b"\xef\xbb\xbf", b"null", b"-", b"9" * 40)
NUMBERS = (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)


def mutate(draw: random.Random, data: bytes) -> bytes:
    """Return the data with one to twenty changes."""
    actual = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        at = draw.randrange(len(actual) + 1)
        change = draw.randrange(7)
        if change == 0 and at < len(actual):
            actual[at] ^= 1 << draw.randrange(8)
        elif change == 1 and draw.random() < 0.3:
            del actual[at:]
        elif change == 2:
            actual[at:at] = draw.choice(PIECES)
        elif change == 3:
            del actual[at : at + draw.randrange(1, 50)]
        elif change == 4:
            actual[at:at] = actual[at : at + draw.randrange(1, 200)]
        elif change == 5:
            actual[at : at + 4] = struct.pack("<I", draw.choice((*NUMBERS, draw.randrange(2**32))))
        elif change == 6:
            actual += draw.choice(PIECES) * draw.choice((1, 100, 3000))
    return bytes(actual)
