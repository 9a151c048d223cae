"""Small random changes to bytes: what bad disks, cut downloads, editors and attackers do."""

from __future__ import annotations

import random
import struct

PIECES = (b"\x00", b"\xff", b"\n", b",", b'"', b"[", b"{", b"nan", b"1e999", b"\xef\xbb\xbf", b"null", b"-", b"9" * 40)
NUMBERS = (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)


def mutate(draw: random.Random, data: bytes) -> bytes:
    """Return the data with one to twenty changes."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        at = draw.randrange(len(found) + 1)
        change = draw.randrange(7)
        if change == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif change == 1 and draw.random() < 0.3:
            del found[at:]
        elif change == 2:
            found[at:at] = draw.choice(PIECES)
        elif change == 3:
            del found[at : at + draw.randrange(1, 50)]
        elif change == 4:
            found[at:at] = found[at : at + draw.randrange(1, 200)]
        elif change == 5:
            found[at : at + 4] = struct.pack("<I", draw.choice((*NUMBERS, draw.randrange(2**32))))
        elif change == 6:
            found += draw.choice(PIECES) * draw.choice((1, 100, 3000))
    return bytes(found)
