"""The command line, run within the test's process."""

from __future__ import annotations

from typing import Any

import pytest
from playproof_native import notices

from playproof.cli import main


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line; return (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with notices.quiet():  # whether a test has to wait for another's compilation is no matter of the command's
            code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
