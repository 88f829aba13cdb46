"""The wire of Codex rollouts: the shapes of their lines, and what single values of them mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from playproof_spec.graph import MAX_TOKENS

from playproof_lowering.wire import DecodeErrors, Problem

_ENVELOPE = re.compile(r"Message Type: .*\n(?:.*\n)?Sender: (\S{1,200})\n")
_ABSENT: Final = msgspec.Raw(b"")
LINES: Final = frozenset(
    {
        "session_meta",
        "turn_context",
        "response_item",
        "event_msg",
        "compacted",
        "token_usage_record",
        "inter_agent_communication",
    }
)
ITEMS: Final = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "agent_message",
    }
)
EVENTS: Final = frozenset(
    {
        "token_count",
        "task_started",
        "task_complete",
        "turn_aborted",
        "error",
        "collab_agent_spawn_end",
        "sub_agent_activity",
        "collab_waiting_end",
        "collab_close_end",
    }
)


class Line(msgspec.Struct):
    type: str
    timestamp: str | None = None
    ordinal: msgspec.Raw = _ABSENT
    payload: msgspec.Raw = _ABSENT


class ThreadSpawn(msgspec.Struct):
    parent_thread_id: str | None = None
    agent_path: str | None = None


class Subagent(msgspec.Struct):
    thread_spawn: ThreadSpawn | None = None


class Source(msgspec.Struct):
    subagent: msgspec.Raw = _ABSENT


class SessionMeta(msgspec.Struct):
    id: str
    forked_from_id: str | None = None
    parent_thread_id: str | None = None
    agent_path: str | None = None
    subagent_history_start_ordinal: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT


class TurnContext(msgspec.Struct):
    model: str | None = None
    turn_id: str | None = None


class Item(msgspec.Struct):
    type: str = ""
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    author: str | None = None
    arguments: msgspec.Raw = _ABSENT
    output: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


class Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0


class Info(msgspec.Struct):
    total_token_usage: Usage
    last_token_usage: Usage | None = None


class UsageRecord(msgspec.Struct):
    thread_id: str | None = None
    turn_id: str | None = None
    response_id: str | None = None
    usage: Usage | None = None
    turn_token_usage: Usage | None = None
    thread_token_usage: Usage | None = None


class Part(msgspec.Struct):
    text: str | None = None


class Communication(msgspec.Struct):
    author: str
    recipient: str


class Spawned(msgspec.Struct):
    task_name: str | None = None
    agent_id: str | None = None


class Event(msgspec.Struct):
    type: str = ""
    turn_id: str | None = None
    info: Info | None = None
    call_id: str | None = None
    new_thread_id: str | None = None
    statuses: dict[str, msgspec.Raw] | None = None
    receiver_thread_id: str | None = None
    status: msgspec.Raw = _ABSENT
    event_id: str | None = None
    agent_thread_id: str | None = None
    agent_path: str | None = None
    kind: str | None = None


class Listed(msgspec.Struct):
    agent_name: str
    agent_status: msgspec.Raw


class AgentsOutput(msgspec.Struct):
    status: dict[str, msgspec.Raw] = {}
    agents: list[Listed] = []


LINE = msgspec.json.Decoder(Line)
META = msgspec.json.Decoder(SessionMeta)
SOURCE = msgspec.json.Decoder(Source)
SUBAGENT = msgspec.json.Decoder(Subagent)
CONTEXT = msgspec.json.Decoder(TurnContext)
ITEM = msgspec.json.Decoder(Item)
EVENT = msgspec.json.Decoder(Event)
AGENTS = msgspec.json.Decoder(AgentsOutput)
USAGE_RECORD = msgspec.json.Decoder(UsageRecord)
PARTS = msgspec.json.Decoder(list[Part])
COMMUNICATION = msgspec.json.Decoder(Communication)
SPAWNED = msgspec.json.Decoder(Spawned)
ORDINAL = msgspec.json.Decoder(int | str | None)


def ordinal_of(value: msgspec.Raw) -> int | None:
    """Return the number of a line; some versions write it as a text."""
    try:
        ordinal = ORDINAL.decode(value) if value else None
        return None if ordinal is None else int(ordinal)
    except (*DecodeErrors, ValueError):
        return None


def text_of(value: bytes) -> bytes:
    """Return the text of an item's content or output: a string, or the first part of a list that has one."""
    try:
        if value[:1] == b"[":
            return next((part.text for part in PARTS.decode(value) if part.text), "").encode()
        return msgspec.json.decode(value, type=str).encode() if value else b""
    except DecodeErrors:
        return b""


def author_of(value: bytes) -> str | None:
    try:
        return COMMUNICATION.decode(value).author or None
    except DecodeErrors:
        return None


def sender_of(content: bytes) -> str | None:
    """Return who sent a message whose text is the envelope of an agent's; None for the model's own words."""
    if b"author" in content and b"recipient" in content:
        return author_of(text_of(content))
    if b"Sender: " in content:
        match = _ENVELOPE.match(text_of(content).decode())
        return match.group(1) if match else None
    return None


def asked_path(arguments: bytes, own_path: str) -> str:
    """Return the path of the agent that a spawn asks for, empty where it names none."""
    try:
        name = SPAWNED.decode(text_of(arguments)).task_name or ""
    except DecodeErrors:
        return ""
    return name if not name or name.startswith("/") else f"{own_path or '/root'}/{name}"


def spawned_by(source: msgspec.Raw) -> ThreadSpawn:
    """Return what the source of a session tells of its spawn; older and other sources are plain strings."""
    nothing = ThreadSpawn()
    if bytes(source).lstrip()[:1] != b"{":
        return nothing
    try:
        subagent = SOURCE.decode(source).subagent
        if bytes(subagent).lstrip()[:1] != b"{":
            return nothing
        return SUBAGENT.decode(subagent).thread_spawn or nothing
    except DecodeErrors:
        return nothing


def bounds_problems(info: Info) -> list[Problem]:
    problems = list(usage_problems("info.total_token_usage", info.total_token_usage, 2**53))
    if info.last_token_usage is not None:
        problems += usage_problems("info.last_token_usage", info.last_token_usage, MAX_TOKENS)
    return problems


def usage_problems(place: str, usage: Usage, most: int) -> Iterator[Problem]:
    for name in ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens"):
        value = getattr(usage, name)
        if not 0 <= value <= most:
            path = f"payload.{place}.{name}"
            yield Problem("length-out-of-bounds", path, "out of bounds", str(value)[:60], f"0 … {most}")
