"""Generates the body of docs/api.md from signatures, docstrings and field comments: `python docs/refresh.py` calls it.

A docstring is Markdown. Its examples (`>>>`) become code blocks. A field is explained by the comment behind it or by
the string below it. Types are those in the source; aliases such as `Size` are replaced by what they stand for.
"""

import ast
import io
import re
import tokenize
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc, getdoc, getsource, isclass, isfunction
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, NamedTuple, get_origin, get_type_hints

import vitreous

SOURCE = Path(vitreous.__file__).parent
WIDTH = 100  # characters of a signature on one line
PROPERTY = "(property)"  # instead of a default value
# The group of a name is that of the longest prefix of its module.
GROUPS = {
    "Models": ("vitreous.models", "vitreous.preprocessing", "vitreous.fast"),
    "Weights": ("vitreous.weights",),
    "Data": ("vitreous.data", "vitreous.reports.check_data"),
    "Training": ("vitreous.training",),
    "Prediction and evaluation": ("vitreous.evaluation", "vitreous.serving"),
    "Inspection": ("vitreous.inspection", "vitreous.reports"),
    "Experiments": ("vitreous.experiments", "vitreous.benchmark"),
    "Errors and warnings": ("vitreous.errors",),
}
# Types of arguments and of parts of results. Classes that public functions return are found by themselves.
OTHER_TYPES = {
    "Result": "vitreous.evaluation.metrics",
    "ClassScore": "vitreous.evaluation.metrics",
    "Calibration": "vitreous.models.calibration",
    "CalibrationScores": "vitreous.evaluation.temperature",
    "InferenceOptions": "vitreous.evaluation.inference_options",
    "ReproduceOptions": "vitreous.experiments.options",
    "Flops": "vitreous.models.cost",
    "Source": "vitreous.data.dataset",
    "SweepRow": "vitreous.experiments.sweeps.sweep_result",
}


class Attribute(NamedTuple):
    name: str
    type: str
    default: str
    meaning: str


def api_reference() -> str:
    """Return an index of all public names, and an entry for each, by group."""
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for name, home in vitreous._HOMES.items():
        groups[group_of(home)].append(name)
    lines, entries = [], []
    for title, members in groups.items():
        members.sort(key=lambda name: (isclass(getattr(vitreous, name)), name.lower()))
        lines += [f"\n**{title}**\n", *(f"- [`{name}`](#{anchor(name)}): {summary(name)}" for name in members)]
        entries += [f"## {title}", *(entry(name, getattr(vitreous, name)) for name in members)]
    entries += ["## Other types", "Types of arguments and results. They are imported from their modules."]
    entries += [entry(name, item) for name, item in other_types().items()]
    return "\n\n".join(["\n".join(lines).strip(), *entries])


@cache
def other_types() -> dict[str, type]:
    """The types in OTHER_TYPES, and the classes that public functions return."""
    found = {name: getattr(import_module(home), name) for name, home in OTHER_TYPES.items()}
    functions = [item for name in vitreous.__all__ if isfunction(item := getattr(vitreous, name))]
    for function in functions:
        names, returned = vars(import_module(function.__module__)), parse(function).returns
        for node in ast.walk(returned) if returned is not None else ():
            item = names.get(node.id) if isinstance(node, ast.Name) else None
            if isclass(item) and item.__module__.startswith("vitreous.") and item.__name__ not in vitreous.__all__:
                found[item.__name__] = item
    return found


def group_of(module: str) -> str:
    found = [
        (len(prefix), title)
        for title, prefixes in GROUPS.items()
        for prefix in prefixes
        if f"{module}.".startswith(f"{prefix}.")
    ]
    assert found, f"{module} has no group in docs/api_reference.py"
    return max(found)[1]


def anchor(name: str) -> str:
    return name if name[0].islower() else f"class-{name.lower()}"


def summary(name: str) -> str:
    """Return the first sentence of a docstring, up to a list."""
    first = " ".join((getdoc(getattr(vitreous, name)) or "").split("\n\n")[0].split())
    return escape(re.split(r"[.:] (?=[A-Z`(])", first)[0].rstrip(".:"))


def entry(name: str, item: Any) -> str:
    """Return the section of a class or function."""
    place = Path(import_module(item.__module__).__file__ or "").relative_to(SOURCE).as_posix()
    parts = [f"### {'class ' if isclass(item) else ''}{name}"]
    if isclass(item):
        parts += [docstring(item), *class_members(item)]
    else:
        parts += [f"```python\n{signature(item)}\n```", docstring(item)]
    return "\n\n".join(filter(None, [*parts, f"Source: [`{place}`](../src/vitreous/{place})"]))


def class_members(item: type) -> list[str]:
    """Return the table of attributes, groups of fields (of TrainConfig), and the methods of a class."""
    groups = field_groups(item)
    parts = [table([one for one in fields_of(item) if one.name not in groups] + properties_of(item))]
    parts += [
        f"#### {group.__name__}: `{name}`\n\n{docstring(group)}\n\n{table(fields_of(group))}"
        for name, group in groups.items()
    ]
    for name, method in methods_of(item).items():
        parts += [f"#### `{signature(method, name)}`", docstring(method)]
    return parts


