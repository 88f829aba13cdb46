"""Running a command as somebody who must obey the permissions of files, also where the tests run as root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_CAPBSET_DROP = 24
# Root's powers to write and to read whatever the permissions say.
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def _obey_permissions() -> None:
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, bound by permissions, with `environment` over this one; output is captured."""
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_obey_permissions if os.geteuid() == 0 else None,
    )


def write_protect(folder: Path, *, protected: bool) -> None:
    """Take from (or give back to) everybody the right to write into a folder and all below it."""
    for path in sorted([folder, *folder.rglob("*")], reverse=protected):
        if path.is_dir():
            path.chmod(0o555 if protected else 0o755)
