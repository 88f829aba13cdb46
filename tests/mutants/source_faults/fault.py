"""One fault of the source, as the lists in this package have them."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A single fault: a text of a file and what stands in its place.

    Attributes
    ----------
    name : str
        Room and number, such as ``spec-07``; what it is called in results.
    file : str
        From the project's root.
    text, instead : str
        `text` occurs exactly once in the file.
    why : str
        What is wrong then.
    tests : tuple of str
        The tests, as pytest takes them, one of which at least must fail.
    equivalent : str
        Why no test can tell, where that is so; such a fault is tried all the same.
    profile : str
        Hypothesis profile of the run.
    """

    name: str
    file: str
    text: str
    instead: str
    why: str
    tests: tuple[str, ...]
    equivalent: str = ""
    profile: str = "mutants"

    @property
    def room(self) -> str:
        """The folder that it is in."""
        return self.file.partition("/")[0]

    @property
    def fingerprint(self) -> str:
        """Changes when the fault or its tests change, so that a result of another fault is not taken for its own."""
        parts = (self.file, self.text, self.instead, *self.tests, self.profile)
        return sha256("\0".join(parts).encode()).hexdigest()[:16]
