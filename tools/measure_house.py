"""Print how large and how tangled a checkout is: `python tools/measure_house.py [PATH]`.

It reads files and imports none, so it measures any checkout. tests/test_house.py says what may not grow.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = {name: f"hf_domain.{name}" for name in ("modeling", "tokenization", "examples")} | {"hf_domain": "hf_domain"}
FOLDERS = (*PACKAGES, "tests", "tests_peers", "benchmarks", "tools")


def parse(file: Path) -> list[ast.stmt]:
    """Return the statements of a file; none if there is no such file."""
    return ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else []


def find_modules(root: Path) -> dict[str, Path]:
    """Return the file of each module that a wheel contains."""
    modules = {}
    for folder, package in PACKAGES.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root / folder).with_suffix("").parts
            modules[".".join([package, *parts]).removesuffix(".__init__")] = file
    return modules


def list_names(name: str, modules: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """List the names of ours that a module imports, each with its module, also inside a function or for type checkers.

    An imported module is a name, too.
    """
    package = name if modules[name].stem == "__init__" else name.rpartition(".")[0]
    for node in (inner for statement in parse(modules[name]) for inner in ast.walk(statement)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names = [f"{source}.{alias.name}" for alias in node.names]
            places = {full: full if full in modules else source for full in names}
            yield from ((full, place) for full, place in places.items() if place in modules)


def read_imports(root: Path) -> dict[str, set[str]]:
    """Return the modules of ours that each module imports."""
    modules = find_modules(root)
    return {name: {place for _, place in list_names(name, modules)} - {name} for name in modules}


def count_names(root: Path) -> dict[str, int]:
    """Return how many names of ours each module imports, see `list_names`."""
    modules = find_modules(root)
    return {name: len({full for full, _ in list_names(name, modules)}) for name in modules}


def find_ring(imports: dict[str, set[str]]) -> list[str]:
    """Return the names along a ring of imports, the first one again at the end; none without a ring."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        others = imports[name] if name not in done else ()
        done.add(name)
        return next(filter(None, (walk(other, [*path, name]) for other in sorted(others))), [])

    return next(filter(None, (walk(name, []) for name in imports)), [])


def read_rooms(root: Path) -> dict[str, str]:
    """Return the room of each module, lowest room first, from the table of the layout page."""
    page, rooms = root / "docs" / "contributing" / "layout.md", {}
    text = page.read_text(encoding="utf-8").partition("## The rooms")[2] if page.exists() else ""
    for room, content in re.findall(r"^\| (?!room |---)(.+?) \| (.+) \|$", text.partition("\n## ")[0], re.MULTILINE):
        # A row is a folder, or it names its folders and files.
        found = re.findall(r"`(\w+)(?:/|\.py)`", room if "/" in room else content)
        paths = [PACKAGES.get(name, f"hf_domain.{name}".removesuffix(".__init__")) for name in found]
        for module in find_modules(root):
            if any(module == path or (path != "hf_domain" and module.startswith(f"{path}.")) for path in paths):
                rooms[module] = room.strip("`/")
    return rooms


def list_climbs(imports: dict[str, set[str]], rooms: dict[str, str]) -> list[tuple[str, str]]:
    """List the imports that go from a room to a later one."""
    floors = {room: floor for floor, room in enumerate(dict.fromkeys(rooms.values()))}
    edges = ((name, other) for name in sorted(imports) for other in sorted(imports[name]))
    return [edge for edge in edges if {*edge} <= rooms.keys() and floors[rooms[edge[0]]] < floors[rooms[edge[1]]]]


def connect_rooms(imports: dict[str, set[str]], rooms: dict[str, str]) -> dict[str, set[str]]:
    """Return the other rooms that each room imports."""
    arrows: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for name, others in imports.items():
        arrows.setdefault(rooms.get(name, "?"), set()).update(rooms.get(other, "?") for other in others)
    return {room: others - {room} for room, others in arrows.items()}


