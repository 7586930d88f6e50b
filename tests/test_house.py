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
    {"training"},
    {"experiments", "serving"},
    {"cli"},
]
LEAVES = {"errors", "draws", "drawing", "memory", "pages"}
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
        "weights/timm.py": "import vitreous.data.sources\n",
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
