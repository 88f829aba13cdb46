"""Checks of single values against annotated types, with findings that name the field.

A type is checked strictly, as written (`true` is not 1, `"8"` is not 8); its `Meta.description` is what a finding
says was wanted. The Python classes and the YAML configuration share these checks, so that both give the same answers.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta
from playproof_spec.findings import Finding, Where, finding
from playproof_spec.graph import MAX_TOKENS

# Bounds on a deployment: far above real ones, low enough that no array of the kernel outgrows a laptop.
MAX_WORKERS = 1024
MAX_BLOCKS = 2**24
MAX_BLOCKS_ALL_WORKERS = 2**26
MAX_BLOCK_SIZE = 2**20
MAX_SEQUENCES = 2**16
MAX_LANES = 2**20
MAX_PASS_MS = 3_600_000.0
SPEEDUP_MIN, SPEEDUP_MAX = 1e-6, 1e6
BANDWIDTH_MIN, BANDWIDTH_MAX = 1e-6, 1e6
MAX_SEED = 2**64 - 1
MAX_DRAFTS = 16
MAX_WEIGHT = 1e6
# A thousand days; far from the end of the clock.
MAX_SECONDS = 86_400_000.0

Workers = Annotated[int, Meta(ge=1, le=MAX_WORKERS, description=f"a whole number from 1 to {MAX_WORKERS}")]
Positive = Annotated[int, Meta(ge=1, le=MAX_TOKENS, description="a whole number ≥ 1")]
Blocks = Annotated[int, Meta(ge=1, le=MAX_BLOCKS, description=f"a whole number from 1 to {MAX_BLOCKS}")]
BlockSize = Annotated[int, Meta(ge=1, le=MAX_BLOCK_SIZE, description=f"a whole number from 1 to {MAX_BLOCK_SIZE}")]
Sequences = Annotated[int, Meta(ge=1, le=MAX_SEQUENCES, description=f"a whole number from 1 to {MAX_SEQUENCES}")]
Lanes = Annotated[int, Meta(ge=1, le=MAX_LANES, description=f"a whole number from 1 to {MAX_LANES}")]
PassMs = Annotated[float, Meta(ge=0, le=MAX_PASS_MS, description=f"milliseconds from 0 to {MAX_PASS_MS:.0f}")]
BoundMs = Annotated[float, Meta(gt=0, le=MAX_SECONDS * 1000, description="milliseconds above 0")]
Speedup = Annotated[
    float, Meta(ge=SPEEDUP_MIN, le=SPEEDUP_MAX, description=f"a number from {SPEEDUP_MIN:g} to {SPEEDUP_MAX:g}")
]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS, description=f"a whole number from 0 to {MAX_TOKENS}")]
Bandwidth = Annotated[
    float,
    Meta(ge=BANDWIDTH_MIN, le=BANDWIDTH_MAX, description=f"GB per second from {BANDWIDTH_MIN:g} to {BANDWIDTH_MAX:g}"),
]
# Of a link to host memory; 0 stands for no time at all.
LinkBandwidth = Annotated[
    float, Meta(ge=0, le=BANDWIDTH_MAX, description=f"GB per second from 0 (at once) to {BANDWIDTH_MAX:g}")
]
Drafts = Annotated[int, Meta(ge=1, le=MAX_DRAFTS, description=f"a whole number from 1 to {MAX_DRAFTS}")]
Rates = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(max_length=64, description="a list of chances from 0 to 1")
]
# That a seed is below 2^64 is checked apart: a bound of `Meta` does not reach that far.
Seed = Annotated[int, Meta(ge=0, description=f"a whole number from 0 to {MAX_SEED}")]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description=f"seconds from 0 to {MAX_SECONDS:.0f}")]
SomeSeconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS, description=f"seconds above 0, up to {MAX_SECONDS:.0f}")]
Conservativeness = Annotated[float, Meta(gt=0, le=1000, description="a number above 0, up to 1000")]
Weight = Annotated[float, Meta(ge=0, le=MAX_WEIGHT, description=f"a number from 0 to {MAX_WEIGHT:g}")]
Gigabytes = Annotated[float, Meta(gt=0, le=1e9, description="gigabytes above 0")]
SpareGigabytes = Annotated[float, Meta(ge=0, le=1e9, description="gigabytes from 0")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
ContextLength = Positive | Literal["max"]

_PLAIN = {bool: "true or false", str: "text", int: "a whole number", float: "a number", list: "a list"}


def wanted(kind: Any) -> str:
    """Return in words what values `kind` takes.

    Examples
    --------
    >>> wanted(Positive)
    'a whole number ≥ 1'
    >>> wanted(bool)
    'true or false'
    """
    if get_origin(kind) is Annotated:
        described = [meta.description for meta in get_args(kind)[1:] if isinstance(meta, Meta) and meta.description]
        return described[0] if described else wanted(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " or ".join(str(value) for value in get_args(kind))
    if get_origin(kind) is list:
        return "a list of " + {str: "texts"}.get(get_args(kind)[0], "values")
    arms = [arm for arm in get_args(kind) if arm is not type(None)]
    if arms:
        return " or ".join(wanted(arm) for arm in arms)
    return _PLAIN.get(kind, getattr(kind, "__name__", "a mapping"))


def check(kind: Any, value: object, where: Where) -> tuple[Any, Finding | None]:
    """Check one value.

    Parameters
    ----------
    kind : type
        What the value must be; bounds and wording come from its `Meta`.
    value : object
    where : Where
        The place that the finding names.

    Returns
    -------
    value : Any
        As `kind` has it (a whole number becomes a float where a float is wanted), or None.
    problem : Finding or None
    """
    try:
        return msgspec.convert(value, kind), None
    except msgspec.ValidationError as error:
        code = "config-type" if ", got `" in str(error) else "config-value"
        name = where.field.rpartition(".")[2] or where.field
        value_is = "no such value" if isinstance(value, str) else "out of range"
        problem = f"{name} is {'of the wrong type' if code == 'config-type' else value_is}"
        return None, finding(code, problem, where=where, found=as_written(value), wanted=wanted(kind))


def as_written(value: object) -> str:
    """Return a value as a configuration file would write it.

    Examples
    --------
    >>> as_written(True), as_written(None), as_written("eight"), as_written([8, "x"])
    ('true', 'null', 'eight', '[8, "x"]')
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        # YAML knows mappings with dates as keys, and lists that hold themselves.
        return repr(value)
