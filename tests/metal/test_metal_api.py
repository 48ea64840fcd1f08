"""The double's headers and the backend's calls against Apple's interface, which binaries of Apple's SDK told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from metal.objective_c import Compiler, Declarations, Selector, normalised, selectors
from metal_double import DOUBLE

APPLE = json.loads((Path(__file__).parent / "metal_api.json").read_text())
ENCODINGS: dict[str, dict[str, str]] = APPLE["types"]

# Where the list contradicts itself: the same argument of MTLCommandQueue's addResidencySets:count: is an array.
CORRECTIONS = {("MTLCommandBuffer", "useResidencySets:count:"): "v @ : ^@ Q"}
# What the list leaves out: values by Apple's documentation.
UNLISTED = {
    "MTLCommandEncoderErrorStateUnknown": 0,
    "MTLCommandEncoderErrorStateCompleted": 1,
    "MTLCommandEncoderErrorStateAffected": 2,
    "MTLCommandEncoderErrorStatePending": 3,
    "MTLCommandEncoderErrorStateFaulted": 4,
    "MTLFunctionOptionNone": 0,
    "MTLMutabilityDefault": 0,
    "MTLMutabilityMutable": 1,
    "MTLMutabilityImmutable": 2,
}
# Members that types inherit from Apple's root class or its protocols.
FOUNDATION_MEMBERS = {"init", "copyWithZone:"}
NO_MEMBERS = {"MTLSharedEventListener"}


def expected(owner: str, selector: str) -> str | None:
    return CORRECTIONS.get((owner, selector), ENCODINGS.get(owner, {}).get(selector))


@pytest.fixture(scope="module")
def build() -> tuple[Compiler, list[Path]]:
    return Compiler.of(Path(DOUBLE.build_directory().decode()))


@pytest.fixture(scope="module")
def compiler(build: tuple[Compiler, list[Path]]) -> Compiler:
    return build[0]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objective_c")


@pytest.fixture(scope="module")
def declared(compiler: Compiler, scratch: Path) -> Declarations:
    """What the double's headers declare."""
    return Declarations.of(compiler, scratch / "metal.mm", "#import <Metal/Metal.h>\n", "MTL")


@pytest.fixture(scope="module")
def foundation(compiler: Compiler, scratch: Path) -> set[str]:
    """Every selector of Foundation's headers."""
    listed = compiler.run(
        scratch / "foundation.mm",
        "#import <Foundation/Foundation.h>\n",
        "-fsyntax-only",
        "-Xclang",
        "-ast-list",
    )
    return {line.split("::", 1)[1] for line in listed.splitlines() if re.match(r"NS\w+::[\w:]+$", line)}


def test_normalisation_keeps_what_matters() -> None:
    assert normalised("v40@0:8r^v16Q24Q32") == "v @ : ^v Q Q"
    assert normalised("C24@0:8@16") == normalised("B24@0:8@16") == "B @ : @"
    assert (
        normalised("@48@0:8^v16Q24Q32@?40")
        == normalised("@48@0:8^v16Q24Q32@?<v@?^vQ>40")
        == "@ @ : ^v Q Q @?"
    )
    assert normalised("v64@0:8{?=QQQ}16{?=QQQ}40") == "v @ : {?=QQQ} {?=QQQ}"
    assert normalised("v32@0:8@16{_NSRange=QQ}24") == "v @ : @ {_NSRange=QQ}"
    assert normalised("@32@0:8@16o^@24") == "@ @ : @ ^@"
    assert normalised("v32@0:8r^@16Q24") == "v @ : ^@ Q"
    assert normalised("v24@0:8I16") != normalised("v24@0:8Q16")


