"""Clang's syntax tree of a shader: calls, conversions of address spaces and fields, from what ``-ast-dump`` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NODE = re.compile(r"([ |`-]*)(\w+)(?: (0x[0-9a-f]+))?(.*)")
_LOCATION = re.compile(r"(?:line|(?P<file>[^\s<>:,]+)):(?P<line>\d+):\d+")
_RECORDS = {"CXXRecordDecl", "ClassTemplateSpecializationDecl"}
_FUNCTIONS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXConversionDecl", "CXXDestructorDecl"}


@dataclass
class _Node:
    """One line of the tree, as far as its children need it."""

    depth: int
    kind: str
    address: str
    rest: str
    children: int = 0
    callee: str = ""  # of an operator: the address of the member function that it calls


@dataclass
class _Conversion:
    place: str
    callee: str  # the member function for whose sake it is, if it is one's; a constructor's type
    of_object: bool  # what the member function is called on
    source: str = ""  # the type before it


class SyntaxTree:
    """Calls, conversions to OpenCL's generic address space and fields, from what ``-ast-dump`` prints."""

    def __init__(self, dump: str, own_headers: tuple[str, ...]) -> None:
        self._trusted: set[str] = set()  # functions of the headers, and those that Clang writes itself
        self._constructors: set[str] = set()  # types of those that the shader writes
        self._first: dict[str, str] = {}  # of a function's later declarations
        self._functions: dict[str, str] = {}  # "file:line: name" by the first one's address
        self._calls: dict[str, set[str]] = {}
        self._fields: dict[str, list[tuple[str, str, str]]] = {}  # of a record: place, name, type
        self._conversions: list[_Conversion] = []
        self._lambdas: list[str] = []
        file, line, in_header = "", "0", True
        stack: list[_Node] = []
        for text in dump.splitlines():
            match = _NODE.match(text)
            if match is None:
                continue
            node = _Node(len(match[1]), match[2], match[3] or "", match[4])
            for location in _LOCATION.finditer(node.rest.partition("'")[0]):
                line = location["line"]
                if location["file"]:
                    file, in_header = location["file"], location["file"].endswith(own_headers)
            while stack and stack[-1].depth >= node.depth:
                stack.pop()
            if not in_header:
                self._read(node, stack, f"{file}:{line}")
            elif node.kind in _FUNCTIONS:
                self._trusted.add(node.address)
            if stack:
                stack[-1].children += 1
            stack.append(node)

    def _read(self, node: _Node, stack: list[_Node], place: str) -> None:
        parent = stack[-1] if stack else None
        if node.kind in _FUNCTIONS:
            self._add_function(node, place)
        elif node.kind == "FieldDecl" and parent and parent.kind in _RECORDS:
            name, spelling = re.search(r"(\w*) ('.*)", node.rest).groups()
            record = re.search(r"(?:struct|class|union) (\w+) definition", parent.rest)
            self._fields.setdefault(record[1] if record else "", []).append((place, name, spelling))
        if self._conversions and not self._conversions[-1].source:
            self._conversions[-1].source = node.rest  # the line behind a conversion has its operand
        if node.kind == "LambdaExpr":
            self._lambdas.append(f"{place}: a lambda needs Metal 3.2")
        callee = re.search(
            r" (?:Function|CXXMethod|CXXConversion) (0x[0-9a-f]+)|(?:->|\.)[^ ]* (0x[0-9a-f]+)$", node.rest
        )
        if callee and node.kind in ("DeclRefExpr", "MemberExpr"):
            caller = next((outer.address for outer in reversed(stack) if outer.kind in _FUNCTIONS), "")
            self._calls.setdefault(caller, set()).add(callee[1] or callee[2])
            for outer in stack[-2:]:
                if outer.kind == "CXXOperatorCallExpr" and not outer.callee and "CXXMethod" in node.rest:
                    outer.callee = callee[1]
        if "<AddressSpaceConversion>" in node.rest and "__generic" in node.rest and parent:
            outer = next(outer for outer in reversed(stack) if outer.kind != "ImplicitCastExpr")
            self._add_conversion(outer, outer.children - (outer is not parent), place)

    def _add_function(self, node: _Node, place: str) -> None:
        earlier = re.match(r"(?: parent 0x[0-9a-f]+)? prev (0x[0-9a-f]+)", node.rest)
        self._first[node.address] = self._first.get(earlier[1], earlier[1]) if earlier else node.address
        head, _, qualities = node.rest.partition("'")
        name = re.search(r"(\S+) $", head)
        self._functions[self._first[node.address]] = f"{place}: {name[1] if name else '?'}"
        if " implicit " in head or re.search(r"' .*\bdefault\b", qualities):
            self._trusted.add(node.address)
        elif node.kind == "CXXConstructorDecl":
            self._constructors.add(re.search(r"'(void \(.*?\))", node.rest)[1])

    def _add_conversion(self, parent: _Node, child: int, place: str) -> None:
        bound = re.search(r"'<bound member function type>'.* (0x[0-9a-f]+)$", parent.rest)
        constructor = re.search(r"' '(void \(.*?\))", parent.rest)
        if parent.kind == "MemberExpr" and bound:
            self._conversions.append(_Conversion(place, bound[1], True))
        elif parent.kind == "CXXConstructExpr" and constructor:
            self._conversions.append(_Conversion(place, constructor[1], False))
        else:
            self._conversions.append(_Conversion(place, parent.callee, bool(parent.callee) and child == 1))

    def faults(self) -> list[str]:
        found = {}
        for conversion in self._conversions:
            callee = conversion.callee
            written = (
                callee in self._constructors if callee.startswith("void (") else callee not in self._trusted
            )
            elsewhere = re.search(r"'(?:const |volatile )*__(global|local)\b", conversion.source)
            if elsewhere and written:
                space = {"global": "device", "local": "threadgroup"}[elsewhere[1]]
                found[f"{conversion.place}: what is in {space} memory becomes a thread object"] = None
            elif written and not conversion.of_object:
                found[f"{conversion.place}: a pointer or reference has no address space"] = None
        return list(found) + list(dict.fromkeys(self._lambdas)) + self._recursions()

    def _recursions(self) -> list[str]:
        """One fault a function that can come back to itself."""
        graph = {}
        for caller, callees in self._calls.items():
            graph.setdefault(self._first.get(caller, caller), set()).update(
                self._first.get(c, c) for c in callees
            )
        faults = {}
        for start in graph:
            reached, work = set(), list(graph[start])
            while work and start not in reached:
                function = work.pop()
                if function not in reached:
                    reached.add(function)
                    work.extend(graph.get(function, ()))
            if start in reached and start in self._functions:
                faults[f"{self._functions[start]} is recursive"] = None
        return list(faults)

    def layout_faults(self, records: list[str]) -> list[str]:
        """bool, size_t and vectors of three in structs that the host fills: their sizes surprise."""
        faults, seen, work = [], set(records), list(dict.fromkeys(records))
        while work:
            for place, name, spelling in self._fields.get(work.pop(), []):
                if re.search(r"\bbool\b|\bsize_t\b|'(metal::)?[a-z]+3'|\bvec<[^,<>]+, 3>", spelling):
                    faults.append(
                        f"{place}: field {name} of a parameter struct is a bool, a size_t or a 3-vector"
                    )
                for inner in re.findall(r"\w+", spelling):
                    if inner in self._fields and inner not in seen:
                        seen.add(inner)
                        work.append(inner)
        return faults
