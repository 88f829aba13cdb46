"""Digests of input: what was read, named by its content."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blake3 import blake3
from playproof_spec.findings import Findings
from playproof_spec.graph import Source

from playproof_lowering.source import Reading, SourceFile, read_through

__all__ = ["corpus_digest", "read_corpus"]


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


def read_corpus(
    name: str,
    block_size: int,
    files: Iterable[SourceFile],
    read: Callable[[Reading], None],
    findings: Findings,
    facts: dict[str, object],
    on_bytes: Callable[[int], None] | None = None,
) -> Source:
    """Let `read` make one pass over each file, and return what a graph says of where it is from.

    Parameters
    ----------
    name : str
        The format.
    block_size : int
        Tokens a hash id stands for; another one makes another graph of the same bytes.
    files : iterable of SourceFile
        In corpus order.
    read, findings, on_bytes
        As :func:`~playproof_lowering.source.read_through` takes them.
    facts : dict
        Receives the digest of the bytes, ``input_digest``.
    """
    digests = [read_through(file, read, findings, on_bytes) for file in files]
    facts["input_digest"] = corpus_digest(digests)
    return Source(name, corpus_digest(digests, (f"block_size={block_size}",)))
