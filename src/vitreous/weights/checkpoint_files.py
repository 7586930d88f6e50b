"""Find and open the files of a checkpoint: a file, a folder, `hf://owner/name`, or a name such as "vitreous-mini" or
"deit-tiny"."""

import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, find_url
from vitreous.utils.json_files import read_json
from vitreous.weights import hub, shipped
from vitreous.weights.containers import SUFFIXES, ShardedTensors, open_tensors, strip_wrapper_prefixes
from vitreous.weights.known_weights import (
    KNOWN_WEIGHTS,
    KnownWeights,
    find_known_weights,
    names_for_architecture,
    similar_names,
)
from vitreous.weights.tensors import Tensors

WEIGHT_FILES = (  # names of the weights in a folder, in order of preference
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "best.safetensors",  # of a training run
)
MAX_NAME_LENGTH = 500  # characters in a tensor name


@dataclass
class CheckpointFiles:
    """The tensors of a checkpoint, the JSON files of its folder, and where they were downloaded from."""

    tensors: Tensors
    config_json: dict[str, Any] = field(default_factory=dict)
    preprocessor_json: dict[str, Any] = field(default_factory=dict)
    known: KnownWeights | None = None  # the entry of the table, if `source` is one of its names
    provenance: dict[str, str] = field(default_factory=dict)  # address on the hub, revision, licence


def open_checkpoint(source: str | os.PathLike[str]) -> CheckpointFiles:
    """Open the weights at `source`, and read config.json and preprocessor_config.json if they belong to them."""
    path = _local_path(source)
    if not os.path.lexists(path):
        raise VitreousError(_not_found_message(source))
    try:
        weights = _weights_in(path) if path.is_dir() else path
    except OSError as error:
        raise VitreousError(f"cannot be read ({error.strerror or error})") from error
    opened = ShardedTensors(weights) if weights.name.endswith(".index.json") else open_tensors(weights)
    tensors = strip_wrapper_prefixes(opened)
    if long := next((name for name in tensors if len(name) > MAX_NAME_LENGTH), None):
        raise VitreousError(f"a tensor name has {len(long):,} characters: {long[:80]}...")
    if note := _ambiguity_note(source):
        tensors.notes.append(note)
    files = CheckpointFiles(tensors, known=find_known_weights(source), provenance=_provenance(source, path))
    # The JSON files of the folder may belong to another checkpoint, unless the weights have one of the usual names.
    if "vitreous" not in tensors.metadata and (path.is_dir() or weights.name in WEIGHT_FILES):
        json_files = [weights.parent / name for name in ("config.json", "preprocessor_config.json")]
        files.config_json, files.preprocessor_json = (
            read_json(file) if os.path.lexists(file) else {} for file in json_files
        )
    return files


def is_name(source: str) -> bool:
    """Return whether `source` is a name or an address, and not the path of a file or folder."""
    return source in shipped.NAMES or source.startswith(hub.SCHEME) or find_known_weights(source) is not None


def _ambiguity_note(source: str | os.PathLike[str]) -> str | None:
    """Return which of two checkpoints was loaded, if a name is also that of a file or folder."""
    if not isinstance(source, str) or not os.path.lexists(source):
        return None
    if source in shipped.NAMES:
        return f"source: the {source} of the package; the file in the current folder is ./{source}"
    if source in KNOWN_WEIGHTS:
        address = KNOWN_WEIGHTS[source].address
        return f"source: ./{source} of the current folder; the weights of that name on the hub are {address}"
    return None


def _provenance(source: str | os.PathLike[str], folder: Path) -> dict[str, str]:
    """Return the address of weights from the hub, the revision that was downloaded, and what the table says."""
    known = find_known_weights(source)
    if known is None and not (isinstance(source, str) and source.startswith(hub.SCHEME)):
        return {}
    recorded = known.provenance if known else {"address": str(source).partition("@")[0]}
    # The cache names the folder of a revision after its commit.
    return recorded | ({"revision": folder.name} if re.fullmatch(r"[0-9a-f]{40}", folder.name) else {})


def _not_found_message(source: str | os.PathLike[str]) -> str:
    text = os.fsdecode(source)
    if find_url(source):
        return "this is a URL: download it and give the name of the file, or load weights from the hub: hf://owner/name"
    if near := get_close_matches(text.lower(), shipped.NAMES, n=1, cutoff=0.7):
        return f"no such file or folder; did you mean {near[0]}, which comes with the package?"
    if known := names_for_architecture(text):
        return f"no such file or folder; weights with this architecture: {', '.join(known)}"
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) and not Path(text).parent.exists():
        return f"no such file or folder; for weights of the Hugging Face hub: hf://{text}"
    if similar := similar_names(text):
        names = " or ".join(filter(None, (", ".join(similar[:-1]), similar[-1])))
        return f"no such file or folder; did you mean the weights {names}? `vitreous models --weights` lists all names"
    return "no such file or folder"


def _local_path(source: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint. Downloads it from the hub if necessary."""
    if source in shipped.NAMES:  # a str with this name is always the shipped checkpoint, a Path is always a file
        return shipped.path_of(str(source))
    text = os.fsdecode(source)
    return hub.fetch(text) if text.startswith(hub.SCHEME) or find_known_weights(source) else Path(text)


def _weights_in(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    candidates = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    candidates = [file for file in candidates if not file.name.startswith(".")]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(file.name for file in candidates)
        raise VitreousError(f"a folder with several checkpoints; give the path of one: {names}")
    raise VitreousError(f"a folder without weights: no file in it ends in {', '.join(SUFFIXES)}")
