"""Publish a folder in one commit, after checking that it is a complete and safe publication."""

import json
import re
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # HTTPError of its HTTP library
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer
from transformers.dynamic_module_utils import get_relative_imports

from hf_domain.methods import OWN_TYPES
from hf_domain.modeling.configuration_gmap import check_memory_reference

# The files that loading a saved model needs. Metrics, logs and the trainer's state are not uploaded.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "*.py",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
# Further files of a publication.
OTHER_FILES = ("README.md", "report.json", "*.png", "LICENSE*")
# Files that may run code when they are loaded, also when compressed.
PICKLE = re.compile(
    r"\.(bin|pt|pth|pkl|pickle|ckpt|joblib|dill|npy|npz)(\.(gz|bz2|xz|zip|zst|bak|old))?$", re.IGNORECASE
)
# Seconds between attempts; a Hub that restarts is back within them.
RETRY_SECONDS = (1, 4)


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the configuration of a saved model."""
    return json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))


def has_own_code(config: dict[str, Any]) -> bool:
    """Return whether our code computes a model and is saved with it.

    An `auto_map` alone does not show this: one that belongs to the base stays in the configuration of a derived model,
    and `trust_remote_code` would run the code that it names.
    """
    return config.get("model_type") in OWN_TYPES


def is_hub_id(name: str, folder: str | Path = "") -> bool:
    """Return whether a name is a repository of the Hub rather than a path.

    Args:
        folder: Where relative paths start.
    """
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None and not Path(folder, name).exists()


def commit_files(
    api: HfApi,
    repo_id: str,
    folder: Path,
    names: Sequence[str],
    *,
    replaced: str,
    message: str,
    revision: str | None = None,
) -> str:
    """Push files of a folder in one commit; `upload_folder` may split a large upload into several.

    Args:
        repo_id: An existing repository.
        names: Paths in the folder and in the repository.
        replaced: Pattern of the files that the commit deletes unless it brings them.
        revision: Branch; None is the main one.

    Returns:
        The address of the commit.
    """
    old = set(filter_repo_objects(api.list_repo_files(repo_id, revision=revision), allow_patterns=replaced))
    operations: list[Any] = [CommitOperationDelete(name) for name in sorted(old - {*names, ".gitattributes"})]
    operations += [CommitOperationAdd(name, folder / name) for name in names]
    return api.create_commit(repo_id, operations, commit_message=message, revision=revision).commit_url


def check_publication(folder: Path) -> list[str]:
    """Check that a folder is a complete and safe publication.

    Args:
        folder: A saved model with its README.md.

    Returns:
        The names of the files to publish: those that loading needs, and those that describe the model.

    Raises:
        ValueError: A file is missing, there is a pickle, or the model needs a local folder.
    """
    files = [file for file in folder.rglob("*") if file.is_file()]
    paths = sorted(file.relative_to(folder).as_posix() for file in files)
    names = [path for path in paths if any(fnmatch(path, p) for p in (*MODEL_FILES, *OTHER_FILES)) and "/" not in path]
    if missing := sorted({"config.json", "tokenizer_config.json", "README.md"} - {*names}):
        raise ValueError(f"a publication must hold model, tokenizer and card, but {folder} lacks {', '.join(missing)}")
    # Trainer's own pickles are never uploaded, nor is anything else that loading does not need.
    left = ("training_args.bin", "checkpoint-*/*")
    if pickles := [path for path in paths if PICKLE.search(path) and not any(fnmatch(path, p) for p in left)]:
        raise ValueError(
            f"a publication must hold safetensors only, but {folder} has {', '.join(pickles)}. Remove them."
        )
    check_code(folder)
    code = list_code(folder)
    if lost := [name for name in [*list_weights(folder), *code] if name not in names]:
        raise ValueError(
            f"a publication must hold the whole model, but {folder} lacks {', '.join(lost)}. Save the model again."
        )
    check_memory_reference(read_config(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(
            f"a publication must hold a vocabulary, but the tokenizer of {folder} has none. Save it again."
        )
    names += [name for name in tokenizer.vocab_files_names.values() if name in paths and name not in names]
    return [name for name in names if name in code or not name.endswith(".py")]


def check_code(folder: Path) -> None:
    """Check that a publication runs no code but ours, which it contains.

    Raises:
        ValueError: An `auto_map` names code of another repository, or a class of transformers has one.
    """
    is_ours = has_own_code(read_config(folder))
    for name in ("config.json", "tokenizer_config.json"):
        named = json.loads((folder / name).read_text(encoding="utf-8")).get("auto_map") or {}
        if named and ("--" in json.dumps(named) or not is_ours or name != "config.json"):
            raise ValueError(
                f"a publication must not run other people's code, but auto_map of {folder / name} names "
                f"{', '.join(map(str, named.values()))}. Remove the entry."
            )


def list_weights(folder: Path) -> list[str]:
    """List the files that should hold the weights of a model, existing or not.

    Raises:
        ValueError: A file of the weights is truncated.
    """
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file() and not (folder / names[0]).is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    for name in names:
        if (folder / name).is_file():
            try:
                safe_open(folder / name, framework="pt")
            except SafetensorError as error:
                raise ValueError(
                    f"{folder / name} must hold whole weights, but cannot be read ({error}). Save the model again."
                ) from error
    return names


def list_code(folder: Path) -> list[str]:
    """List the files of the code that `auto_map` names and of its imports, existing or not."""
    configs = [
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "tokenizer_config.json")
    ]
    named = [value for config in configs for value in config.get("auto_map", {}).values()]
    classes = [c for value in named for c in (value if isinstance(value, list) else [value]) if c and "--" not in c]
    names = sorted({f"{name.rpartition('.')[0]}.py" for name in classes})
    for name in names:  # the list grows in the loop
        if (folder / name).is_file():
            imported = [f"{module}.py" for module in get_relative_imports(folder / name)]
            names += [each for each in dict.fromkeys(imported) if each not in names]
    return names


def publish(folder: str | Path, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Push a model (weights, tokenizer, code, card and pictures) to the Hub in one commit.

    The repository then contains only these files; leftovers of earlier commits are deleted. Nothing else is uploaded.

    Args:
        folder: A saved model with its README.md.
        repo_id: Repository, created if missing; a name without owner belongs to the token's account.
        private: Whether a new repository is private; None takes the owner's setting.
        token: Hub token; None takes the one of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        ValueError: The folder is not a whole publication, or holds a pickle; see `check_publication`.
        PermissionError, ConnectionError: See `retry_on_the_hub`.
    """
    folder, api = Path(folder), HfApi(token=token)
    names = check_publication(folder)

    def push() -> str:
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return commit_files(api, name, folder, names, replaced="*", message="Publish the model")

    return retry_on_the_hub(push, repo_id)


