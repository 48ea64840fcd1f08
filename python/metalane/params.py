"""Parameter structs: dataclasses whose values lie packed in memory, as a kernel reads them.

    @metal_struct
    class Axpy:
        scale: f32
        count: u32
        bias: f32[4] = (0.0, 0.0, 0.0, 0.0)

Fields are range-checked when set, arrays are tuples, and padding is written out as fields: a struct that a C++
compiler would pad is refused. ``Axpy.layout`` shows where every field lies; a kernel whose struct lies otherwise
refuses it, naming the field.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from . import _core
from .errors import ArgumentError, DTypeError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Tells type checkers what metal_struct does; nothing at run time (typing has it from Python 3.11)."""
        return lambda decorator: decorator


__all__ = [
    "FieldType",
    "Struct",
    "array",
    "bf16",
    "f16",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "metal_struct",
    "u8",
    "u16",
    "u32",
    "u64",
    "vec",
]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class FieldType:
    """Type of one field: a scalar or a struct, a vector of scalars, an array of either (``u32[4]``)."""

    element: str | type[Struct]
    components: int = 1
    packed: bool = False
    count: int = 0

    def __getitem__(self, count: int) -> FieldType:
        if self.count:
            raise ArgumentError("FieldType: an array of arrays is written as one array of all its elements")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= 65536:
            raise ArgumentError(f"FieldType: an array's length must be 1 to 65536, got {count!r}")
        return dataclasses.replace(self, count=count)

    def __repr__(self) -> str:
        name = self.element if isinstance(self.element, str) else self.element.__name__
        vector = f"x{self.components}" if self.components > 1 else ""
        return f"{'packed_' if self.packed else ''}{name}{vector}{f'[{self.count}]' if self.count else ''}"


u8, i8 = FieldType("u8"), FieldType("i8")
u16, i16 = FieldType("u16"), FieldType("i16")
u32, i32 = FieldType("u32"), FieldType("i32")
u64, i64 = FieldType("u64"), FieldType("i64")
f32, f16, bf16 = FieldType("f32"), FieldType("f16"), FieldType("bf16")


def array(element: FieldType | type[Struct], count: int) -> FieldType:
    """An array of `count` scalars, vectors or structs; ``array(u32, 4)`` is ``u32[4]``."""
    return (element if isinstance(element, FieldType) else FieldType(element))[count]


def vec(element: FieldType, components: int, *, packed: bool = False) -> FieldType:
    """A vector of 2 to 4 scalars with Metal's alignment (``float4``), or without (``packed_float3``)."""
    if not isinstance(element, FieldType) or element.components > 1 or element.count:
        raise DTypeError(f"vec: the element must be a scalar type, got {element!r}")
    if components not in (2, 3, 4):
        raise ArgumentError(f"vec: components must be 2, 3 or 4, got {components!r}")
    return dataclasses.replace(element, components=components, packed=packed)


class Struct(_core.Struct):
    """Base of all classes that :func:`metal_struct` makes. ``bytes(x)`` gives the packed bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in _shown_items(self))
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return _items(self) == _items(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, like any plain dataclass

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (bytes(self),)


def _items(struct: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(struct, field.name)) for field in dataclasses.fields(struct)]


def _shown_items(struct: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(struct, field.name)) for field in dataclasses.fields(struct) if field.repr]


def _field_type(owner: str, name: str, annotation: Any) -> FieldType:
    """The field's type: the annotation itself, or what ``Annotated[int, u32]`` carries for type checkers."""
    if get_origin(annotation) is Annotated:
        carried = [value for value in get_args(annotation)[1:] if isinstance(value, FieldType)]
        annotation = carried[0] if len(carried) == 1 else annotation
    if isinstance(annotation, FieldType):
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation is not Struct:
        return FieldType(annotation)
    raise DTypeError(
        f"metal_struct: the type of {owner}.{name} must be u8 to u64, i8 to i64, f16, bf16, f32, an array (u32[4]), "
        f"a vec or a metal_struct class, got {annotation!r}"
    )


def _functions(value: Any) -> list[FunctionType]:
    """The plain functions inside a class attribute."""
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    if isinstance(value, property):
        return [accessor for accessor in (value.fget, value.fset) if isinstance(accessor, FunctionType)]
    return [value] if isinstance(value, FunctionType) else []


def _class_cells(namespace: dict[str, Any]) -> list[CellType]:
    """The cells through which methods written with super() know their class."""
    return [
        cell
        for value in namespace.values()
        for function in _functions(value)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if name == "__class__"
    ]


def _signature(fields: list[tuple[dataclasses.Field[Any], FieldType]]) -> inspect.Signature:
    parameters = []
    for field, kind in fields:
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        keyword = inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=kind))
    parameters.sort(key=lambda parameter: parameter.kind)
    # Python wants defaults last, structs do not care: name such fields by keyword only.
    seen_default = False
    for i, parameter in enumerate(parameters):
        if seen_default and parameter.default is inspect.Parameter.empty:
            return inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters])
        seen_default = seen_default or parameters[i].default is not inspect.Parameter.empty
    return inspect.Signature(parameters)


def _row(field: dataclasses.Field[Any], kind: FieldType) -> tuple[Any, ...]:
    """The field as the native layout takes it; an ellipsis stands for no default."""
    default = ... if field.default is dataclasses.MISSING else field.default
    factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
    return (
        field.name,
        kind.element,
        kind.components,
        kind.packed,
        kind.count,
        default,
        factory,
        bool(field.kw_only),
    )


@dataclass_transform(field_specifiers=(dataclasses.field,))
def metal_struct(cls: type[T]) -> type[T]:
    """Makes a dataclass of fixed layout from annotated fields.

    Field types: ``u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32``, arrays ``u32[4]``, ``vec(f32, 4)``, other
    metal_struct classes; for type checkers also ``Annotated[int, u32]``. Defaults, ``field(kw_only=True)`` and
    ``field(repr=False)`` (for padding, say) work as in dataclasses.

    Raises ArgumentError where a field would be preceded, or the struct followed, by hidden padding, and DTypeError
    for an annotation that is no such type.
    """
    if cls.__bases__ != (object,):
        raise ArgumentError(
            f"metal_struct: {cls.__name__} must have no base class: nest the struct as a field instead"
        )
    scope = {**sys._getframe(1).f_locals, **vars(cls)}
    annotations = inspect.get_annotations(cls, locals=scope, eval_str=True)
    dataclass = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = [
        (field, _field_type(cls.__name__, field.name, annotations[field.name]))
        for field in dataclasses.fields(dataclass)  # type: ignore[arg-type]
    ]
    for field, _ in fields:
        if field.name == "layout" or field.name.startswith("__"):
            raise ArgumentError(
                f"metal_struct: {cls.__name__}.{field.name} is a name that structs use themselves"
            )
    spec = _core._struct_spec(cls.__name__, [_row(field, kind) for field, kind in fields])

    dropped = {"__dict__", "__weakref__", *(field.name for field, _ in fields)}
    namespace = {name: value for name, value in vars(dataclass).items() if name not in dropped}
    namespace.update({field.name: spec.descriptor(i) for i, (field, _) in enumerate(fields)})
    namespace.update(
        __slots__=(),
        __metalane_spec__=spec,
        __match_args__=tuple(field.name for field, _ in fields if not field.kw_only),
        __signature__=_signature(fields),
        __doc__=cls.__doc__ if "__doc__" in vars(cls) else None,
        layout=spec.layout,
    )
    made = type(cls.__name__, (Struct,), namespace)
    for cell in _class_cells(namespace):
        cell.cell_contents = made
    return made
