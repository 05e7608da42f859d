"""Name this package, what an optional package is for, and how to install it where it is missing."""

from importlib.metadata import PackageNotFoundError, metadata
from importlib.util import find_spec

# Package as Python imports it -> its name on an index, and our extra.
EXTRAS = {
    "cloudpickle": ("cloudpickle", "cluster"),
    "dask": ("distributed", "cluster"),
    "distributed": ("distributed", "cluster"),
    "elasticsearch": ("elasticsearch", "servers"),
    "matplotlib": ("matplotlib", "compare"),
    "onnx": ("onnx", "export"),
    "onnxruntime": ("onnxruntime", "export"),
    "onnxscript": ("onnxscript", "export"),
    "opensearchpy": ("opensearch-py", "servers"),
    "pydantic": ("pydantic", "compare"),
    "scipy": ("scipy", "compare"),
    "sentence_transformers": ("sentence-transformers", "sentences"),
    "sklearn": ("scikit-learn", "compare"),
    "tantivy": ("tantivy", "datastore"),
    "zstandard": ("zstandard", "zst"),
}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    return find_spec(package) is not None


def explain_missing(purpose: str, *packages: str) -> str | None:
    """Return which of the packages are missing, and how to install them; None if all are there."""
    missing = [package for package in packages if not is_installed(package)]
    if not missing:
        return None
    names = ", ".join(EXTRAS[package][0] for package in missing)
    return f'{purpose} needs {names}, which is not installed: pip install ".[{EXTRAS[missing[0]][1]}]" in a clone.'


def require(purpose: str, *packages: str) -> None:
    """Raise a ModuleNotFoundError unless packages are installed.

    Args:
        purpose: Subject of the message, such as "a search in this process".
    """
    if (message := explain_missing(purpose, *packages)) is not None:
        raise ModuleNotFoundError(message)


def name_package() -> str:
    """Return the name of this package, as a link if its metadata have a URL. No package index has it."""
    try:
        urls = metadata("hf-domain").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    return f"[hf-domain]({urls[0].rpartition(' ')[2]})" if urls else "hf-domain"
