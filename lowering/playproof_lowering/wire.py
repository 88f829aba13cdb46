"""Foreign JSON against its shape: every wrong value and every unknown field of a record, not only the first.

The fast path of a reader is one strict decode. When it fails, :func:`explain` takes the record apart field by field
and says all that is wrong, where, and what was there.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
from playproof_spec.findings import Findings, Severity, Where, finding, shown

from playproof_lowering.runs import NOT_A_LIST, TOO_LARGE

__all__ = [
    "DecodeErrors",
    "Explained",
    "Problem",
    "UnknownFields",
    "decoded",
    "explain",
    "hash_ids_problem",
    "joined",
    "nearest",
    "path_at",
    "report",
]

DecodeErrors: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

# Broken numbers are patched and the search goes on; a record with more of them than this is not worth reading further.
MAX_NOT_FINITE: Final = 100
_NOT_FINITE = re.compile(rb"[+-]?(?:NaN|nan|Infinity|infinity|inf|Inf)\b")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^"{}\[\]]+')
_BYTE = re.compile(r"\(byte (\d+)\)")
_EXPECTED = re.compile(r"Expected `([^`]*)`")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a record. `path` is within the record; the rest as in a finding."""

    code: str
    path: str
    message: str
    found: str = ""
    wanted: str = ""


