"""Which format a file has, told from its first record and never from its name."""

from __future__ import annotations

import re
from typing import Final

import msgspec

__all__ = ["HEAD_BYTES", "detect"]

HEAD_BYTES: Final = 4096
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^"{}\[\]]+')


def detect(head: bytes) -> str | None:
    """Return the name of the format whose marks the first record has, or None.

    Parameters
    ----------
    head : bytes
        The start of the file; the first 4 KiB hold the marks of every real record.
    """
    keys = _top_level(head)
    names = set(keys)
    schema = keys.get("schema", "")
    if schema.startswith("dynamo.request.trace") or names >= {"timestamp", "event"}:
        return "dynamo"
    if "schema" in names or names >= {"version", "hash_id_scope"}:
        return "agentic_mooncake"
    if "requests" in names or names >= {"id", "hash_id_scope"}:
        return "weka"
    if "num_turns" in names:
        return "applied_compute_agentic"
    if names & {"sessionId", "parentUuid", "isSidechain", "leafUuid", "agentType"} or names >= {
        "messageId",
        "snapshot",
    }:
        return "claude"
    if keys.get("type") == "session_meta" or names >= {"payload", "type"}:
        return "codex"
    # Rows of any version without their header: the reader of v2 refuses them and says how to convert.
    if names & {"play_id", "dependencies", "wait_for", "branches", "not_before_ms"}:
        return "agentic_mooncake"
    if "hash_ids" in names or names >= {"input_length", "output_length"}:
        return "mooncake"
    if names >= {"type", "message"} or names >= {"type", "uuid"}:
        return "claude"
    return None


def _top_level(head: bytes) -> dict[str, str]:
    """Return the keys of the first object in `head` that show, with those of their values that are strings."""
    keys: dict[str, str] = {}
    depth = 0
    last = ""
    key = ""
    for match in _TOKEN.finditer(head):
        token = match.group()
        if token[:1] == b'"':
            if depth == 1:
                last = _decoded(token)
                if key:
                    keys[key] = last
        elif token in (b"{", b"["):
            depth += 1
            if depth == 1 and token == b"[":
                return {}
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return keys
        elif depth == 1:
            key = ""
            if token.lstrip().startswith(b":"):
                keys.setdefault(last, "")
                # Behind a bare colon the value is a string or a container; anything else stands in this token.
                key = last if token.strip() == b":" else ""
        elif depth == 0 and token.strip():
            return {}
    return keys


def _decoded(token: bytes) -> str:
    try:
        return msgspec.json.decode(token, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
