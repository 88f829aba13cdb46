"""Shared test set-up: Hypothesis profiles, and where the public traces and reference results lie."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).resolve().parent.parent

# Properties run thousands of small replays, which the default setting would interpret, one after the other.
os.environ.setdefault("PLAYPROOF_COMPILE", "always")
# What is said only because something takes long, a busy machine would have said in any test.
os.environ.setdefault("PLAYPROOF_PATIENCE", "100000")

# `ci` is derandomized so that a red run is everyone's red run; `hunt` and `deep` have fresh seeds.
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "deep",
    max_examples=3000,
    deadline=timedelta(seconds=60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# `watched` is for interpreted runs, which are two orders of magnitude slower.
settings.register_profile(
    "watched",
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # to make an example smaller takes minutes here
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# `hunt` has a budget of time: it asks each property a little, and starts anew with other seeds; see support/hunt.py.
settings.register_profile(
    "hunt",
    max_examples=100,
    deadline=timedelta(seconds=60),
    print_blob=True,
    database=DirectoryBasedExampleDatabase(os.environ.get("PLAYPROOF_EXAMPLES", ROOT / ".hypothesis" / "examples")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# `mutants` tries what `ci` tries, and does not look for the least example with which a test fails.
settings.register_profile(
    "mutants",
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if os.environ.get("PLAYPROOF_MONITOR"):
    import monitor

    monitor.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a hunt an order of its own, so that one with little time reaches everything in the end."""
    if seed := os.environ.get("PLAYPROOF_HUNT_SEED"):
        random.Random(int(seed)).shuffle(items)


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave tests out once a hunt's time is over."""
    until = os.environ.get("PLAYPROOF_HUNT_UNTIL")
    return True if until and time.time() >= float(until) else None


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable, ROOT.parent / "shared" / default))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the public traces; skips where it is absent."""
    folder = _folder("PLAYPROOF_DATA", "data")
    if not folder.is_dir():
        pytest.skip(f"the public traces are not at {folder} (set PLAYPROOF_DATA)")
    return folder


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Folder of the peer's reference results; skips where it is absent."""
    folder = _folder("PLAYPROOF_REFERENCE", "reference")
    if not folder.is_dir():
        pytest.skip(f"the reference results are not at {folder} (set PLAYPROOF_REFERENCE)")
    return folder


@pytest.fixture(scope="session")
def goldens_dir() -> Path:
    """Folder of our own goldens."""
    return ROOT / "tests" / "goldens"
