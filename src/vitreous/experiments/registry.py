"""Find experiments by name: every file in this folder that defines `EXPERIMENT` is one."""

from __future__ import annotations

import pkgutil
from difflib import get_close_matches
from importlib import import_module

from vitreous import experiments
from vitreous.errors import VitreousError, brief
from vitreous.experiments.grid.experiment import Experiment
from vitreous.utils.import_path import import_object, is_import_path

VARIABLE = "EXPERIMENT"  # that holds the experiment of a file
ORDER = ("table", "figure")  # names that start with these come first in the list


def experiment_names() -> list[str]:
    """Return the names of all experiments: tables first, then figures, then the others."""
    return list(all_experiments())


def all_experiments() -> dict[str, Experiment]:
    """Import every file of this package, and return its experiments by name."""
    found = {}
    for module in pkgutil.iter_modules(experiments.__path__):
        if not module.ispkg:
            value = getattr(import_module(f"{experiments.__name__}.{module.name}"), VARIABLE, None)
            if isinstance(value, Experiment):
                found[module.name.replace("_", "-")] = value

    def place(name: str) -> tuple[int, int, str]:
        kind = next((i for i, start in enumerate(ORDER) if name.startswith(start)), len(ORDER))
        digits = "".join(filter(str.isdecimal, name))
        return kind, int(digits or 0), name

    return {name: found[name] for name in sorted(found, key=place)}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of this name, or at this import path (file.py:NAME)."""
    if not isinstance(name, str):
        raise VitreousError(f"expected the name of an experiment, got {brief(name)}")
    known = all_experiments()
    if name in known:
        return known[name]
    if is_import_path(name):
        value = import_object(name)
        if not isinstance(value, Experiment):
            raise VitreousError(f"{name} is {brief(value)}: expected an instance of Experiment")
        return value
    near = get_close_matches(name.lower().replace("_", "-").replace(" ", ""), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the experiments are {', '.join(known)}"
    raise VitreousError(f"there is no experiment {name!r}; {hint}")


def short_name(name: str) -> str:
    """Return the name of an experiment for its folder and files. dropout.py:EXPERIMENT: dropout; dropout.py:Rates:
    rates."""
    if not is_import_path(name):
        return name
    place, _, variable = name.rpartition(":")
    file = place.removesuffix(".py").replace("\\", "/").rpartition("/")[2].rpartition(".")[2]
    return (file if variable == VARIABLE else variable).lower().replace("_", "-").replace(".", "-")
