"""A shader that went through the preprocessor, written as C++ for OpenCL; what is lost on the way is checked here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Shader:
    """A shader in C++ for OpenCL, with every line where it was."""

    text: str
    faults: list[str]  # of what C++ for OpenCL does not keep
    records: list[str]  # that kernels have in constant memory


def as_opencl(text: str) -> Shader:
    shader = Shader(text, [], [])
    text = re.sub(r"\[\[\s*kernel\s*\]\]", "kernel", text)
    for match in re.finditer(r"\bkernel\b", text):
        _check_kernel(text, match.end(), shader)
    for match in re.finditer(r"\btemplate\s*<([^;{}()]*?)>\s*(?!class|typename)", text):
        _check_dependent(text, match, shader)
    text = re.sub(r"\[\[\s*host_name\s*\([^)]*\)\s*\]\]", "", text)
    text = re.sub(r"\[\[\s*function_constant\s*\([^)]*\)\s*\]\]\s*;", "= {};", text)
    # C++ for OpenCL has no templates among its kernels, and threadgroup variables in no other function.
    text = re.sub(r"\bkernel\b", "", text)
    text = re.sub(r"\bthread\b", "__private", text)
    text = _methods_of_thread_objects(text)
    variables = re.compile(r"(?<=[;{}])((?:\s|^#.*\n)*)(__local\s[^;(){}=]*);", re.MULTILINE)
    shader.text = variables.sub(_threadgroup_variables, text)
    return shader


def _check_dependent(text: str, template: re.Match[str], shader: Shader) -> None:
    """What `T&` is in Metal depends on what T becomes: the project writes its address space."""
    end = re.compile(r"[^;{]*").match(text, template.end()).end()
    for name in re.findall(r"\b(?:typename|class)\s+(\w+)", template[1]):
        for use in re.finditer(rf"[^<>,();*&]*\b{name}\b\s*(?:const\s*)?[*&]", text[template.end() : end]):
            if not re.search(r"\b(__global|__local|constant|thread)\b", use[0]):
                place = _place(text, template.end() + use.end())
                shader.faults.append(f"{place}: a pointer or reference to {name} has no address space")


def _methods_of_thread_objects(text: str) -> str:
    """Member functions without an address space are for objects of the thread in Metal, for generic ones in OpenCL,
    whose temporaries have none. So each is declared as it stands, for those, and defined as __private."""
    edits: list[tuple[int, int, str]] = []  # what to put where
    for record in re.finditer(r"\b(?:struct|class|union)\b\s*(\w*)[^;(){}=]*\{", text):
        for begin, opening in _members(text, record.end()):
            head = _on_one_line(text[begin:opening])
            name = re.search(r"(operator\W.*|\w+) ?$", head)
            if (
                name is None
                or name[1] == record[1]
                or re.search(r"~|=(?!=)|\b(static|friend|auto)\b", head[: name.start()])
            ):
                continue
            close = _close(text, opening)
            qualifiers = re.compile(r"\s*(?:(?:const|noexcept|__private)\b\s*)*(?=\{)").match(text, close + 1)
            if qualifiers:
                words = qualifiers[0].replace("__private", "").strip()
                parameters = _on_one_line(text[opening : close + 1])
                edits.append((begin, begin, f"{head}{parameters} {words}; "))
                edits.append((close + 1, qualifiers.end(), f" {words} __private "))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _members(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where each member with parameters of the record whose body begins at `at` begins, and where they do."""
    while text[at] != "}":
        begin, opening, ended = at, -1, False
        while not ended and text[at] != "}":
            ended = (
                text[at] in ";{"
                or re.search(r"\b(public|private|protected)\s*:$", text[max(0, at - 12) : at + 1]) is not None
            )
            if text[at] in "({":
                ours = not re.search(r"\b(__attribute__|alignas|decltype)\s*$|\boperator\s*$", text[begin:at])
                if text[at] == "(" and ours and opening < 0:
                    opening = at
                at = _close(text, at)
            at += 1
        if opening >= 0:
            yield begin, opening


def _on_one_line(text: str) -> str:
    """Without the preprocessor's markers."""
    return re.sub(r"\s+", " ", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))


def _threadgroup_variables(match: re.Match[str]) -> str:
    before, declaration = match.groups()
    outside = re.sub(r"\[[^\]]*\]|<[^;]*>", "", declaration)
    if "*" in outside or "&" in outside:
        return match[0]
    first, *others = _split(declaration.removeprefix("__local"))
    head = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*((?:\[.*\])?)\s*", first, re.DOTALL)
    assert head is not None
    result = []
    for declarator in [head[2] + head[3], *others]:
        name, extents = re.fullmatch(r"\s*(\w+)\s*(.*)", declarator, re.DOTALL).groups()
        reference = f"__local strict_{name}& {name} = strict_threadgroup_variable<__local strict_{name}>();"
        result.append(f"typedef {head[1]} strict_{name}{extents}; {reference}")
    lines = declaration.count("\n")
    return before + " ".join(result).replace("\n", " ") + "\n" * lines


def _check_kernel(text: str, begin: int, shader: Shader) -> None:
    """Metal gives an argument without an index the next free one; the project wants each index written, since the host
    binds by number and an inserted argument would silently shift the rest."""
    opening = re.compile(r"[^;{(]*?(\w+)\s*\(").match(text, begin)
    if opening is None or opening[1] == "decltype":
        return  # an instantiation
    end = _close(text, opening.end() - 1)
    if re.compile(r"\s*(\[\[.*?\]\]\s*)?\{").match(text, end + 1) is None:
        return
    kernel = opening[1]
    taken: dict[tuple[str, str], str] = {}
    for parameter in _split(text[opening.end() : end]):
        name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)?(?:\[\[|$)", parameter.strip())
        at = text.index(parameter, opening.end()) + len(parameter) - len(parameter.lstrip())
        place = f"{_place(text, at)}: argument {name[1] if name else '?'} of {kernel}"
        index = re.search(r"\[\[\s*(buffer|__local)\s*\(\s*(.*?)\s*\)\s*[,\]]", parameter)
        if index is None:
            if re.search(r"\b(__global|__local|constant)\b[^\[]*[*&]", parameter):
                shader.faults.append(f"{place} has no index")
            continue
        if "function_constant" not in parameter and taken.setdefault(index.groups(), parameter) != parameter:
            kind = index[1].replace("__local", "threadgroup")
            shader.faults.append(f"{place}: {kind} index {index[2]} is used twice")
        record = re.search(r"\bconstant\s+(?:const\s+)?(\w+)\s*(?:const\s*)?[*&]", parameter)
        if record:
            shader.records.append(record[1])


def _close(text: str, at: int) -> int:
    """Where the bracket at `at` ends."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "({") - (text[i] in ")}")
        if depth == 0:
            return i
    raise ValueError("a bracket is never closed")


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _place(text: str, at: int) -> str:
    """Its "file:line" by the preprocessor's markers."""
    marker = list(re.finditer(r'^# (\d+) "([^"]*)".*\n', text[: at + 1], re.MULTILINE))[-1]
    return f"{marker[2]}:{int(marker[1]) + text.count(chr(10), marker.end(), at)}"