@dataclass(slots=True)
class Explained:
    """What is wrong with a record.

    Attributes
    ----------
    problems : list[Problem]
    unknown : list[tuple[str, str, str]]
        Unknown fields: (path of the object that has it, name, nearest known name or empty).
    cleaned : bytes
        The record without its unknown fields; of use when there are no problems.
    """

    problems: list[Problem] = field(default_factory=list)
    unknown: list[tuple[str, str, str]] = field(default_factory=list)
    cleaned: bytes = b""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like `name`, or an empty string when none is like it."""
    close = difflib.get_close_matches(name[:80], sorted(known), n=1, cutoff=0.6)
    return close[0] if close else ""


def explain(data: bytes, shape: Any) -> Explained:
    """Take a record apart.

    Parameters
    ----------
    data : bytes
        One JSON text.
    shape : type
        A strict struct (``forbid_unknown_fields``), a tagged union of them, a list of such, or a plain type.
    """
    result = Explained()
    data = _patch_not_finite(data, result)
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except DecodeErrors as error:
        result.problems.append(_syntax(data, error))
        return result
    result.cleaned = _check(data.strip(), shape, "", result)
    return result


Shape = TypeVar("Shape")


class _Typed(msgspec.Struct):
    type: str = ""


_TYPED: Final = msgspec.json.Decoder(_Typed)


def decoded(
    decoder: msgspec.json.Decoder[Shape],
    data: bytes | msgspec.Raw,
    where: Where,
    findings: Findings,
    prefix: str = "",
    types: frozenset[str] | None = None,
) -> Shape | None:
    """Decode a record that may have fields we do not know; what is wrong with it goes to `findings`.

    Parameters
    ----------
    decoder : msgspec.json.Decoder
        Of a struct that passes over unknown fields.
    prefix : str
        JSON path of `data` within the record.
    types : frozenset of str, optional
        Records of other types may have fields of the same names with other meanings, and are passed over when they do
        not fit.

    Returns
    -------
    struct or None
        None when something is wrong.
    """
    try:
        return decoder.decode(data)
    except DecodeErrors as error:
        if types is not None and _type_of(data) not in (None, *types):
            return None
        problems = explain(bytes(data), decoder.type).problems
        report(findings, problems or [_value(bytes(data), error, "")], where, prefix)
        return None


def _type_of(data: bytes | msgspec.Raw) -> str | None:
    """Return the type of a record that is sound JSON; of one that is not, None stands for every type."""
    try:
        return _TYPED.decode(data).type
    except DecodeErrors:
        return None


def _patch_not_finite(data: bytes, result: Explained) -> bytes:
    """Note every NaN and Infinity, and return the text with zeros instead, so that the rest can be checked too."""
    for _ in range(MAX_NOT_FINITE):
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except RecursionError:
            return data
        except DecodeErrors as error:
            at = _byte_of(error)
            # The decoder stops at the letter; a sign stands before it.
            start = at - 1 if at > 0 and data[at - 1 : at] in (b"-", b"+") else at
            match = _NOT_FINITE.match(data, start) if at >= 0 else None
            if match is None:
                return data
            result.problems.append(
                Problem(
                    "time-not-finite",
                    path_at(data, start),
                    "the value is not a finite number",
                    match.group().decode(),
                    "a finite number",
                )
            )
            data = data[:start] + b"0".ljust(len(match.group())) + data[match.end() :]
        else:
            return data
    return data


def _byte_of(error: BaseException) -> int:
    match = _BYTE.search(str(error))
    return int(match.group(1)) if match else -1


def _syntax(data: bytes, error: BaseException) -> Problem:
    if isinstance(error, RecursionError):
        return Problem("json-too-deep", "", "the JSON is nested too deeply", shown(_text(data[:40])))
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):
        return Problem("encoding-not-utf8", "", "the text is not valid UTF-8", _bad_bytes(data), "UTF-8")
    at = _byte_of(error)
    if "trailing" in str(error):
        # The decoder counts from 1 past what it skipped; the first byte that is no space is what the author sees.
        rest = data[max(at - 1, 0) :].lstrip()
        return Problem("json-trailing", "", "something stands behind the record", shown(_text(rest[:60])), "nothing")
    if at < 0:
        path = path_at(data, len(data))
        return Problem("json-malformed", path, "the JSON ends too early", shown(_text(data[-40:])), "the rest of it")
    reason = str(error).removeprefix("JSON is malformed: ")
    return Problem("json-malformed", path_at(data, at), f"broken JSON: {reason}", shown(_text(data[at : at + 40])))


def _bad_bytes(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{data[error.start : error.start + 4].hex(' ').upper()} at byte {error.start}"
    return ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def path_at(data: bytes, offset: int) -> str:
    """Return the JSON path of the value at byte `offset`, as far as the text up to there is sound.

    Examples
    --------
    >>> path_at(b'{"a": [1, {"b": NaN}]}', 16)
    'a[1].b'
    """
    stack: list[str | int] = []
    name = ""
    for match in _TOKEN.finditer(data, 0, offset):
        token = match.group()
        head = token[:1]
        if head == b'"':
            name = _text(token[1:-1])
        elif head == b"{":
            stack.append("")
        elif head == b"[":
            stack.append(0)
        elif head in b"}]":
            if stack:
                stack.pop()
        elif stack:
            top = stack[-1]
            if isinstance(top, int):
                stack[-1] = top + token.count(b",")
            elif b"," in token:
                stack[-1] = ""
            elif b":" in token:
                stack[-1] = name
    path = ""
    for part in stack:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path and part else part)
    return path


def _check(raw: bytes, shape: Any, path: str, result: Explained) -> bytes:
    """Note what is wrong with `raw`; return it without unknown fields."""
    try:
        msgspec.json.decode(raw, type=shape)
    except DecodeErrors as error:
        structs, item = _structs_in(shape)
        if structs and raw[:1] == b"{":
            return _check_object(raw, structs, path, result)
        if item is not None and raw[:1] == b"[":
            parts = msgspec.json.decode(raw, type=list[msgspec.Raw])
            checked = [_check(bytes(part), item, f"{path}[{place}]", result) for place, part in enumerate(parts)]
            return b"[" + b",".join(checked) + b"]"
        result.problems.append(_value(raw, error, path))
    return raw


def _structs_in(shape: Any) -> tuple[tuple[type[msgspec.Struct], ...], Any]:
    """Return the structs that `shape` allows, and the shape of the items of the list that it allows."""
    options = get_args(shape) if get_origin(shape) in (Union, types.UnionType) else (shape,)
    structs = tuple(o for o in options if isinstance(o, type) and issubclass(o, msgspec.Struct))
    items = [get_args(o)[0] for o in options if get_origin(o) is list]
    return structs, items[0] if items else None


def _check_object(raw: bytes, structs: tuple[type[msgspec.Struct], ...], path: str, result: Explained) -> bytes:
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except DecodeErrors as error:
        # The values are sound JSON; only a name can still be broken.
        result.problems.append(_value(raw, error, path))
        return raw
    struct = structs[0]
    tag_field = struct.__struct_config__.tag_field
    if tag_field is not None:
        tags = {str(option.__struct_config__.tag): option for option in structs}
        chosen = _tagged(fields.get(tag_field), tags, f"{path}.{tag_field}".lstrip("."), result)
        if chosen is None:
            return raw
        struct = chosen
    known = {info.encode_name: info for info in msgspec.structs.fields(struct)}
    kept: dict[str, bytes] = {}
    for name, value in fields.items():
        here = f"{path}.{name}" if path else name
        if name in known:
            kept[name] = _check(bytes(value), known[name].type, here, result)
        elif name == tag_field:
            kept[name] = bytes(value)
        else:
            result.unknown.append((path, name, nearest(name, known)))
    for name, info in known.items():
        if info.required and name not in fields:
            here = f"{path}.{name}" if path else name
            result.problems.append(
                Problem("field-missing", here, f"`{name}` is missing", "nothing", _wanted(info.type))
            )
    return msgspec.json.encode({name: msgspec.Raw(value) for name, value in kept.items()})


def _tagged(
    raw: msgspec.Raw | None, tags: dict[str, type[msgspec.Struct]], path: str, result: Explained
) -> type[msgspec.Struct] | None:
    """Return the struct that the tag names, or note that there is none."""
    wanted = " or ".join(tags)
    if raw is None:
        result.problems.append(Problem("field-missing", path, "the entry has no type", "nothing", wanted))
        return None
    try:
        tag = msgspec.json.decode(raw, type=str)
    except DecodeErrors as error:
        result.problems.append(_value(bytes(raw), error, path))
        return None
    if tag not in tags:
        result.problems.append(Problem("value-unknown", path, "no such type of entry", shown(tag), wanted))
    return tags.get(tag)


def _value(raw: bytes, error: BaseException, path: str) -> Problem:
    if isinstance(error, RecursionError | UnicodeDecodeError) or not isinstance(error, msgspec.ValidationError):
        problem = _syntax(raw, error)
        return Problem(problem.code, path, problem.message, problem.found, problem.wanted)
    if "out of range" in str(error):
        return Problem(
            "number-out-of-range", path, "the number is too large", shown(_text(raw[:60])), "a finite number"
        )
    match = _EXPECTED.search(str(error))
    wanted = match.group(1) if match else ""
    if not path and wanted.startswith("object"):
        return Problem("json-not-object", path, "the record is not an object", shown(_text(raw[:60])), "an object")
    return Problem("field-type", path, "the value has the wrong type", shown(_text(raw[:60])), wanted)


def _wanted(shape: Any) -> str:
    names = {msgspec.Raw: "a list", list: "a list", str: "a string", int: "an integer", float: "a number"}
    origin = get_origin(shape) or shape
    return names.get(origin, "an object")


def report(findings: Findings, problems: Iterable[Problem], where: Where, prefix: str = "") -> None:
    """Add the problems of a record that was read at `where`; `prefix` is the record's own JSON path."""
    for problem in problems:
        findings.add(
            finding(
                problem.code,
                problem.message,
                where=Where(file=where.file, line=where.line, field=shown(joined(prefix, problem.path)), ids=where.ids),
                found=problem.found,
                wanted=problem.wanted,
            )
        )


