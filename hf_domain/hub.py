"""Check that a folder is complete and safe, then publish it in one commit."""

import json
import re
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # HTTPError of the Hub client's HTTP library
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer
from transformers.dynamic_module_utils import get_relative_imports

from hf_domain.methods import OWN_TYPES
from hf_domain.modeling.configuration_gmap import check_memory_reference

# Files that load a saved model. Metrics, logs and the trainer's state are not uploaded.
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
# Other files of a publication.
OTHER_FILES = ("README.md", "*.png", "LICENSE*")
# Files that may run code on loading, also compressed.
PICKLE = re.compile(
    r"\.(bin|pt|pth|pkl|pickle|ckpt|joblib|dill|npy|npz)(\.(gz|bz2|xz|zip|zst|bak|old))?$", re.IGNORECASE
)
# Seconds between attempts; long enough for a restart of the Hub.
RETRY_SECONDS = (1, 4)


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the configuration of a saved model."""
    return json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))


def has_own_code(config: dict[str, Any]) -> bool:
    """Return whether our code computes a model and is saved with it.

    An `auto_map` is not enough: a derived model keeps the `auto_map` of its base, and `trust_remote_code` would run
    the code that it names.
    """
    return config.get("model_type") in OWN_TYPES


def list_foreign_code(config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of `auto_map` that name other code than ours, such as that of an encoder in our model."""
    entries = (config.get("auto_map") or {}).items()
    return {key: each for key, each in entries if "." in key or "--" in str(each) or not has_own_code(config)}


def carries_foreign_code(folder: str | Path) -> bool:
    """Return whether a model's folder has other code than ours that computes it.

    A stock model that was made from one with code may keep its `auto_map`, but has no code in its folder. The folder of
    a run that only evaluates has no model.
    """
    if not Path(folder, "config.json").is_file():
        return False
    names = [str(each) for each in list_foreign_code(read_config(folder)).values()]
    return any(Path(folder, f"{name.partition('.')[0]}.py").is_file() for name in names)


def is_hub_id(name: str, folder: str | Path = "") -> bool:
    """Return whether a name is a repository of the Hub and not a path.

    Args:
        folder: Base of relative paths.
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
        replaced: Pattern of old files that the commit deletes.
        revision: Branch; None for the main branch.

    Returns:
        The URL of the commit.
    """
    old = set(filter_repo_objects(api.list_repo_files(repo_id, revision=revision), allow_patterns=replaced))
    operations: list[Any] = [CommitOperationDelete(name) for name in sorted(old - {*names, ".gitattributes"})]
    operations += [CommitOperationAdd(name, folder / name) for name in names]
    return api.create_commit(repo_id, operations, commit_message=message, revision=revision).commit_url


