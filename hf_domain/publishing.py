"""Model cards, and publishing a folder in one commit."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HTTPError  # of whatever library the client of the Hub speaks HTTP with

# Weights that run code when they are loaded; a published folder never holds one.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
# Between attempts: a Hub that restarts is back within these.
RETRY_SECONDS = (1, 4)


@dataclass
class Method:
    """What a model card says of a method."""

    name: str
    paper: str
    summary: str
    citation: str
    is_stock: bool = False


METHODS = {
    "dapt": Method(
        name="DAPT",
        paper="Gururangan et al. 2020, <https://aclanthology.org/2020.acl-main.740>",
        summary="{base_model}, trained further with masked language modeling on text of its domain.",
        citation="""@inproceedings{gururangan-etal-2020-dont,
  title = "Don't Stop Pretraining: Adapt Language Models to Domains and Tasks",
  author = "Gururangan, Suchin and others",
  booktitle = "Proceedings of ACL",
  year = "2020"
}""",
        is_stock=True,
    ),
    "lora": Method(
        name="DAPT with LoRA",
        paper="Hu et al. 2021, <https://arxiv.org/abs/2106.09685>",
        summary="{base_model}, trained further with masked language modeling on text of its domain by low-rank "
        "changes, which are merged into its weights.",
        citation="""@inproceedings{hu-etal-2022-lora,
  title = "{LoRA}: Low-Rank Adaptation of Large Language Models",
  author = "Hu, Edward J. and others",
  booktitle = "Proceedings of ICLR",
  year = "2022"
}""",
        is_stock=True,
    ),
    "varmae": Method(
        name="VarMAE",
        paper="Hu et al. 2022, <https://aclanthology.org/2022.findings-emnlp.468>",
        summary="{base_model} with a context-uncertainty module, trained by variational masked autoencoding on text of "
        "its domain; the encoder itself was frozen.",
        citation="""@inproceedings{hu-etal-2022-varmae,
  title = "{V}ar{MAE}: Pre-training of Variational Masked Autoencoder for Domain-adaptive Language Understanding",
  author = "Hu, Dou and others",
  booktitle = "Findings of EMNLP",
  year = "2022"
}""",
    ),
    "exbert": Method(
        name="exBERT",
        paper="Tai et al. 2020, <https://aclanthology.org/2020.findings-emnlp.129>",
        summary="{base_model} with an extension vocabulary and a side module in every layer, trained with masked "
        "language modeling on text of its domain; the encoder itself was frozen.",
        citation="""@inproceedings{tai-etal-2020-exbert,
  title = "ex{BERT}: Extending Pre-trained Models with Domain-specific Vocabulary Under Constrained Training Resources",
  author = "Tai, Wen and others",
  booktitle = "Findings of EMNLP",
  year = "2020"
}""",
    ),
    "gmap": Method(
        name="G-MAP",
        paper="Wan et al. 2022, <https://arxiv.org/abs/2212.03613>",
        summary="{base_model}, trained further with masked language modeling on text of its domain while its layers "
        "read a frozen general encoder as memory.",
        citation="""@inproceedings{wan-etal-2022-g,
  title = "{G}-{MAP}: General Memory-Augmented Pre-trained Language Model for Domain Tasks",
  author = "Wan, Zhongwei and others",
  booktitle = "Proceedings of EMNLP",
  year = "2022"
}""",
    ),
    "rada": Method(
        name="RADA",
        paper="Xu et al. 2023, <https://aclanthology.org/2023.repl4nlp-1.5>",
        summary="{base_model} with an interface that reads retrieved passages, trained by masked language modeling on "
        "text of its domain. Without passages it is its encoder alone.",
        citation="""@inproceedings{xu-etal-2023-retrieval,
  title = "Retrieval-Augmented Domain Adaptation of Language Models",
  author = "Xu, Benfeng and others",
  booktitle = "Proceedings of the 8th Workshop on Representation Learning for NLP (RepL4NLP 2023)",
  year = "2023"
}""",
    ),
}


def make_usage(method: str, model_name: str, example: str) -> str:
    """Return the snippet that shows how to use a masked LM.

    Args:
        method: A key of `METHODS`.
        model_name: A name on the Hub, or a folder.
        example: A sentence with the tokenizer's mask token.
    """
    trust = "" if METHODS[method].is_stock else ", trust_remote_code=True"
    lines = [
        "from transformers import pipeline",
        "",
        f'fill_mask = pipeline("fill-mask", model="{model_name}"{trust})',
        f'for answer in fill_mask("{example}", top_k=3):',
        "    print(f\"{answer['score']:.3f}  {answer['sequence']}\")",
    ]
    return "\n".join(lines)


def write_model_card(
    folder: str | Path,
    *,
    method: str,
    model_name: str,
    base_model: str,
    corpus: str,
    settings: dict[str, Any],
    limits: str,
    licence: str | None,
    licence_note: str,
    example: str,
    usage_output: str = "",
    language: str = "en",
    results_table: str | None = None,
    results_note: str = "",
    pictures: Sequence[str] = (),
) -> Path:
    """Write README.md into the folder of a masked LM.

    Args:
        folder: Folder of the saved model.
        method: A key of `METHODS`.
        model_name: Name of the model, as its users will write it.
        base_model: The encoder it was made from.
        corpus: The text it was trained on.
        settings: Hyper-parameters and costs, name to value.
        limits: What it was not tested for.
        licence: Identifier of the licence of the weights, as the Hub writes it; None if it is not settled.
        licence_note: Licences of base model and data.
        example: A sentence with the tokenizer's mask token, for the usage snippet.
        usage_output: What the snippet printed when it was run.
        language: Code of the language of the corpus.
        results_table: A Markdown table of measured results.
        results_note: What it was measured on.
        pictures: File names of plots in the folder.

    Returns:
        The path of the card.

    Raises:
        ValueError: The method is not known.
    """
    if method not in METHODS:
        raise ValueError(f"a model card is of one of {', '.join(METHODS)}; got {method}")
    about = METHODS[method]
    card = ModelCard.from_template(
        ModelCardData(
            language=language,
            license=licence,
            library_name="transformers",
            pipeline_tag="fill-mask",
            tags=["hf-domain", method],
            base_model=base_model if "/" in base_model and not Path(base_model).exists() else None,
        ),
        template_str=(files("hf_domain") / "model_card.md").read_text(encoding="utf-8"),
        model_name=model_name,
        summary=about.summary.format(base_model=base_model),
        base_model=base_model,
        corpus=corpus,
        method_name=about.name,
        paper=about.paper,
        usage=make_usage(method, model_name, example),
        usage_output=usage_output,
        trust=not about.is_stock,
        results_table=results_table,
        results_note=results_note,
        pictures=pictures,
        settings=settings,
        limits=limits,
        licence_note=licence_note,
        citation=about.citation,
    )
    path = Path(folder) / "README.md"
    card.save(path)
    return path


def publish(folder: str | Path, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
    """Push a folder (weights, tokenizer, code and card) to the Hub in one commit.

    Args:
        folder: A saved model with its README.md.
        repo_id: Repository, made if it does not exist.
        private: Whether a new repository is private.
        token: Hub token; None takes the one of `hf auth login`.

    Returns:
        The address of the commit.

    Raises:
        ValueError: The folder is not a whole publication, or holds a pickle.
        PermissionError: The token is missing or may not write there.
        ConnectionError: The Hub could not be reached, or failed, several times; nothing was published.
    """
    folder = Path(folder)
    names = {file.name for file in folder.iterdir()}
    if missing := sorted({"config.json", "tokenizer_config.json", "README.md"} - names):
        raise ValueError(f"a publication holds model, tokenizer and card; {folder} lacks {', '.join(missing)}")
    if pickles := sorted(name for name in names if name.endswith(PICKLE_SUFFIXES) and name != "training_args.bin"):
        raise ValueError(f"a publication holds safetensors only; {folder} has {', '.join(pickles)}: remove them")
    # Checkpoints, optimizer states and Trainer's pickled arguments stay at home.
    ignored = ["checkpoint-*", "*.unfinished", "training_args.bin", "runs/*"]
    api = HfApi(token=token)
    for wait in (*RETRY_SECONDS, None):
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id, folder_path=folder, ignore_patterns=ignored, commit_message="Publish the model"
            )
            return commit.commit_url
        except HTTPError as error:
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise PermissionError(
                    f"the Hub refused to write {repo_id} ({status}): log in with `hf auth login`, or pass a token that "
                    "may write there"
                ) from error
            if wait is None or (status is not None and status < 500):
                raise ConnectionError(
                    f"{repo_id} could not be written ({status or type(error).__name__}); nothing was published; try "
                    "again later"
                ) from error
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")
