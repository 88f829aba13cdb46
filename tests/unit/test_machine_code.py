"""Kept machine code: where it lies, what it depends on, who makes it, and what happens where it cannot be kept.

A small package with an entry and a callee stands for ours; each run is a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import playproof_kernel  # the key is made of what is loaded
import playproof_native
import pytest
import unprivileged
from playproof_native import modes, notices, store
from playproof_native.functions import ENTRIES, Entry, Marked
from playproof_native.modes import Mode

CALLEE = """
from playproof_native import compiled

@compiled
def scaled(number):
    return number * FACTOR
"""
DOOR = """
import numpy as np
from playproof_native import compiled_entry
from toy.callee import scaled

@compiled_entry
def count(numbers):
    total = 0
    for number in numbers:
        total += scaled(number)
    return total
"""
CALL = """
import sys
import numpy as np
import playproof_native.compiler as compiler
from toy.door import count
compiler.compiling.append(lambda name: print("compiling", name))
print(count(np.arange(4)))
"""


class Site:
    """A folder with the small package and a copy of the room for machine code, and a home beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "site"
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        shutil.copytree(
            Path(playproof_native.__file__).parent,
            self.packages / "playproof_native",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (self.packages / "toy").mkdir()
        (self.packages / "toy" / "__init__.py").touch()
        (self.packages / "toy" / "door.py").write_text(DOOR)
        self.change(factor=1)

    def change(self, factor: int) -> None:
        (self.packages / "toy" / "callee.py").write_text(CALLEE.replace("FACTOR", str(factor)))

    def environment(self, **more: str) -> dict[str, str]:
        fixed = {"PYTHONPATH": str(self.packages), "HOME": str(self.home), "XDG_CACHE_HOME": "", store.VARIABLE: ""}
        # The interpreter would write into the package's folder, and prove nothing of ours.
        return {**fixed, "PYTHONDONTWRITEBYTECODE": "1", modes.VARIABLE: "always", **more}

    def call(self, code: str = CALL, **more: str) -> tuple[str, str]:
        """Run `code` and return what it printed, and what was said on standard error."""
        done = unprivileged.run([sys.executable, "-c", code], self.environment(**more))
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def start(self, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CALL],
            env={**os.environ, **self.environment(**more)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kept(self, folder: Path | None = None) -> list[Path]:
        """Return the files of machine code below `folder`, the home by default."""
        return sorted((folder or self.home).rglob(f"*{store.SUFFIX}"))


COMPILED = "compiling toy.door.count\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_changed_callee_is_compiled_anew_where_only_the_home_may_be_written(site: Site) -> None:
    """Numba alone ran the old code: it judges an entry by its own file."""
    unprivileged.write_protect(site.packages, protected=True)
    assert site.call() == (COMPILED + "6\n", "")
    assert site.call() == ("6\n", "")
    unprivileged.write_protect(site.packages, protected=False)
    site.change(factor=1000)
    unprivileged.write_protect(site.packages, protected=True)
    assert site.call() == (COMPILED + "6000\n", "")
    assert len({path.parent for path in site.kept()}) == 2
    assert not site.kept(site.packages)
    unprivileged.write_protect(site.packages, protected=False)


def test_a_package_that_may_be_written_keeps_its_code_itself(site: Site) -> None:
    assert site.call() == (COMPILED + "6\n", "")
    assert len(site.kept(site.packages)) == 1
    assert not site.kept()
    # Who may only read it uses it all the same.
    unprivileged.write_protect(site.packages, protected=True)
    assert site.call() == ("6\n", "")
    unprivileged.write_protect(site.packages, protected=False)


def test_where_nothing_may_be_written_each_run_compiles_and_says_so_once(site: Site) -> None:
    for folder in (site.packages, site.home):
        unprivileged.write_protect(folder, protected=True)
    for _ in range(2):
        printed, said = site.call(CALL + "print(count(np.arange(4.0)))")
        assert printed == f"{COMPILED}6\n{COMPILED}6.0\n"
        assert said.count("\n") == 1
        assert "compiled code cannot be kept" in said
        assert store.VARIABLE in said
    for folder in (site.packages, site.home):
        unprivileged.write_protect(folder, protected=False)


def test_a_folder_of_ones_own(site: Site, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen" / "deep"
    assert site.call(**{store.VARIABLE: str(chosen)}) == (COMPILED + "6\n", "")
    assert len(site.kept(chosen)) == 1
    assert not site.kept() + site.kept(site.packages)


def test_two_processes_at_once_compile_once(site: Site) -> None:
    running = [site.start() for _ in range(3)]
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(printed) == ["6\n", "6\n", COMPILED + "6\n"]
    assert len(site.kept(site.packages)) == 1


# Runs a call whose code another process keeps after this one has found none, and before it takes the lock.
LATE = """
import subprocess, sys
import playproof_native.compiler as compiler
from playproof_native import store
find = store.writable
def let_another_compile(entry):
    store.writable = find
    print("other:", subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True).stdout, end="")
    return find(entry)
store.writable = let_another_compile
"""


def test_code_that_another_keeps_just_before_the_lock_is_taken_is_used(site: Site) -> None:
    printed, said = site.call(f"CALL = {CALL!r}\n{LATE}{CALL}")
    assert (printed, said) == (f"other: {COMPILED}6\n6\n", "")


def _lock_of(site: Site) -> filelock.BaseFileLock:
    """Return the lock beside the kept code, which a run has made."""
    site.call()
    (kept,) = site.kept(site.packages)
    kept.unlink()
    return filelock.FileLock(kept.parent / "toy.door.lock")


def test_who_waits_says_so_and_goes_on_when_the_other_is_done(site: Site) -> None:
    lock = _lock_of(site)
    lock.acquire()
    process = site.start()
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "waiting for another process that compiles the same code" in said
    lock.release()
    assert process.communicate()[0] == COMPILED + "6\n"


def test_who_waits_too_long_compiles_itself(site: Site) -> None:
    with _lock_of(site):
        printed, said = site.call(PLAYPROOF_COMPILE_WAIT="2")
    assert printed == COMPILED + "6\n"
    assert "another process has compiled for 2 s; compiling the same code here" in said


def test_the_lock_of_a_killed_process_is_gone(site: Site) -> None:
    lock = _lock_of(site)
    hold = f"filelock.FileLock({str(lock.lock_file)!r}).acquire()"
    code = f"import filelock, sys; {hold}; print(1, flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"1\n"
    holder.kill()
    holder.communicate()
    assert site.call() == (COMPILED + "6\n", "")


@pytest.mark.parametrize("harm", ["empty", "cut in the head", "cut", "one bit", "another's"])
def test_a_damaged_entry_is_compiled_anew(site: Site, harm: str) -> None:
    site.call()
    (kept,) = site.kept(site.packages)
    whole = kept.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    kept.write_bytes(
        {
            "empty": b"",
            "cut in the head": whole[:10],
            "cut": whole[: len(whole) * 2 // 3],
            "one bit": bytes(flipped),
            "another's": b"an archive of something else",
        }[harm]
    )
    assert site.call() == (COMPILED + "6\n", "")
    assert site.call() == ("6\n", "")


def test_code_for_another_processor_is_another_s(site: Site) -> None:
    assert site.call()[0] == COMPILED + "6\n"
    assert site.call(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")[0] == COMPILED + "6\n"
    assert len(site.kept(site.packages)) == 2
    assert site.call()[0] == "6\n"


@pytest.mark.parametrize(
    ("place", "other"),
    [
        ("playproof_native.store._processor", lambda: ["flags : fpu"]),
        ("playproof_native.store._version", lambda library: "0.0"),
        ("platform.machine", lambda: "riscv64"),
        ("sys.implementation.cache_tag", "cpython-399"),
        ("playproof_native.store._sources", lambda module: [("kernel/loop.py", b"changed")]),
    ],
)
def test_the_key_holds_all_that_code_depends_on(monkeypatch: pytest.MonkeyPatch, place: str, other: object) -> None:
    before = store.key_of.__wrapped__("playproof_kernel")
    assert before == store.key_of("playproof_kernel")
    monkeypatch.setattr(place, other)
    assert store.key_of.__wrapped__("playproof_kernel") != before


def test_a_room_s_key_holds_the_rooms_below_and_no_other() -> None:
    names = {name.partition("/")[0] for name, _ in store._sources(playproof_kernel.__name__)}
    assert names == {"playproof_native", "playproof_spec", "playproof_kernel"}
    outside = dict(store._sources(__name__))
    assert {name.partition("/")[0] for name in outside} == {__name__, *store.ROOMS}
    assert outside[__name__] == Path(__file__).read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems are not looked at")
def test_a_folder_that_others_may_write_is_not_used(site: Site) -> None:
    site.call()
    (kept,) = site.kept(site.packages)
    kept.parent.chmod(0o777)
    printed, _ = site.call()
    assert printed == COMPILED + "6\n"
    assert len(site.kept()) == 1  # the next candidate took it


def test_code_that_root_has_made_may_be_read_by_others(site: Site) -> None:
    site.call()
    (kept,) = site.kept(site.packages)
    assert kept.stat().st_mode & 0o777 == 0o644


def test_other_sources_code_is_removed_in_the_end(site: Site) -> None:
    """Of the same room: others have keys of their own."""
    cache = site.packages / "playproof_native" / "__pycache__"
    for name in ("toy.other", "playproof_kernel"):
        (cache / f"{name}-{'0' * store.KEY_DIGITS}").mkdir(parents=True)
    for factor in range(store.KEYS_MAX + 2):
        site.change(factor)
        site.call()
    assert len(list(cache.glob("toy.door-*"))) == store.KEYS_MAX
    assert len(list(cache.iterdir())) == store.KEYS_MAX + 2


def test_a_room_has_one_key_whatever_its_modules_are() -> None:
    """With a key for each of seven modules, a second version's removed some of the first's that were in use."""
    entries = [entry for entry in ENTRIES if entry.name.startswith("playproof_kernel.")]
    assert len({entry.marked.function.__module__ for entry in entries}) > 5
    assert len({store.folders(entry)[0] for entry in entries}) == 1


def test_an_unknown_numba_compiles_in_its_own_way(site: Site) -> None:
    """The same results, and the same keeping."""
    plain = "from playproof_native import linking\nlinking.TESTED = ((0, 1), (0, 2))\n" + CALL
    assert site.call(plain) == (COMPILED + "6\n", "")
    assert site.call(plain) == ("6\n", "")


def test_interpreted_needs_no_compiler(site: Site) -> None:
    code = "import sys, numpy as np\nfrom toy.door import count\nprint(count(np.arange(4)), 'numba' in sys.modules)"
    for setting in ({modes.VARIABLE: "never"}, {"NUMBA_DISABLE_JIT": "1"}):
        assert site.call(code, **setting) == ("6 False\n", "")
    assert not site.kept(site.folder)


def test_a_call_goes_on_compiled_as_soon_as_code_is_kept(site: Site) -> None:
    code = """
import subprocess, sys
import numpy as np
from playproof_native import running, Mode
from toy.door import count
with running(Mode.UNTIL_KEPT):
    print(count(np.arange(4)), "numba" in sys.modules)
    subprocess.run([sys.executable, "-c", "import numpy as np; from toy.door import count; count(np.arange(4))"])
    import time; time.sleep(0.5)
    print(count(np.arange(4)), "numba" in sys.modules)
"""
    assert site.call(code) == ("6 False\n6 True\n", "")


# The choice -----------------------------------------------------------------------------------------------------------


def _entry(monkeypatch: pytest.MonkeyPatch, *, kept: bool) -> Entry:
    monkeypatch.setattr(store, "has", lambda entry: kept)
    return Entry(Marked(lambda: None, allocates=False))


@pytest.mark.parametrize(
    ("setting", "kept", "seconds", "mode"),
    [
        ("always", False, 0.0, Mode.COMPILED),
        ("never", True, 1000.0, Mode.INTERPRETED),
        ("auto", True, modes.TRIFLE_S, Mode.INTERPRETED),
        ("auto", True, modes.TRIFLE_S + 0.01, Mode.COMPILED),
        ("auto", False, modes.TRIFLE_S, Mode.INTERPRETED),
        ("auto", False, 20.0, Mode.UNTIL_KEPT),
        ("auto", False, 20.01, Mode.COMPILED),
        ("auto", False, float("inf"), Mode.COMPILED),
    ],
)
def test_the_choice(
    monkeypatch: pytest.MonkeyPatch, setting: modes.Setting, kept: bool, seconds: float, mode: Mode
) -> None:
    entry = _entry(monkeypatch, kept=kept)
    assert modes.choose(setting, [entry], seconds, patience_s=20.0) is mode


def test_a_setting_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    monkeypatch.setenv(modes.VARIABLE, "sometimes")
    with pytest.raises(ValueError, match="PLAYPROOF_COMPILE is 'sometimes'; it may be auto, always, never"):
        modes.default_setting()
    monkeypatch.setenv(modes.VARIABLE, "")
    assert modes.default_setting() == "auto"


# Notices --------------------------------------------------------------------------------------------------------------


def test_how_long_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, seconds in (("0.5", 0.5), ("", notices.AFTER_S), ("-1", notices.AFTER_S), ("soon", notices.AFTER_S)):
        monkeypatch.setenv(notices.VARIABLE, said)
        assert notices._after_s() == seconds
    monkeypatch.delenv(notices.VARIABLE)
    assert notices._after_s() == notices.AFTER_S


def test_a_line_is_said_once_and_only_of_what_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    said = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        said.set()

    with notices.shown_by(tell):
        with notices.patience("nothing to see", after_s=3600.0):
            pass
        with notices.patience("counting sheep (a test)", after_s=0.0):
            assert said.wait(60)
        notices.say("counting sheep (a test)")
        with notices.quiet():
            notices.say("hush (a test)")
    assert told == ["counting sheep (a test)"]
    notices.say("to standard error (a test)")
    assert capsys.readouterr().err == "playproof: to standard error (a test)\n"


@pytest.mark.parametrize("name", store.SETTINGS)
def test_the_key_holds_each_setting_of_the_compiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name, raising=False)
    before = store.key_of.__wrapped__("playproof_kernel.runs.loop")
    monkeypatch.setenv(name, "7")
    assert store.key_of.__wrapped__("playproof_kernel.runs.loop") != before


def test_the_key_holds_every_byte_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.key_of.__wrapped__("playproof_kernel.runs.loop")
    sources = list(store._sources("playproof_kernel.runs.loop"))
    for place in (0, len(sources) // 2, len(sources) - 1):
        name, source = sources[place]
        changed = [*sources[:place], (name, source[:-1] + bytes([source[-1] ^ 1])), *sources[place + 1 :]]
        monkeypatch.setattr(store, "_sources", lambda module, changed=changed: changed)
        assert store.key_of.__wrapped__("playproof_kernel.runs.loop") != before
