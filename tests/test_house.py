"""Which room may import which, and what an import may cost."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import vitreous

SOURCE = Path(__file__).parents[1] / "src" / "vitreous"
# A room imports itself, rooms on lower floors, and the leaves. Rooms on one floor do not know each other.
FLOORS = [
    {"preprocessing", "models"},
    {"weights", "data", "fast"},
    {"evaluation", "inspection"},
    {"reports"},
    {"training"},
    {"experiments", "benchmark", "serving"},
    {"cli"},
]
LEAVES = {"errors", "utils"}  # every room may import them; they import nothing but each other
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(source: Path) -> list[str]:
    found = []
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "vitreous" or room in ("__init__", "__main__"):
                continue
            target = parts[1] if len(parts) > 1 else ""
            if target in LEAVES or target == room or target.startswith("__"):
                continue
            if room in LEAVES or room not in FLOOR or FLOOR.get(target, len(FLOORS)) >= FLOOR[room]:
                found.append(f"{path.relative_to(source)} imports {name}")
    return found


def test_rooms_import_downwards_only() -> None:
    assert violations(SOURCE) == []


def test_a_wrong_import_is_found(tmp_path: Path) -> None:
    for file, text in {
        "models/vit.py": "def f():\n    from vitreous.weights import google\n",
        "weights/timm.py": "import vitreous.data.dataset\n",
        "errors.py": "from vitreous.models import vit\n",
        "cellar/x.py": "from vitreous.models import vit\n",
        "cli/main.py": "from vitreous.models import vit\nimport vitreous.weights.google\n",
        "weights/google.py": "from vitreous.weights import timm\nimport numpy\nfrom vitreous import load\n",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert [line.split(" imports ")[0] for line in violations(tmp_path)] == [
        "cellar/x.py",
        "errors.py",
        "models/vit.py",
        "weights/google.py",
        "weights/timm.py",
    ]


PRINTER = "utils/console.py"  # the one file that writes to stdout and stderr: it escapes what it is given


def prints(source: Path) -> list[str]:
    """Where any other file prints, makes a console of rich, or takes hold of a standard stream."""
    found = []
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            stream = ast.unparse(node) if isinstance(node, ast.Attribute | ast.alias) else ""
            if called in ("print", "rich.print", "os.write") or called.split(".")[-1] == "Console":
                found.append(f"{path.relative_to(source)} calls {called}")
            if stream.removeprefix("sys.").strip("_") in ("stdout", "stderr"):
                found.append(f"{path.relative_to(source)} uses {stream}")
    return [line for line in found if not line.startswith(f"{PRINTER} ")]


def test_one_file_prints() -> None:
    assert prints(SOURCE) == []


def test_a_print_elsewhere_is_found(tmp_path: Path) -> None:
    for file, text in {
        "a.py": "print(label)",
        "b.py": "from rich.console import Console\nConsole(stderr=True).print(label)",
        "c.py": "import sys\nsys.stdout.write(label)",
        "d.py": "from sys import __stderr__",
        "e.py": "from rich import console\nx = console.Console()",
        "fine.py": "from rich.console import Console\ndef show(to: Console) -> None:\n    to.print('x')",
        "utils/console.py": "print(1)",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert {line.split()[0] for line in prints(tmp_path)} == {"a.py", "b.py", "c.py", "d.py", "e.py"}


def modules_after(code: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


HEAVY = {"matplotlib", "sklearn", "datasets", "pyarrow", "fastapi", "tyro", "transformers", "timm", "torchvision"}


def test_importing_pulls_in_nothing_heavy() -> None:
    loaded = modules_after("import vitreous; vitreous.create; vitreous.cost; import vitreous.weights.google")
    assert "torch" in loaded
    assert not loaded & HEAVY
    assert "torch._dynamo" not in loaded  # the compiler alone takes a second


def test_help_does_not_wait_for_torch() -> None:
    code = "from vitreous.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert "torch" not in modules_after(code)
    assert "torch" not in modules_after("import vitreous")


def test_the_package_says_what_it_offers() -> None:
    assert set(vitreous.__all__) == set(vitreous._HOMES)
    assert set(vitreous.__all__) <= set(dir(vitreous))
    for name in vitreous.__all__:
        assert getattr(vitreous, name).__name__ == name