def field_groups(item: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses with default values: the groups of settings of TrainConfig."""
    hints = get_type_hints(item) if is_dataclass(item) else {}
    names = [one.name for one in fields_of(item) if one.default == f"{one.type}()"]
    return {name: hints[name] for name in names if is_dataclass(hints[name])}


def own_classes(item: type) -> list[type]:
    """A class and its bases in this package, the bases first."""
    return [one for one in reversed(item.__mro__) if one.__module__.startswith("vitreous.")]


def methods_of(item: type) -> dict[str, Any]:
    """The public methods of a class and its bases in this package."""
    members = {name: value for one in own_classes(item) for name, value in vars(one).items() if name[0] != "_"}
    members = {name: getattr(value, "__func__", value) for name, value in members.items()}
    return {name: value for name, value in members.items() if isfunction(value)}


def properties_of(item: type) -> list[Attribute]:
    members = {name: value for one in own_classes(item) for name, value in vars(one).items() if name[0] != "_"}
    found = {name: getattr(value, "fget", None) or getattr(value, "func", None) for name, value in members.items()}
    return [
        Attribute(name, type_text(returns, function), PROPERTY, " ".join((getdoc(function) or "").split()))
        for name, function in found.items()
        if function is not None and (returns := parse(function).returns) is not None
    ]


def fields_of(item: type) -> list[Attribute]:
    """The annotated public fields of a class and its bases, with the comment behind or the string below each."""
    found: dict[str, Attribute] = {}
    for one in own_classes(item):
        source = dedent(getsource(one))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        for node, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
                lines = range(node.lineno, (node.end_lineno or 0) + 1)
                meaning = " ".join(comments[line] for line in lines if line in comments)
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    meaning = " ".join(cleandoc(str(following.value.value)).split())
                name, default = node.target.id, "" if node.value is None else shown_default(node.value, one)
                inherited = found[name].meaning if name in found else ""
                found[name] = Attribute(name, type_text(node.annotation, one), default, meaning or inherited)
    return list(found.values())


def shown_default(node: ast.expr, item: Any) -> str:
    """A default value as text: the value of a constant of the module, and a call of `default_factory`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        factory = node.keywords[0].value
        return ast.unparse(factory.body) if isinstance(factory, ast.Lambda) else f"{ast.unparse(factory)}()"
    if isinstance(node, ast.Name | ast.Subscript | ast.BinOp):
        value = eval(ast.unparse(node), vars(import_module(item.__module__)))
        if isinstance(value, str | int | float | tuple | None):
            return repr(value)
    return ast.unparse(node)


def parse(function: Any) -> ast.FunctionDef:
    node = ast.parse(dedent(getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def signature(function: Any, name: str | None = None) -> str:
    """Return `name(arguments) -> result`; a long one has one argument per line. Methods have no self."""
    node = parse(function)
    listed = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(listed) - len(node.args.defaults)) + node.args.defaults
    parts = [
        argument(*pair, function) for pair in zip(listed, defaults, strict=True) if pair[0].arg not in ("self", "cls")
    ]
    if node.args.vararg or node.args.kwonlyargs:
        parts.append("*" + (ast.unparse(node.args.vararg) if node.args.vararg else ""))
    parts += [argument(*pair, function) for pair in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    parts += [f"**{ast.unparse(node.args.kwarg)}"] if node.args.kwarg else []
    start = f"{'vitreous.' if name is None else ''}{name or node.name}"
    end = f" -> {type_text(node.returns, function)}" if node.returns else ""
    line = f"{start}({', '.join(parts)}){end}"
    if name is not None or len(line) <= WIDTH:  # a method is a heading
        return line
    return f"{start}(\n{''.join(f'    {part},{chr(10)}' for part in parts)}){end}"


def argument(node: ast.arg, default: ast.expr | None, function: Any) -> str:
    text = node.arg if node.annotation is None else f"{node.arg}: {type_text(node.annotation, function)}"
    equals = "=" if node.annotation is None else " = "
    return text if default is None else f"{text}{equals}{shown_default(default, function)}"


def type_text(node: ast.expr, item: Any) -> str:
    """Return an annotation as text. Short aliases are replaced by what they stand for."""
    names = vars(import_module(item.__module__))

    class ReplaceAliases(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            value = names.get(name.id)
            is_alias = get_origin(value) is not None or value is str
            text = "str" if value is str else re.sub(r"\b(typing|collections\.abc)\.", "", str(value))
            is_short = len(text) <= (WIDTH if get_origin(value) is Literal else WIDTH // 2)
            return ast.parse(text, mode="eval").body if is_alias and is_short else name

    return ast.unparse(ReplaceAliases().visit(node))


def docstring(item: Any) -> str:
    """Return a docstring as Markdown: examples in code blocks, links to public names."""
    paragraphs = []
    for paragraph in (getdoc(item) or "").split("\n\n"):
        text, _, code = paragraph.partition(">>>")
        paragraphs += [link_names(escape(text.strip()))] if text.strip() else []
        paragraphs += [f"```pycon\n>>>{code}\n```"] if code else []
    return "\n\n".join(paragraphs).replace("\n```\n\n```pycon\n", "\n\n")  # one block for an example with blank lines


def link_names(text: str) -> str:
    """Link public functions, as `vitreous.load`, and classes, as `LoadReport`."""
    classes = "|".join([name for name in vitreous.__all__ if name[0].isupper()] + list(other_types()))
    functions = "|".join(name for name in vitreous.__all__ if name[0].islower())
    pattern = rf"`(?:vitreous\.({functions})|(?:vitreous\.)?({classes}))`"
    return re.sub(pattern, lambda match: f"[{match[0]}](#{anchor(match[1] or match[2])})", text)


def escape(text: str) -> str:
    """Escape what Markdown would interpret, except in code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part[:1] == "`" else re.sub(r"([*<])", r"\\\1", part) for part in parts)


def table(attributes: list[Attribute]) -> str:
    """Return a table of fields and properties."""
    if not attributes:
        return ""
    rows = ["| attribute | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, meaning in attributes:
        shown = default if default in ("", PROPERTY) else f"`{default}`"
        cells = (f"`{name}`", f"`{kind}`", shown, link_names(escape(meaning)))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