def differences(declared: Declarations, interface: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """The declared members that the runtime does not know with Apple's types."""
    found = []
    for owner, members in declared.members.items():
        known = interface["classes"].get(owner) or interface["protocols"].get(owner, {})
        for member in members:
            apples = expected(owner, member[1:])
            given = known.get(member)
            if apples is None and member[1:] in FOUNDATION_MEMBERS:
                continue
            if given is None or normalised(given) != apples:
                found.append(
                    f"{member[0]}[{owner} {member[1:]}] {given and normalised(given)}, Apple's {apples}"
                )
    return sorted(found)


def test_every_declared_member_has_apples_types(declared: Declarations) -> None:
    """By the encodings of the Objective-C runtime, in which the double is loaded."""
    interface = json.loads(DOUBLE.interface())
    assert differences(declared, interface) == []
    assert sum(map(len, declared.members.values())) > 250
    assert set(interface["classes"]) | set(interface["protocols"]) == set(declared.members) | NO_MEMBERS


def test_planted_slips_in_a_header_are_found(declared: Declarations) -> None:
    interface = json.loads(DOUBLE.interface())
    buffer = interface["protocols"]["MTLBuffer"]
    buffer["-didModifyRange:"] = "v24@0:8Q16"
    buffer["-longth"] = buffer.pop("-length")
    declared.members["MTLBuffer"].add("-longth")
    try:
        assert differences(declared, interface) == [
            "-[MTLBuffer didModifyRange:] v @ : Q, Apple's v @ : {_NSRange=QQ}",
            "-[MTLBuffer length] None, Apple's Q @ :",
            "-[MTLBuffer longth] Q @ :, Apple's None",
        ]
    finally:
        declared.members["MTLBuffer"].remove("-longth")


def wrong_values(values: dict[str, int], compiler: Compiler, scratch: Path) -> list[str]:
    """The enumerators that do not have these values for the compiler."""
    text = "#import <Metal/Metal.h>\n" + "".join(
        f'static_assert((unsigned long long){name} == {value}ull, "{name}");\n'
        for name, value in values.items()
    )
    return compiler.errors(scratch / "values.mm", text)


def test_every_enumerator_has_apples_value(declared: Declarations, compiler: Compiler, scratch: Path) -> None:
    assert len(declared.enumerators) > 200
    assert set(UNLISTED).isdisjoint(APPLE["enumerators"])
    values = {name: UNLISTED.get(name, APPLE["enumerators"].get(name)) for name in declared.enumerators}
    assert wrong_values(values, compiler, scratch) == []
    slip = {**values, "MTLDataTypeStruct": 2}
    assert [error for error in wrong_values(slip, compiler, scratch) if "MTLDataTypeStruct" in error]


def strangers(used: set[Selector], foundation: set[str]) -> list[str]:
    """The selectors that are neither Metal's, with these types, nor Foundation's."""
    by_selector: dict[str, set[str]] = {}
    for owner, members in ENCODINGS.items():
        for selector in members:
            by_selector.setdefault(selector, set()).add(expected(owner, selector) or "")
    found = []
    for selector in used:
        apples = by_selector.get(selector.name)
        if apples is None:
            if selector.name not in foundation:
                found.append(selector.name)
        elif selector.types and normalised(selector.types) not in apples and selector.name not in foundation:
            found.append(f"{selector.name} {normalised(selector.types)}, Apple's {sorted(apples)}")
    return sorted(found)


def test_the_backend_sends_only_what_apple_knows(
    build: tuple[Compiler, list[Path]], foundation: set[str]
) -> None:
    used = set().union(*(selectors(path) for path in build[1]))
    assert {"newCommandQueue", "newBufferWithLength:options:", "endEncoding"} & {each.name for each in used}
    assert len(foundation) > 2000
    assert strangers(used, foundation) == []


def test_metal_stays_in_its_folder() -> None:
    """Nothing else of the library includes Metal's headers, without which none of its types can be named."""
    csrc = Path(__file__).resolve().parents[2] / "csrc"
    texts = [path for path in csrc.rglob("*") if path.suffix in {".h", ".cpp", ".mm", ".m"}]
    header = re.compile(r"#\s*(?:import|include)\s*<(?:Metal|Foundation|objc)/")
    found = {path.parent.relative_to(csrc) for path in texts if header.search(path.read_text())}
    assert found == {Path("backends/metal")}


PLANTED = """#import <Metal/Metal.h>
@protocol Planted <NSObject>
{declaration}
@end
void use(id<Planted> object) {{ {call} }}
"""


@pytest.mark.parametrize(
    ("declaration", "call", "found"),
    [
        ("- (void)endEncodign;", "[object endEncodign];", ["endEncodign"]),
        (
            "- (void)setBuffer:(id)buffer offset:(unsigned)offset atIndex:(NSUInteger)index;",
            "[object setBuffer:nil offset:0 atIndex:0];",
            ["setBuffer:offset:atIndex: v @ : @ I Q, Apple's ['v @ : @ Q Q']"],
        ),
        ("- (void)endEncoding;", "[object endEncoding]; [object retain];", []),
    ],
    ids=["misspelt", "argument type", "right"],
)
def test_a_planted_slip_in_a_call_is_found(
    declaration: str, call: str, found: list[str], compiler: Compiler, foundation: set[str], scratch: Path
) -> None:
    path = compiler.object(scratch / "planted.mm", PLANTED.format(declaration=declaration, call=call))
    assert strangers(selectors(path), foundation) == found