def joined(prefix: str, path: str) -> str:
    """Return the JSON path of `path` within the value at `prefix`."""
    if not prefix or not path or path.startswith("["):
        return prefix + path
    return f"{prefix}.{path}"


def hash_ids_problem(text: msgspec.Raw, status: int, place: int, path: str) -> Problem:
    """Return what is wrong with a list of hash ids that :class:`~playproof_lowering.runs.RunBuffer` refused."""
    if status == NOT_A_LIST:
        return Problem("field-type", path, "the value has the wrong type", shown(_text(bytes(text)[:60])), "a list")
    items = msgspec.json.decode(text, type=list[msgspec.Raw])
    found = shown(_text(bytes(items[place])[:60]))
    if status == TOO_LARGE:
        return Problem("number-out-of-range", f"{path}[{place}]", "the hash id is too large", found, "below 2**64")
    return Problem("hash-id-invalid", f"{path}[{place}]", "this is no hash id", found, "0 … 2**64 - 1")


class UnknownFields:
    """Counts unknown fields of a file, so that one that stands in every row is told once.

    Parameters
    ----------
    strict : bool
        Make errors of them.
    """

    def __init__(self, strict: bool) -> None:
        self._severity = Severity.ERROR if strict else None
        self._seen: dict[tuple[str, str], tuple[Where, str, int]] = {}

    def note(self, unknown: Iterable[tuple[str, str, str]], where: Where) -> None:
        """Count the fields of one record."""
        for path, name, close in unknown:
            kind = re.sub(r"\[\d+\]", "[]", path)
            first = Where(file=where.file, line=where.line, field=shown(joined(path, name)), ids=where.ids)
            known, close, count = self._seen.get((kind, name), (first, close, 0))
            self._seen[kind, name] = (known, close, count + 1)

    def tell(self, findings: Findings) -> None:
        """Add a finding for each field, at its first place, in the order of those."""
        for (_, name), (where, close, count) in self._seen.items():
            times = f", and {count - 1} more times in this file" if count > 1 else ""
            findings.add(
                finding(
                    "field-unknown",
                    f"no such field{times}" + (f"; did you mean `{close}`?" if close else ""),
                    where=where,
                    found=name,
                    wanted=close,
                    severity=self._severity,
                )
            )
        self._seen.clear()