def check_publication(folder: Path) -> list[str]:
    """Return the names of the files to publish, after checking that the publication is complete and safe.

    Args:
        folder: A saved model with its README.md.

    Raises:
        ValueError: A file is missing, there is a pickle, or the model needs a local folder.
    """
    files = [file for file in folder.rglob("*") if file.is_file()]
    paths = sorted(file.relative_to(folder).as_posix() for file in files)
    top = [path for path in paths if "/" not in path]
    names = [*filter_repo_objects(top, allow_patterns=[*MODEL_FILES, *OTHER_FILES])]
    if missing := sorted({"config.json", "tokenizer_config.json", "README.md"} - {*names}):
        raise ValueError(
            f"a publication must have a model, tokenizer and card, but {folder} lacks {', '.join(missing)}. Save them."
        )
    # Trainer's pickles are not an error, because only files that loading needs are uploaded.
    uploadable = filter_repo_objects(paths, ignore_patterns=["training_args.bin", "checkpoint-*/*"])
    if pickles := [path for path in uploadable if PICKLE.search(path)]:
        raise ValueError(
            f"a publication must have only safetensors, but {folder} has {', '.join(pickles)}. Remove them."
        )
    check_code(folder)
    code = list_code(folder)
    if lost := [name for name in [*list_weights(folder), *code] if name not in names]:
        raise ValueError(
            f"a publication must have every file of its model, but {folder} lacks {', '.join(lost)}. Save it again."
        )
    check_memory_reference(read_config(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(
            f"a publication must have a vocabulary, but the tokenizer of {folder} has none. Save it again."
        )
    names += [name for name in tokenizer.vocab_files_names.values() if name in paths and name not in names]
    return [name for name in names if name in code or not name.endswith(".py")]


def check_code(folder: Path) -> None:
    """Raise a ValueError if a publication would run code other than ours, which it contains."""
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    found = {"config.json": list_foreign_code(read_config(folder)), "tokenizer_config.json": tokenizer.get("auto_map")}
    for name, named in found.items():
        if named:
            raise ValueError(
                f"a publication must not run other people's code, but auto_map of {folder / name} names "
                f"{', '.join(map(str, named.values()))}. Remove the entry."
            )


def list_weights(folder: Path) -> list[str]:
    """List the weights files of a model, existing or not; raise a ValueError if one is truncated."""
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
                    f"{folder / name} must be a complete weights file, but cannot be read ({error}). Save the model "
                    "again."
                ) from error
    return names


def list_code(folder: Path) -> list[str]:
    """List the code files that `auto_map` names, and those that they import, existing or not."""
    modules = set()
    for file in (folder / "config.json", folder / "tokenizer_config.json"):
        for value in json.loads(file.read_text(encoding="utf-8")).get("auto_map", {}).values():
            for name in value if isinstance(value, list) else [value]:  # a tokenizer's slow and fast class, or None
                if name and "--" not in name:  # the code of another repository is not in this folder
                    modules.add(name.rpartition(".")[0])
    names = [f"{module}.py" for module in sorted(modules)]
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
        private: Whether a new repository is private; None uses the owner's setting.
        token: Hub token; None uses the token of `hf auth login`.

    Returns:
        The URL of the commit.

    Raises:
        ValueError: The folder is incomplete or has a pickle; see `check_publication`.
        PermissionError, ConnectionError: See `retry_on_the_hub`.
    """
    folder, api = Path(folder), HfApi(token=token)
    names = check_publication(folder)

    def push() -> str:
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return commit_files(api, name, folder, names, replaced="*", message="Publish the model")

    return retry_on_the_hub(push, repo_id)


def retry_on_the_hub(push: Callable[[], str], repo_id: str) -> str:
    """Push with `push`, which returns the URL of its commit; retry after temporary failures.

    Raises:
        ValueError: The Hub refuses the metadata of the card, or a name is invalid.
        PermissionError: The token is missing or may not write there.
        ConnectionError: The Hub failed or was unreachable several times; the commit is complete or absent.
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
                    f"the token must be allowed to write {repo_id}, but the Hub refused it ({status}): {reason}. Log "
                    "in with `hf auth login`, or pass another token."
                ) from error
            passes = status is None or status == 429 or status >= 500
            if wait is None or not passes:
                # The commit may exist even if its answer was lost; it is complete or absent.
                advice = "No partial commit exists; try again later." if passes else "Nothing was published."
                raise ConnectionError(
                    f"the Hub must accept the commit to {repo_id}, but failed ({status or type(error).__name__}): "
                    f"{reason}. {advice}"
                ) from error
            time.sleep(wait)
    raise AssertionError("the last attempt must return or raise")


@cache
def list_licenses() -> tuple[str, ...]:
    """Return the license identifiers that the Hub accepts (hub-docs, repositories-licenses)."""
    return tuple((files("hf_domain") / "hub_licenses.txt").read_text(encoding="utf-8").split())


def check_license(license: str | None) -> None:
    """Raise a ValueError unless the Hub accepts a license."""
    if license is not None and license not in list_licenses():
        near = get_close_matches(license.lower(), list_licenses(), n=1)
        raise ValueError(
            f"a license must be an identifier of the Hub, such as apache-2.0, but is {license!r}. "
            f"{f'Did you mean {near[0]}?' if near else 'Use other, and put the text into a LICENSE file.'}"
        )