def count_fields(root: Path, inherits: bool = False) -> dict[str, int]:
    """Return the number of fields of each dataclass.

    Args:
        inherits: Also count the fields of the dataclasses of ours below it; those of transformers do not count.
    """
    nodes = [node for file in find_modules(root).values() for node in parse(file) if isinstance(node, ast.ClassDef)]
    marked = {node.name: node for node in nodes if "dataclass" in " ".join(map(ast.unparse, node.decorator_list))}

    def find_fields(name: str) -> set[str]:
        own = {ast.unparse(each.target) for each in marked[name].body if isinstance(each, ast.AnnAssign)}
        bases = [base for base in map(ast.unparse, marked[name].bases) if inherits and base in marked]
        return own.union(*map(find_fields, bases))

    return {name: len(find_fields(name)) for name in marked}


def find_table(file: Path, name: str) -> list[str]:
    """Return the keys of a dictionary that a module assigns to a name."""
    tables = [node for node in parse(file) if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)]
    return [ast.unparse(key) for node in tables for key in getattr(node.value, "keys", [])]


def list_own_flags(root: Path) -> list[str]:
    """List the flags of `hf-domain mlm` that TrainingArguments lacks, whose import would take seconds."""
    file, package = root / "hf_domain" / "flags.json", find_spec("transformers")
    nodes = parse(Path(str(package and package.origin)).with_name("training_args.py"))
    known = {
        ast.unparse(each.target) for node in nodes for each in getattr(node, "body", []) if hasattr(each, "target")
    }
    flags = json.loads(file.read_text(encoding="utf-8"))["commands"]["mlm"]["flags"] if file.exists() else []
    return sorted({flag["names"][0].strip("-") for flag in flags} - known)


def measure_text(name: str, files: Iterable[Path], unit: str = "lines") -> tuple[str, str]:
    """Return a row that says how long some files are."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    length = sum(len(text.split() if unit == "words" else text.splitlines()) for text in texts)
    return name, f"{length:7,} {unit}" + f" in {len(texts)} files" * (unit == "lines")


def measure(root: Path) -> Iterator[tuple[str, object]]:
    """Return the rows of the table."""
    modules, imports, rooms, fields = find_modules(root), read_imports(root), read_rooms(root), count_fields(root)
    inside = {f"tests/{file.relative_to(root / 'tests').parts[0]}" for file in (root / "tests").rglob("*/*.py")}
    for folder in (*FOLDERS, *sorted(inside)):
        yield measure_text(folder, (root / folder).rglob("*.py"))
    for room in dict.fromkeys([*rooms.values(), None]):
        yield measure_text(f"room {room}", (modules[name] for name in modules if rooms.get(name) == room))
    yield "imports that climb", len(list_climbs(imports, rooms))
    yield from ((f"  {name}", other) for name, other in list_climbs(imports, rooms))
    yield "ring of rooms", " > ".join(find_ring(connect_rooms(imports, rooms)))
    yield "ring of modules", " > ".join(find_ring(imports))
    largest, busiest = max(fields, key=lambda name: fields[name]), max(imports, key=lambda name: len(imports[name]))
    yield "fields of the largest dataclass", f"{fields[largest]} ({largest})"
    yield "imports of ours in one module", f"{len(imports[busiest])} ({busiest})"
    names, inherited = count_names(root), count_fields(root, inherits=True)
    yield "names of ours in one module", "{1} ({0})".format(*max(names.items(), key=lambda item: item[1]))
    yield "fields with inherited ones", "{1} ({0})".format(*max(inherited.items(), key=lambda item: item[1]))
    yield "commands", len(find_table(root / "hf_domain" / "cli.py", "COMMANDS"))
    yield "flags of mlm that are ours", len(list_own_flags(root))
    yield "rows of a comparison", len(find_table(root / "hf_domain" / "comparison" / "rows.py", "RECIPES"))
    for page in ("docs", "README.md", *sorted(str(page.relative_to(root)) for page in (root / "docs").rglob("*.md"))):
        yield measure_text(page, root.glob("docs/**/*.md" if page == "docs" else page), "words")


if __name__ == "__main__":
    for name, value in measure(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(f"{name:40} {value}")
