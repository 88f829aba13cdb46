"""The door of the command line: what `playproof` and `python -m playproof` run."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # asked by scripts, often: it waits for no library
        from playproof import __version__

        print(f"playproof {__version__}")
        return 0
    from playproof.cli import main as run

    return run(given)


if __name__ == "__main__":
    sys.exit(main())
