"""Convert an exBERT to an adapter of its base, and an adapter with its base to an exBERT."""

import copy
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils import load_peft_weights
from transformers import PreTrainedModel

from hf_domain.methods.exbert.adapter import OPTIONS, ExBertAdapterConfig, list_head_modules
from hf_domain.methods.exbert.card import write_adapter_card
from hf_domain.modeling.backbone import find_encoder, find_layers
from hf_domain.modeling.modeling_exbert import ExBertForMaskedLM, ExBertModel, ExBertPreTrainedModel
from hf_domain.safe_io import write_folder


def pair_parts(adapter: PeftModel, adapter_name: str, model: ExBertPreTrainedModel) -> Iterator[tuple[Any, Any]]:
    """Yield each part of the adapter with its counterpart in `model`, except for the decoder's biases."""
    base: Any = adapter.get_base_model()
    config: Any = adapter.peft_config[adapter_name]
    if model.config.extension_hidden_size:
        pairs: Any = zip(find_layers(find_encoder(base)), model.get_base_layers(), strict=True)
        for layer, own in pairs:
            yield layer.side.exbert_adapters[adapter_name], own.side
    if model.config.extension_vocab_size:
        yield (
            base.get_input_embeddings().extension.exbert_adapters[adapter_name],
            model.get_input_embeddings().extension,
        )
    if isinstance(model, ExBertForMaskedLM):
        for name in config.modules_to_save or []:
            yield base.get_submodule(name).modules_to_save[adapter_name], model.lm_head.get_submodule(name)


def load_under_head(
    model: PreTrainedModel,
    adapter: str | os.PathLike,
    *,
    revision: str | None = None,
    token: bool | str | None = None,
    cache_dir: str | None = None,
) -> PeftModel:
    """Put an adapter, such as that of a masked LM, under the head of a task, so that both train and are saved.

    `PeftModel.from_pretrained` loads what `save_pretrained` of the result saved, on the same base.

    Args:
        model: The base that the adapter was trained on, with a head, such as an `AutoModelForSequenceClassification`.
        adapter: A folder or a name on the Hub; `revision`, `token` and `cache_dir` are those of `from_pretrained`.

    Raises:
        ValueError: The adapter lacks weights for this model: it is of another base.
    """
    options: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
    config: Any = PeftConfig.from_pretrained(os.fspath(adapter), **options)
    config.modules_to_save, config.inference_mode = list_head_modules(model), False
    saved = load_peft_weights(os.fspath(adapter), device="cpu", **options)
    result = PeftModel(model, config)
    # `PeftModel.from_pretrained` would look for the new head among the saved weights.
    own = get_peft_model_state_dict(result, save_embedding_layers=False)
    # An adapter of an `AutoModel` has the names of an encoder without the prefix that it has under a head.
    under, above = (f"base_model.model.{prefix}" for prefix in ("", f"{model.base_model_prefix}."))
    named = {name if name in own else name.replace(under, above, 1): weight for name, weight in saved.items()}
    if missing := [name for name in own if "exbert_adapters" in name and name not in named]:
        raise ValueError(
            f"the adapter must be of the base under the head, but {adapter} has no weights for {missing[0]}. Use the "
            "base that it was trained on."
        )
    set_peft_model_state_dict(result, own | {name: weight for name, weight in named.items() if name in own})
    return result


@torch.no_grad()
def convert_to_adapter(model: ExBertPreTrainedModel, base: PreTrainedModel) -> PeftModel:
    """Convert an exBERT with a frozen base (stage 1) to an adapter of that base.

    Args:
        model: A masked LM is converted with its LM head; any other model without its head.
        base: The model it was built from: `AutoModelForMaskedLM` for a masked LM, else `AutoModel`. It is extended in
            place, as `get_peft_model` does, and then holds the adapter "default".

    Raises:
        ValueError: The base's weights differ from those inside `model`, or `model` has an untied decoder.
    """
    encoder, expected = find_encoder(base).state_dict(), find_encoder(model).state_dict()
    if changed := [key for key, value in expected.items() if key in encoder and not torch.equal(value, encoder[key])]:
        raise ValueError(
            f"the base inside the exBERT must equal {base.name_or_path or 'the given one'}, but differs in "
            f"{changed[0]}: it was trained too (stage 2), or it is another base. An adapter cannot hold changes of "
            "its base; publish the exBERT itself."
        )
    masked_lm = isinstance(model, ExBertForMaskedLM)
    if masked_lm and not model.config.tie_word_embeddings:
        raise ValueError(
            "the exBERT must have tie_word_embeddings=True, since an adapter's decoder shares its embedding table, but "
            "has False"
        )
    config = ExBertAdapterConfig(
        **{name: getattr(model.config, name) for name in OPTIONS},
        modules_to_save=list_head_modules(base) if masked_lm else None,
    )
    adapter = get_peft_model(base, config)
    for part, own in pair_parts(adapter, "default", model):
        part.load_state_dict(own.state_dict())
    if masked_lm:
        decoder: Any = base.get_output_embeddings()
        own_decoder: Any = model.get_output_embeddings()
        bias = decoder.adapters.exbert_adapters["default"]
        bias.base_bias += (own_decoder.bias - decoder.bias)[: len(bias.base_bias)]
        if bias.extension_bias is not None:
            bias.extension_bias.copy_(own_decoder.extension.bias)
    return adapter


@torch.no_grad()
def convert_to_model(adapter: PeftModel) -> ExBertModel | ExBertForMaskedLM:
    """Convert the active adapter and a copy of its base to a model that loads without this package.

    Returns:
        An `ExBertForMaskedLM` if the base is a masked LM, else an `ExBertModel`. Heads in `modules_to_save` are
        dropped, except for the LM head.
    """
    name = adapter.active_adapter
    adapter_config: Any = adapter.peft_config[name]
    copied: Any = copy.deepcopy(adapter)
    plain = copied.unload()
    base: Any = adapter.get_base_model()
    decoder = base.get_output_embeddings()
    model_class = ExBertModel if decoder is None else ExBertForMaskedLM
    model = model_class.from_backbone(plain, **adapter_config.get_options())
    for part, own in pair_parts(adapter, name, model):
        own.load_state_dict(part.state_dict())
    if decoder is not None:
        bias = decoder.adapters.exbert_adapters[name]
        own_decoder: Any = model.get_output_embeddings()
        own_decoder.bias[: len(bias.base_bias)] += bias.base_bias
        if bias.extension_bias is not None:
            own_decoder.extension.bias.copy_(bias.extension_bias)
            # An adapter's decoder reads the extension's table, even when the base's decoder has a table of its own.
            table: Any = model.get_input_embeddings()
            own_decoder.extension.weight.copy_(table.extension.weight)
    return model


def save_as_model(adapter: PeftModel, output_dir: str | Path) -> ExBertModel | ExBertForMaskedLM:
    """Save adapter and base as one model in the adapter's folder, and move the adapter to `adapter/`."""
    model = convert_to_model(adapter)
    saved = [*Path(output_dir).glob("adapter_*")]
    base = adapter.peft_config[adapter.active_adapter].base_model_name_or_path or ""
    # Replace the card too: Trainer reads from it that the folder holds an adapter.
    with write_folder(output_dir, replaced=("adapter_*", "README.md")) as folder:
        model.save_pretrained(folder)
        (folder / "adapter").mkdir()
        for file in saved:
            shutil.copy(file, folder / "adapter")
        write_adapter_card(folder / "adapter", base, Path(output_dir).resolve().name, "adapter")
    return model
