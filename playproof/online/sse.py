"""Server-sent events as their specification has them (WHATWG HTML, section 9.2): bytes in, the data of events out.

A mark at the very beginning is dropped. A line ends with CR LF, LF or CR; what stands behind the first colon is its
value, less one space. Lines of `data` are joined with line feeds until an empty line, which ends the event; one without
data is none, and one that the stream's end cuts off is none either. Other fields (`event`, `id`, `retry`) and comments
mean nothing to completions.
"""

from __future__ import annotations

_MARK = b"\xef\xbb\xbf"
# Bytes of one line, and of the data of one event.
MAX_EVENT_BYTES = 1 << 20


class TooLong(Exception):
    """A line or an event is larger than `MAX_EVENT_BYTES`; the message says which."""


class Events:
    """The parser of one stream.

    Examples
    --------
    >>> events = Events()
    >>> events.feed(b"data: a\\r\\rda"), events.feed(b"ta:b\\ndata: c\\n\\n")
    ([b'a'], [b'b\\nc'])
    """

    __slots__ = ("_after_return", "_begun", "_data", "_held", "_held_bytes", "_size")

    def __init__(self) -> None:
        self._begun = self._after_return = False
        self._held: list[bytes] = []  # of a line that is not whole
        self._held_bytes = 0
        self._data: list[bytes] = []
        self._size = 0

    @property
    def unfinished(self) -> bool:
        """Whether bytes came that no event has ended."""
        return bool(self._held_bytes or self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in bytes and return the data of the events that they end.

        Raises
        ------
        TooLong
        """
        if self._after_return and data:
            self._after_return = False
            if data.startswith(b"\n"):  # the second half of a line end that was taken already
                data = data[1:]
        if b"\r" in data:
            self._after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *more = data.split(b"\n")
        self._hold(first)
        if not more:
            return []
        lines = [b"".join(self._held), *more]
        self._held.clear()
        self._held_bytes = 0
        self._hold(lines.pop())
        return self._ended_by(lines)

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self._held_bytes += len(part)
            if self._held_bytes > MAX_EVENT_BYTES:
                raise TooLong(f"a line of the stream is longer than {MAX_EVENT_BYTES:,} bytes")

    def _ended_by(self, lines: list[bytes]) -> list[bytes]:
        """Return the data of the events that whole lines end."""
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(_MARK)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data.clear()
                    self._size = 0
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value) + 1
                if self._size > MAX_EVENT_BYTES:
                    raise TooLong(f"an event of the stream is longer than {MAX_EVENT_BYTES:,} bytes")
        return events
