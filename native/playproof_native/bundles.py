"""Numba's side of `functions.by_reference`: a named tuple of arrays that compiled code is given as one pointer.

A field is a load through that pointer, which the optimiser may move and merge at will: nobody writes into the tuple
while compiled code runs. What the tuple's arrays are may differ from call to call; their types may not.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox


class BundleType(types.Type):
    """The type of a bundle: its class, and the types of its fields."""

    def __init__(self, bundle: Any, kinds: tuple[Any, ...]) -> None:
        self.bundle = bundle
        self.kinds = kinds
        super().__init__(f"{bundle.__module__}.{bundle.__qualname__}({', '.join(map(str, kinds))})")

    @property
    def key(self) -> Any:
        return self.bundle, self.kinds

    @property
    def mangling_args(self) -> tuple[str, tuple[Any, ...]]:
        # The name of every compiled function holds its arguments' types: that of sixty arrays would be a page each.
        return self.bundle.__name__, ()


@register_model(BundleType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, bundle: BundleType) -> None:
        fields = [manager.lookup(kind).get_value_type() for kind in bundle.kinds]
        super().__init__(manager, bundle, ir.LiteralStructType(fields).as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = BundleType

    def generic_resolve(self, bundle: BundleType, name: str) -> Any:
        return bundle.kinds[bundle.bundle._fields.index(name)] if name in bundle.bundle._fields else None


@lower_getattr_generic(BundleType)
def _read_field(context: Any, builder: Any, bundle: BundleType, value: Any, name: str) -> Any:
    at = bundle.bundle._fields.index(name)
    field = builder.load(cgutils.gep_inbounds(builder, value, 0, at))
    field.set_metadata("invariant.load", builder.module.add_metadata([]))
    return impl_ret_borrowed(context, builder, bundle.kinds[at], field)


@unbox(BundleType)
def _from_python(bundle: BundleType, value: Any, c: Any) -> Any:
    struct = c.context.get_value_type(bundle).pointee
    place = cgutils.alloca_once(c.builder, struct)
    failed = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    for at, kind in enumerate(bundle.kinds):
        field = c.unbox(kind, c.pyapi.tuple_getitem(value, at))
        c.builder.store(field.value, cgutils.gep_inbounds(c.builder, place, 0, at))
        c.builder.store(c.builder.or_(c.builder.load(failed), field.is_error), failed)
    return NativeValue(place, is_error=c.builder.load(failed))


def register(bundle: type) -> None:
    """Have Numba take values of the named tuple `bundle` by reference."""

    def type_of(value: Any, context: Any) -> BundleType:
        return BundleType(bundle, tuple(typeof(field) for field in value))

    typeof_impl.register(bundle)(type_of)
