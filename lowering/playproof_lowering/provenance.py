"""Digests of input: what was read, named by its content."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

__all__ = ["corpus_digest"]


def corpus_digest(parts: Iterable[tuple[str, str]], readings: Iterable[str] = ()) -> str:
    """Return the BLAKE3 of named parts and of the readings chosen, 64 hexadecimal digits.

    Parameters
    ----------
    parts : iterable of (name, digest)
        In corpus order; the name is the relative path.
    readings : iterable of str
        Decisions that change the meaning of the bytes.

    Notes
    -----
    Each text enters with its length before it, so that no two lists of parts give the same bytes.
    """
    hasher = blake3(b"playproof corpus 1\0")
    for kind, texts in (("part", [text for part in parts for text in part]), ("reading", list(readings))):
        hasher.update(f"{kind} {len(texts)}\0".encode())
        for text in texts:
            encoded = text.encode("utf-8", "surrogatepass")
            hasher.update(len(encoded).to_bytes(8, "little"))
            hasher.update(encoded)
    return hasher.hexdigest()
