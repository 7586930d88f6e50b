"""Rules for the source: which package may import which, who may print, sizes, unique names, and cost of an import."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import vitreous

SOURCE = Path(__file__).parents[1] / "src" / "vitreous"
# A package may import itself, packages of lower layers, and the leaves. Packages of one layer do not import each other.
LAYERS = [
    {"preprocessing"},
    {"models"},
    {"weights", "data", "fast"},
    {"evaluation", "inspection"},
    {"reports"},
    {"training"},
    {"benchmark", "serving"},
    {"experiments"},
    {"cli"},
]
LEAVES = {"errors", "utils"}  # every package may import them; they import only each other
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 60


def imports(path: Path) -> Iterator[str]:
    """Yield the full names of all imports in a file, at any level."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(source: Path) -> list[str]:
    found = []
    for path in sorted(source.rglob("*.py")):
        package = path.relative_to(source).parts[0].removesuffix(".py")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "vitreous" or package in ("__init__", "__main__"):
                continue
            target = parts[1] if len(parts) > 1 else ""
            if target in LEAVES or target == package or target.startswith("__"):
                continue
            if package in LEAVES or package not in LAYER or LAYER.get(target, len(LAYERS)) >= LAYER[package]:
                found.append(f"{path.relative_to(source)} imports {name}")
    return found


def test_packages_import_lower_layers_only() -> None:
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


PRINTER = "utils/console.py"  # the only file that writes to stdout and stderr: it escapes control characters


def prints(source: Path) -> list[str]:
    """List places in other files that print, create a rich console or access a standard stream."""
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


def test_only_one_file_prints() -> None:
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


def oversized(source: Path) -> list[str]:
    """List files and functions that are too long to read in one go."""
    found = []
    for path in sorted(source.rglob("*.py")):
        text, name = path.read_text(), str(path.relative_to(source))
        if text.count("\n") > MAX_FILE_LINES:
            found.append(f"{name} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{name} {node.name} has {lines} lines")
    return found


def test_files_and_functions_are_short() -> None:
    assert oversized(SOURCE) == []


def repeated_names(source: Path) -> dict[str, list[str]]:
    """Return classes, and public functions of modules, whose name is defined more than once, with their files."""
    files: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            function = isinstance(node, ast.FunctionDef) and node in tree.body and not node.name.startswith("_")
            if isinstance(node, ast.FunctionDef) and [ast.unparse(d) for d in node.decorator_list] == ["overload"]:
                continue
            if isinstance(node, ast.ClassDef) or function:
                files.setdefault(node.name, []).append(str(path.relative_to(source)))  # type: ignore[attr-defined]
    return {name: places for name, places in files.items() if len(places) > 1}


def test_names_are_unique() -> None:
    """Whoever searches for a class or a public function finds one definition."""
    assert repeated_names(SOURCE) == {}


def test_long_files_and_repeated_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Row: ...\ndef check(): ...\ndef _private(): ...\n")
    (tmp_path / "b.py").write_text("def f():\n    class Row: ...\ndef check(): ...\ndef _private(): ...\n")
    (tmp_path / "c.py").write_text("def long():\n" + 60 * "    x = 1\n" + 390 * "y = 1\n")
    assert repeated_names(tmp_path) == {"Row": ["a.py", "b.py"], "check": ["a.py", "b.py"]}
    assert oversized(tmp_path) == ["c.py has 451 lines", "c.py long has 61 lines"]


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


def test_the_architecture_page_names_files_and_functions_that_exist() -> None:
    text = (SOURCE.parents[1] / "docs" / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_0-9/]+\.py)(?::([A-Za-z_.0-9]+))?`", text))
    assert len(named) > 80
    for file, name in sorted(named):
        path = SOURCE / file if (SOURCE / file).exists() else SOURCE.parents[1] / file
        assert path.is_file(), file
        node: ast.AST | None = ast.parse(path.read_text())
        for part in filter(None, name.split(".")):
            assert node is not None
            node = next((child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part), None)
            assert node is not None, f"{file} has no {name}"


def test_the_readme_states_the_length_of_the_forward_pass() -> None:
    text = (SOURCE.parents[1] / "README.md").read_text()
    stated = re.search(r"read `models/vit.py`, `models/embed.py` and `models/drop.py`: ([\d,]+) lines", text)
    assert stated
    lines = sum((SOURCE / "models" / f"{name}.py").read_text().count("\n") for name in ("vit", "embed", "drop"))
    assert stated[1] == f"{lines:,}"
