"""`hf://owner/name[@revision]`: Hugging Face's hub, through its own library, cache and offline mode."""

import re
from pathlib import Path

from vitreous.errors import VitreousError

SCHEME = "hf://"
# A repository may hold the same weights several times: the first kind it has is taken.
KINDS = (["*.safetensors", "*.safetensors.index.json"], ["*.npz"], ["*.bin", "*.bin.index.json", "*.pth", "*.pt"])


def fetch(source: str) -> Path:
    """The local folder of a repository, downloaded if it is not in the cache."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", source)
    if match is None:
        raise VitreousError(f"{source}: expected hf://owner/name or hf://owner/name@revision")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, revision = match[1], match[2]
    folder = Path()
    for kind in KINDS:
        try:
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=["*.json", *kind]))
        except LocalEntryNotFoundError as error:
            why = "offline (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
            raise VitreousError(f"{source}: {why}, and it is not in the cache") from error
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "?"
            why = "needs permission (`hf auth login`)" if status in (401, 403) else "not found, name or revision"
            raise VitreousError(f"{source}: the hub says {status}: {why}") from error
        except (OSError, HFValidationError) as error:
            raise VitreousError(f"{source}: cannot be fetched ({error})") from error
        if any(path for pattern in kind for path in folder.glob(pattern)):
            return folder
    raise VitreousError(f"{source}: no weights in it, in any of the forms known here")
