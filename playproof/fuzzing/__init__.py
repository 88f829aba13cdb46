"""Replaying variants of a user's own run, each in several ways that have to agree (docs/fuzzing.md)."""

from playproof.fuzzing.hunt import Hunt, Tried, fuzz

__all__ = ["Hunt", "Tried", "fuzz"]
