"""Online replay: mock workers that speak the OpenAI API, and the driver that sends a trace to them or to real servers.

Servers and the HTTP client come with the extra ``playproof[online]``; nothing else of playproof needs them.
`docs/online.md` shows who talks to whom.
"""

from __future__ import annotations

from importlib.util import find_spec

# What each package of the extra is imported as.
_EXTRA = ("starlette", "uvicorn", "httptools", "aiohttp")
INSTALL = "pip install 'playproof[online]'"


class MissingExtra(Exception):
    """The packages of the extra are not installed; the message says how to install them."""


def require_extra() -> None:
    """Check that the packages of ``playproof[online]`` are installed.

    Raises
    ------
    MissingExtra
    """
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"online replay needs {', '.join(missing)}: {INSTALL}")
