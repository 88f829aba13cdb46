"""Faults of the room that keeps machine code and chooses how functions run."""

from __future__ import annotations

from source_faults.fault import Fault

CHOICE = ("tests/unit/test_machine_code.py", "-k", "choice or setting or key")

NATIVE: tuple[Fault, ...] = (
    Fault(
        "native-01",
        "native/playproof_native/modes.py",
        "return Mode.UNTIL_KEPT if interpreted_s <= patience_s else Mode.COMPILED",
        "return Mode.UNTIL_KEPT if interpreted_s >= patience_s else Mode.COMPILED",
        "what takes long is interpreted, and what is short waits for the compiler",
        CHOICE,
    ),
    Fault(
        "native-02",
        "native/playproof_native/modes.py",
        "    if said not in SETTINGS:\n",
        "    if False:\n",
        "a setting that is none is accepted",
        CHOICE,
    ),
    Fault(
        "native-03",
        "native/playproof_native/store.py",
        "facts += [f\"{name}={os.environ.get(name, '')}\" for name in SETTINGS]",
        "facts += []",
        "code made under other settings of Numba counts as this one",
        CHOICE,
    ),
    Fault(
        "native-04",
        "native/playproof_native/store.py",
        '        digest.update(name.encode() + b"\\0" + len(source).to_bytes(8, "little") + source)\n',
        "        digest.update(name.encode())\n",
        "code of older sources counts as this one's",
        CHOICE,
    ),
    Fault(
        "native-05",
        "native/playproof_native/store.py",
        "packages = dict.fromkeys((*(BELOW if own in ROOMS else ROOMS), own))",
        "packages = dict.fromkeys((own,))",
        "code stays when a room below it has changed",
        CHOICE,
    ),
)
