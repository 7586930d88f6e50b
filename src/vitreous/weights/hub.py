"""`hf://owner/name[@revision]`: Hugging Face's hub, through its own library, cache and offline mode."""

import re
from pathlib import Path

from vitreous.errors import VitreousError

SCHEME = "hf://"
# A repository may hold the same weights several times: the first kind it has is taken.
KINDS = (["*.safetensors", "*.safetensors.index.json"], ["*.npz"], ["*.bin", "*.bin.index.json", "*.pth", "*.pt"])


def fetch(source: str) -> Path:
    """The local folder of a repository, downloaded if it is not in the cache. Folders inside it are left alone."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", source)
    if match is None:
        raise VitreousError("expected hf://owner/name or hf://owner/name@revision")
    from huggingface_hub import constants, snapshot_download

    for kind in KINDS:
        wanted = ["*.json", *kind]
        try:
            folder = Path(
                snapshot_download(match[1], revision=match[2], allow_patterns=wanted, ignore_patterns=["*/*"])
            )
        except Exception as error:  # its own, its HTTP library's or the system's
            raise VitreousError(_reason(error)) from error
        if any(path for pattern in kind for path in folder.glob(pattern)):
            return folder
    where = "in the cache, and HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "in it"
    raise VitreousError(f"no weights {where}, in any of the forms known here")


def _reason(error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RevisionNotFoundError

    uncached = isinstance(error, LocalEntryNotFoundError)
    if uncached and constants.HF_HUB_OFFLINE:
        return "not in the cache, or not all of it, and HF_HUB_OFFLINE is set"
    said = error.__cause__ if uncached else error  # why it looked into the cache
    if isinstance(said, RevisionNotFoundError):
        return "the hub knows no such revision of it"
    status = said.response.status_code if isinstance(said, HfHubHTTPError) and said.response is not None else None
    if status in (401, 403, 404):
        return f"the hub says {status}: there is no such repository, or it needs permission (`hf auth login`)"
    if status is not None:
        return f"the hub says {status}: try again later"
    if uncached:
        return "the hub cannot be reached, and it is not in the cache"
    return f"cannot be fetched ({' '.join(str(error).split())[:200] or type(error).__name__})"