def retry_on_the_hub(push: Callable[[], str], repo_id: str) -> str:
    """Push, and try again after temporary failures.

    Args:
        push: Makes one commit and returns its address.

    Returns:
        The address.

    Raises:
        ValueError: The Hub refuses the header of the card and gives the reason, or a name is invalid.
        PermissionError: The token is missing or may not write there.
        ConnectionError: The Hub failed or could not be reached, several times; the commit is complete or absent.
    """
    for wait in (*RETRY_SECONDS, None):
        try:
            return push()
        except HFValidationError:
            raise
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            if str(error).startswith("Invalid metadata in README.md"):
                raise
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = (getattr(error, "server_message", None) or str(error)).strip().partition("\n")[0]
            if status in (401, 403):
                raise PermissionError(
                    f"the Hub refused to write {repo_id} ({status}): {reason}. Log in with `hf auth login`, or pass a "
                    "token that may write there"
                ) from error
            passes = status is None or status == 429 or status >= 500
            if wait is None or not passes:
                # The commit may exist although its answer was lost; it is complete or absent.
                advice = "no half of it was published; try again later" if passes else "nothing was published; why"
                raise ConnectionError(
                    f"{repo_id} could not be written ({status or type(error).__name__}); {advice}: {reason}"
                ) from error
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")
