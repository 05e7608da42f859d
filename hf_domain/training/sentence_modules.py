"""Keep what makes an encoder of sentence embeddings one, while masked LM trains it."""

import logging
import shutil
from itertools import chain
from pathlib import Path

from huggingface_hub import snapshot_download

from hf_domain.training.arguments import ModelArguments

logger = logging.getLogger(__name__)

# What sentence-transformers writes beside an encoder; the first lists the folders of the modules after it.
SENTENCE_FILES = (
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("[0-9]*_*/*.json", "[0-9]*_*/*.safetensors"),
)


def keep_sentence_modules(model_args: ModelArguments, folder: Path) -> None:
    """Copy what makes an encoder of sentence embeddings one: its pooling, its normalization and their list.

    `SentenceTransformer(folder)` then embeds with the trained weights as it did with those before.
    """
    name, options = model_args.model_name_or_path, model_args.hub_options
    del options["trust_remote_code"]
    source = Path(name)
    if not source.is_dir():
        try:
            source = Path(snapshot_download(name, allow_patterns=[*SENTENCE_FILES], **options))
        except OSError as error:  # the training is done: a Hub out of reach must not cost it
            logger.warning(f"The modules of sentence embeddings in {name}, if it has any, are not copied: {error}")
            return
    if (source / SENTENCE_FILES[0]).is_file():
        for file in chain.from_iterable(map(source.glob, SENTENCE_FILES)):
            target = folder / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(file, target)
