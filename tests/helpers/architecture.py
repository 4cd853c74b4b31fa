"""Find which module imports which from the source, including type-checking and local imports."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

Sources = Mapping[str, str]  # from the dotted name of a module to its source

QUESTIONS = ("isinstance", "issubclass")
DOTTED = re.compile(r"modicum(\.\w+)+")


class Import(NamedTuple):
    """`from module import name`, or `import module` where `name` is None."""

    module: str
    name: str | None
    local: bool  # inside a function, or under `if TYPE_CHECKING`


def read_sources(folder: Path) -> dict[str, str]:
    """Read every module of the package in `folder`, keyed by dotted name."""
    sources = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


parsed = cache(ast.parse)


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """Return all nodes of a module."""
    return list(ast.walk(parsed(source)))


@cache
def imports_of(source: str) -> list[Import]:
    """Return all imports of a module, at any level."""
    found: list[Import] = []
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    holding = ast.stmt | ast.excepthandler | ast.match_case  # statements, imports among them

    def visit(node: ast.AST, local: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, None, local) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            found.extend(Import(node.module or "", alias.name, local) for alias in node.names)
        inner = local or isinstance(node, functions) or _type_checking(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, holding):
                visit(child, inner)

    visit(parsed(source), False)
    return found


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported_modules(sources: Sources) -> dict[str, set[str]]:
    """Map each module to the modules of `sources` that it imports."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        named = {
            f"{one.module}.{one.name}" if f"{one.module}.{one.name}" in sources else one.module
            for one in imports_of(source)
        }
        graph[module] = named & set(sources)
    return graph


def circles(sources: Sources) -> list[set[str]]:
    """Return import cycles: strongly connected components of two or more modules."""
    graph = imported_modules(sources)
    reach = {module: _reachable(graph, module) for module in graph}
    groups = {frozenset({m, *(n for n in reach[m] if m in reach[n])}) for m in graph}
    loops = [set(group) for group in groups if len(group) > 1]
    return loops + [{m} for m in graph if m in graph[m]]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def upward_imports(sources: Sources, order: Sequence[Collection[str]]) -> list[str]:
    """Describe imports of a higher package by a lower one; `order` is from the top down.

    The package of `modicum.kernels.moves` is "kernels"; `modicum` itself, which exports names, is
    above all. A package missing from `order` is reported too.
    """
    level = {name: height for height, group in enumerate(order) for name in group}
    sentences = []
    for module, source in sources.items():
        own = _package(module)
        if own is None:
            continue
        if own not in level:
            sentences.append(f"{module}: the package {own} has no place in the order")
            continue
        for one in imports_of(source):
            if one.module.split(".")[0] != "modicum":
                continue
            other = _package(one.module) or one.name or ""
            if other != own and level.get(other, -1) < level[own]:
                sentences.append(f"{module} imports {one.module}, which is above it")
    return sentences


def _package(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def uses_of_the_laboratory(sources: Sources) -> list[str]:
    """Return modules of the library that import the laboratory.

    `cli` may do so inside functions, and `datasets` is the laboratory's under the library's name.
    """
    return [
        module
        for module, source in sources.items()
        for one in imports_of(source)
        if one.module.split(".")[0] == "modicum_lab"
        and _package(module) != "datasets"
        and not (one.local and _package(module) == "cli")
    ]


def deep_uses(sources: Sources, public: Mapping[str, Collection[str]]) -> list[str]:
    """Describe uses of private names of the library; `public` maps modules to names.

    Covers imports, attributes of imported modules (`mo.models.Logistic`), and dotted names in
    strings, which tests pass to monkeypatch.
    """
    sentences = []
    for module, source in sources.items():
        for name in _library_names(source):
            if not _is_public(name, public):
                sentences.append(f"{module} uses {name}, which is not public")
    return sentences


def _is_public(name: str, public: Mapping[str, Collection[str]]) -> bool:
    """Whether `name` is a public module, a public object in one, or an attribute of such."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        module, last = ".".join(parts[: length - 1]), parts[length - 1]
        if ".".join(parts[:length]) not in public:
            return last in public.get(module, ())
    return True


def _library_names(source: str) -> set[str]:
    """Return the dotted names of the library that a module uses."""
    tree = parsed(source)
    bound: dict[str, str] = {}  # from local names to candidate dotted names of the library
    used: set[str] = set()
    for one in (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)):
        for alias in one.names:
            whole = alias.name
            if isinstance(one, ast.ImportFrom):
                whole = f"{one.module}.{alias.name}"
            if whole.split(".")[0] == "modicum":
                used.add(whole)
                bound[alias.asname or alias.name.split(".")[0]] = (
                    whole if alias.asname or isinstance(one, ast.ImportFrom) else "modicum"
                )
    resolve = _resolver(bound)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := resolve(node)):
            used.add(dotted)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used |= {node.value} if DOTTED.fullmatch(node.value) else set()
    return used


def _resolver(bound: Mapping[str, str]) -> Callable[[ast.expr], str | None]:
    def resolve(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return bound.get(node.id)
        if isinstance(node, ast.Attribute) and (parent := resolve(node.value)):
            return f"{parent}.{node.attr}"
        return None

    return resolve


# Size ----------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """Count the lines that are code: neither blank, nor a comment, nor part of a docstring."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        line
        for node in nodes_of(source)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(map(str.strip, source.splitlines()), 1)
    return sum(bool(text) and text[0] != "#" and i not in docstrings for i, text in lines)


def sizes(sources: Sources) -> dict[str, int]:
    """Return the lines of code of each package; modules beside the packages count as "doors"."""
    found: dict[str, int] = {}
    packages = {module.split(".")[1] for module in sources if module.count(".") > 1}
    for module, source in sources.items():
        own = _package(module)
        room = own if own in packages else ""
        found[room] = found.get(room, 0) + code_lines(source)
    return found


# Names and types -----------------------------------------------------------------------------


def classes_of(sources: Sources) -> dict[str, list[str]]:
    """Map the name of each class to the modules that define one of that name."""
    found: dict[str, list[str]] = {}
    for module, source in sources.items():
        for node in nodes_of(source):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return found


def own_types_asked(sources: Sources) -> dict[str, int]:
    """Count, for each class of the library, how often `isinstance` or a `case` asks for it."""
    own = classes_of(sources)
    found: Counter[str] = Counter()
    for source in sources.values():
        for node in nodes_of(source):
            asked: ast.AST | None = None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in QUESTIONS:
                asked = node.args[1]
            elif isinstance(node, ast.MatchClass):
                asked = node.cls
            for name in ast.walk(asked) if asked is not None else ():
                last = getattr(name, "attr", getattr(name, "id", None))
                if last in own:
                    found[last] += 1
    return dict(found)
