"""The wire of OpenTelemetry GenAI spans: OTLP JSON lines, and what stays of each span."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec
from playproof_spec.findings import Findings, Where, finding
from playproof_spec.units import HORIZON_NS

from playproof_lowering.conversation import length_problems
from playproof_lowering.names import repeated_name
from playproof_lowering.source import Reading
from playproof_lowering.wire import Problem, decoded, report

__all__ = ["AGENT", "CALL", "INPUT_WITHOUT_CACHED", "OTHER", "OtelSpans", "Span"]

OTHER: Final = 0
CALL: Final = 1
AGENT: Final = 2

INPUT_WITHOUT_CACHED: Final = "input-without-cached"

_CALLS: Final = frozenset({"chat", "generate_content", "text_completion"})
_AGENTS: Final = frozenset({"invoke_agent", "invoke_workflow"})
# Each length under the name of today's conventions, then under that of older ones.
_INPUT: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED: Final = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
_WRITTEN: Final = ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens")
_MODEL: Final = ("gen_ai.response.model", "gen_ai.request.model")


class _Value(msgspec.Struct):
    stringValue: str | None = None
    # JSON of protocol buffers writes 64-bit numbers as strings.
    intValue: int | str | None = None
    doubleValue: float | None = None


class _Attribute(msgspec.Struct):
    key: str
    value: _Value | None = None


class _Span(msgspec.Struct):
    traceId: str
    spanId: str
    name: str = ""
    parentSpanId: str | None = None
    startTimeUnixNano: int | str | None = None
    endTimeUnixNano: int | str | None = None
    attributes: list[_Attribute] = []


class _ScopeSpans(msgspec.Struct):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct):
    scopeSpans: list[_ScopeSpans] = []


class _Record(msgspec.Struct):
    # None in a line of logs or metrics.
    resourceSpans: list[_ResourceSpans] | None = None


_RECORD = msgspec.json.Decoder(_Record)


@dataclass(slots=True, eq=False)
class Span:
    """One span, as far as it matters here.

    Attributes
    ----------
    key, parent : tuple of (str, str)
        (trace, span); the parent's is None where the span has none.
    kind : int
        OTHER, CALL or AGENT.
    start_ns, end_ns : int
        Since 1970.
    conversation, model : str
        Empty where not stated.
    agent : str
        The agent's name, or the span's where it states none.
    input_length, output_length, cached : int
        Tokens of a call; -1 where a length is not stated.
    where, path : Where, str
    """

    key: tuple[str, str]
    parent: tuple[str, str] | None
    kind: int
    start_ns: int
    end_ns: int
    conversation: str
    agent: str
    model: str
    input_length: int
    output_length: int
    cached: int
    where: Where
    path: str


class OtelSpans:
    """Reads OTLP JSON.

    Parameters
    ----------
    findings : Findings
        Receives what is wrong; a span with an error is left out.

    Attributes
    ----------
    spans : dict of Span
        By (trace, span).
    counts : Counter
    """

    def __init__(self, findings: Findings) -> None:
        self.spans: dict[tuple[str, str], Span] = {}
        self.counts: Counter[str] = Counter()
        self._findings = findings

    def read(self, reading: Reading) -> None:
        """Read one file to its end.

        Raises
        ------
        SourceError
            When the file cannot be read on.
        """
        without_cached: list[Span] = []
        for where, record in reading.placed():
            row = decoded(_RECORD, record, where, self._findings)
            twice = repeated_name(record) if row is not None else None
            if row is None or twice is not None:
                report(self._findings, [] if twice is None else [twice], where)
                continue
            if row.resourceSpans is None:
                self.counts["lines_without_spans"] += 1
                continue
            for r, resource in enumerate(row.resourceSpans):
                for s, scope in enumerate(resource.scopeSpans):
                    for n, span in enumerate(scope.spans):
                        self._span(span, where, f"resourceSpans[{r}].scopeSpans[{s}].spans[{n}]", without_cached)
        if without_cached:
            first = without_cached[0]
            message = f"{len(without_cached)} calls had more cached tokens than tokens in all"
            at = Where(
                file=first.where.file, line=first.where.line, field=f"{first.path}.attributes", ids=(first.key[1],)
            )
            self._findings.add(finding(INPUT_WITHOUT_CACHED, message, where=at, found=len(without_cached)))

    def _span(self, span: _Span, where: Where, path: str, without_cached: list[Span]) -> None:
        self.counts["spans"] += 1
        key = (span.traceId, span.spanId)
        problems = [
            Problem("id-empty", f"{path}.{name}", "the id is empty", '""', "an id")
            for name, value in (("traceId", key[0]), ("spanId", key[1]))
            if not value
        ]
        start_ns = _nanoseconds(span.startTimeUnixNano, f"{path}.startTimeUnixNano", problems)
        end_ns = _nanoseconds(span.endTimeUnixNano, f"{path}.endTimeUnixNano", problems)
        if not problems and end_ns < start_ns:
            message, wanted = "the span ends before it starts", f"at least {start_ns}"
            problems.append(Problem("time-negative", f"{path}.endTimeUnixNano", message, str(end_ns), wanted))
        attributes = {each.key: each.value for each in span.attributes if each.value is not None}
        kind = _kind(attributes)
        lengths = [_length(attributes, names) for names in (_INPUT, _OUTPUT, _CACHED, _WRITTEN)]
        if kind == CALL:
            stated = {
                names[0]: (length, 0) for names, length in zip((_INPUT, _OUTPUT), lengths, strict=False) if length > -1
            }
            problems += length_problems({f"{path}.attributes.{name}": pair for name, pair in stated.items()})
        if problems:
            # Other spans only tie the calls together; what is wrong with their times matters to nobody.
            if kind != OTHER or not all(key):
                report(self._findings, problems, where)
                return
            start_ns = end_ns = 0
        if key in self.spans:
            self.counts["spans_repeated"] += 1
            return
        input_length, output_length, cached, written = lengths
        kept = Span(
            key=key,
            parent=(span.traceId, span.parentSpanId) if span.parentSpanId else None,
            kind=kind,
            start_ns=start_ns,
            end_ns=end_ns,
            conversation=_string(attributes, ("gen_ai.conversation.id",)),
            agent=_string(attributes, ("gen_ai.agent.id", "gen_ai.agent.name")) or span.name,
            model=_string(attributes, _MODEL),
            input_length=input_length,
            output_length=output_length,
            cached=max(cached, 0),
            where=where,
            path=path,
        )
        if kind == CALL and input_length >= 0 and cached > input_length:
            # By the conventions the input has the cached tokens in it. Anthropic's own counts do not.
            kept.input_length += cached + max(written, 0)
            without_cached.append(kept)
            self.counts["inputs_without_cached"] += 1
        self.spans[key] = kept


def _kind(attributes: dict[str, _Value]) -> int:
    operation = _string(attributes, ("gen_ai.operation.name",))
    if operation in _CALLS:
        return CALL
    if operation in _AGENTS:
        return AGENT
    # Before operations had names, calls were told by what they used.
    return CALL if not operation and any(name in attributes for name in (*_INPUT, *_OUTPUT)) else OTHER


def _string(attributes: dict[str, _Value], names: tuple[str, ...]) -> str:
    return next((text for name in names if name in attributes and (text := attributes[name].stringValue)), "")


def _length(attributes: dict[str, _Value], names: tuple[str, ...]) -> int:
    """Return a number of tokens, -1 where none of the names has one."""
    for name in names:
        value = attributes.get(name)
        number = None if value is None else _whole(value.intValue if value.intValue is not None else value.doubleValue)
        if number is not None:
            return number
    return -1


def _whole(value: float | int | str | None) -> int | None:
    """Return a whole number that may be written as a string, None for anything else."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= 20 else None
    return None if value is None or value != int(value) else int(value)


def _nanoseconds(value: int | str | None, path: str, problems: list[Problem]) -> int:
    """Return an instant, 0 where there is a problem with it."""
    at_ns = _whole(value)
    if value is None or at_ns == 0:
        problems.append(Problem("field-missing", path, "the span does not tell this time", "nothing", "nanoseconds"))
    elif at_ns is None:
        problems.append(Problem("time-unreadable", path, "no instant can be read", str(value)[:60], "nanoseconds"))
    elif not 0 < at_ns <= HORIZON_NS:
        message, wanted = "the time lies beyond the clock", f"1 … {HORIZON_NS}"
        problems.append(Problem("time-beyond-horizon", path, message, str(at_ns)[:60], wanted))
    else:
        return at_ns
    return 0
