"""Update the generated parts of README.md and docs/*.md: `python docs/refresh.py` (`--check`: only report).

| marker | what follows it |
|---|---|
| `<!-- code: models/vit.py Block.forward -->` | the source of that function, with a link to its lines |
| `<!-- cost -->` | FLOPs and memory by image size and patch size |
| `<!-- recipes -->` | all recipes with their results |
| `<!-- weights -->` | the names that download |
| `<!-- measured: speed -->` | the table of that name in benchmarks/tables.py |
| `<!-- paper: table8 -->` | table, figure and verdict from docs/paper/table8-small/result.json |
| `<!-- paper table: table8 -->` | the table alone |
| `<!-- example: examples/dropout.py -->` | that file |
| `<!-- api -->` | all public names: signatures, docstrings, examples (docs/api_reference.py) |

Each part ends at `<!-- /code -->`, `<!-- /example -->`, `<!-- /cost -->`, `<!-- /recipes -->`, `<!-- /weights -->`,
`<!-- /measured -->`, `<!-- /paper -->` or `<!-- /api -->`.
"""

import ast
import re
import sys
from pathlib import Path
from textwrap import dedent

from api_reference import api_reference

import vitreous
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.models import zoo
from vitreous.training.recipes import RECIPES, recipe_card
from vitreous.weights.known_weights import KNOWN_WEIGHTS

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "vitreous"
BENCHMARKS = DOCS.parent / "benchmarks"


def excerpt(file: str, name: str) -> str:
    """Return the source of a function or class without its docstring, after a link to its lines."""
    text = (SOURCE / file).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node):
        body = node.body[0]
        assert body.end_lineno is not None
        del lines[body.lineno - node.lineno : body.end_lineno - node.lineno + 1]
    link = f"[`{file}:{node.lineno}`](../src/vitreous/{file}#L{node.lineno}-L{node.end_lineno}) `{name}`"
    return "\n".join([link, "```python", dedent("\n".join(lines)).strip(), "```"])


def cost_table() -> str:
    """Return the cost of B with several image and patch sizes."""
    rows = ["| image size | patch size | tokens | token pairs | pixel pairs (billions) | GFLOPs | activations (MiB) |"]
    rows.append("|" + "---:|" * 7)
    for size in (224, 384, 640):
        for patch in (8, 16, 32):
            rows.append(cost_row(size, patch))
    for size in (224, 392, 518):
        rows.append(cost_row(size, 14))
    return "\n".join(rows)


def cost_row(size: int, patch: int) -> str:
    cost = vitreous.cost(zoo.config("B/16", patch_size=patch, image_size=size))
    cells = (
        f"{size:,}",
        str(patch),
        f"{cost.tokens:,}",
        f"{cost.pairs:,}",
        f"{cost.pixel_pairs / 1e9:,.1f}",
        f"{cost.flops.total / 1e9:,.1f}",
        f"{cost.activation_bytes / 2**20:,.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def recipe_table() -> str:
    """Return one row per recipe, from the docstrings of the recipes."""
    rows = ["| recipe | data | result | measured on | time | hardware |", "|" + "---|" * 6]
    for one in map(recipe_card, RECIPES):
        rows.append(f"| `{one.name}` | {one.data} | {one.result} | {one.measured} | {one.time} | {one.hardware} |")
    return "\n".join(rows)


def weights_table() -> str:
    """Return one row per name of `vitreous models --weights`."""
    rows = [
        "| name | model | parameters | px | pre-training data | licence | address |",
        "|---|---|---:|---:|---|---|---|",
    ]
    for entry in KNOWN_WEIGHTS.values():
        parameters = f"{vitreous.cost(entry.config).parameters:,}"
        link = f"[{entry.repository}](https://huggingface.co/{entry.repository})"
        cells = (f"`{entry.name}`", entry.architecture, parameters, str(entry.size), entry.data, entry.licence, link)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def measured_table(name: str) -> str:
    """Return a table of benchmarks/tables.py."""
    sys.path.insert(0, str(BENCHMARKS))
    from tables import generated

    return str(generated(name))


def paper_result(name: str) -> str:
    """Return table, figure, verdict and conditions of an experiment, from its stored cells."""
    result = ExperimentResult.read(DOCS / "paper" / f"{name}-small" / "result.json")
    figure = f"![{result.experiment.title}](paper/{name}-small/{name}.png)"
    return "\n".join([result.table.markdown(), figure, "", result.paragraph(), "", " ".join(result.measured_on())])


def paper_table(name: str) -> str:
    result = ExperimentResult.read(DOCS / "paper" / f"{name}-small" / "result.json")
    return result.table.markdown().strip()


def refresh_text(text: str) -> str:
    """Return a page with its generated parts up to date."""
    text = re.sub(
        r"(<!-- code: (\S+) (\S+) -->\n).*?(<!-- /code -->)",
        lambda match: f"{match[1]}{excerpt(match[2], match[3])}\n{match[4]}",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"(<!-- measured: (\S+) -->\n).*?(<!-- /measured -->)",
        lambda match: f"{match[1]}{measured_table(match[2])}\n{match[3]}",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"(<!-- example: (\S+) -->\n).*?(<!-- /example -->)",
        lambda match: f"{match[1]}```python\n{(DOCS.parent / match[2]).read_text().strip()}\n```\n{match[3]}",
        text,
        flags=re.DOTALL,
    )
    for marker, part in (("paper", paper_result), ("paper table", paper_table)):
        text = re.sub(
            rf"(<!-- {marker}: (\S+) -->\n).*?(<!-- /paper -->)",
            lambda match, part=part: f"{match[1]}{part(match[2])}\n{match[3]}",
            text,
            flags=re.DOTALL,
        )
    parts = (("cost", cost_table), ("recipes", recipe_table), ("weights", weights_table), ("api", api_reference))
    for name, table in parts:
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda match, table=table: f"{match[1]}{table()}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> None:
    stale = []
    pages = (DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md"))
    for path in [*pages, *sorted(DOCS.glob("*.md"))]:
        old = path.read_text()
        new = refresh_text(old)
        if new != old:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    if stale and "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)} are out of date: run python docs/refresh.py")


if __name__ == "__main__":
    main()
