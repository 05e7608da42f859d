"""Export any encoder with its head to ONNX, and check the program against the model.

`transformers.exporters` does the export. This module checks which models can be exported, keeps batch size and length
free, writes the layout that ONNX loaders expect, and never writes a program whose outputs differ from the model's.
"""

import copy
import inspect
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_length
from hf_domain.extras import require
from hf_domain.methods.rada.passages import count_positions
from hf_domain.modeling.backbone import BackbonePreTrainedModel, find_encoder, get_native_config
from hf_domain.safe_io import write_folder, write_json
from hf_domain.tasks.classification import find_vote

TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"})
TARGETS = frozenset({"labels", "start_positions", "end_positions", "num_items_in_batch", "target_places"})
# Two shapes besides the traced one; a third has the maximum length. An axis that was fixed by mistake fails on one.
SHAPES = ((1, 7), (3, 40))
TRACED_SHAPE = (2, 16)
# Libraries have different float32 kernels; our tests measure up to 4e-6 on logits around 1.
TOLERANCE = 1e-3
REPORT = "export_report.json"
# The first release with what an export imports; earlier ones also call a program that torch no longer lets be called.
EXPORTING = Version("5.23")
# The name that transformers.js, optimum and sentence-transformers expect.
PROGRAM = "onnx/model.onnx"
# Everything in a folder that was made from an exported model, such as a program in int8.
PROGRAMS = ("onnx/model*.onnx", "onnx/model*.onnx_data")
# Fields of a configuration that name the labels, and that decide what is predicted from the outputs.
FIELDS = (
    *("id2label", "label2id", "problem_type"),
    *("label_thresholds", "version_2_with_negative", "null_score_diff_threshold"),
)
# The end of an architecture's name, by head.
HEADS = {
    "encoder": "Model",
    "masked_lm": "ForMaskedLM",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
}
ONE_FILE = 2**31 - 2**20
"""Bytes of weights that fit into one ONNX file; protobuf allows 2 GiB."""


def check_exportable(model: PreTrainedModel) -> None:
    """Raise a ValueError unless a model can be served from text alone.

    An exported program gets only what a tokenizer returns. `forward` of the model, and of each of our models inside it,
    may therefore take only text inputs and targets; a stock model may have others with a default. Without the memory of
    a G-MAP or the passages of a RADA, the program would compute something else.
    """
    found = "an exported model must read text alone, but this one was trained with"
    if getattr(model.config, "appended_passage_length", None):
        raise ValueError(f"{found} a passage appended to each text. Serve it with hf-domain predict.")
    if find_vote(model.config.to_dict(), type(model).__name__):
        raise ValueError(f"{found} a vote of the nearest texts. Serve it with hf-domain predict.")
    for module in model.modules():
        is_ours = isinstance(module, BackbonePreTrainedModel)
        if not is_ours and module is not model:
            continue
        needed = [
            name
            for name, parameter in inspect.signature(module.forward).parameters.items()
            if name not in TEXT_INPUTS | TARGETS
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and (is_ours or parameter.default is parameter.empty)
        ]
        if needed:
            raise ValueError(
                f"an exported model must read text alone, but {type(module).__name__} also reads "
                f"{', '.join(needed)}. Serve it with transformers, or distill it into a student and export that."
            )


def check_exporters() -> None:
    """Raise an error unless the packages of an export are installed."""
    if Version(version("transformers")) < EXPORTING:
        raise ValueError(
            f"an export needs transformers {EXPORTING} or newer, but this is {version('transformers')}. "
            "Run pip install -U transformers."
        )
    require("an export to ONNX", "onnx", "onnxruntime", "onnxscript")


def load_trained(
    name: str, tokenizer_name: str | None = None, head: str = "auto", **hub_options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder or a fine-tuned model for an export, in float32, and its tokenizer.

    Args:
        tokenizer_name: Default: the model's.
        head: A key of `HEADS`; "auto" is the saved one.

    Raises:
        ValueError: The model is no encoder, has another head, or lacks weights: they would be random, and different
            each time.
    """
    config = AutoConfig.from_pretrained(name, **hub_options)
    if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING and not hub_options.get("trust_remote_code"):
        raise ValueError(f"the model must be an encoder such as BERT, but is a {config.model_type}")
    saved = (config.architectures or ["none"])[0]
    heads = [suffix for key, suffix in HEADS.items() if key == head or (head == "auto" and saved.endswith(suffix))]
    if not heads:
        raise ValueError(f"the checkpoint must have a known head, but was saved as {saved}. Choose another --head.")
    auto_class = getattr(transformers, f"Auto{heads[0]}" if heads[0] == "Model" else f"AutoModel{heads[0]}")
    model, info = auto_class.from_pretrained(name, dtype=torch.float32, output_loading_info=True, **hub_options)
    missing = {key.partition(".")[0] for key in info["missing_keys"]}
    if missing == {"pooler"}:
        model.pooler = None  # the checkpoint of a masked LM has no pooler, so its output would be noise
    elif missing:
        raise ValueError(
            f"the model must be trained, but {name} has no weights for {', '.join(sorted(missing))}. Fine-tune it "
            "first, or name another --head."
        )
    check_weights(model, name)
    return model, AutoTokenizer.from_pretrained(tokenizer_name or name, **hub_options)


def export_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | Path,
    *,
    max_seq_length: int | None = None,
) -> dict[str, Any]:
    """Export a model with free batch size and length, check it against the model, and save it with its tokenizer.

    `onnxruntime`, transformers.js, optimum and sentence-transformers load the folder. For one of our models, it has the
    encoder's configuration, because loaders choose by model type.

    Args:
        model: Any encoder or head that passes `check_exportable`. It is put into evaluation mode, without outputs of
            hidden states and attentions.
        output_dir: Folder for `onnx/model.onnx`, the configuration, the tokenizer and `export_report.json`.
        max_seq_length: Number of tokens of the longest text to serve. Default: the encoder's limit.

    Returns:
        The content of `export_report.json`: the class of the `model`, its number of `parameters`, `max_length`, the
        number of tokens of the longest text, `file_bytes` of the program, and `differences`, the largest absolute
        difference of any output from the model's, in float32, by "batch x length".

    Raises:
        ValueError: The model cannot be exported, packages are missing, or the outputs of the export differ.
    """
    check_exporters()
    check_exportable(model)
    if model.dtype != torch.float32:
        raise ValueError(f"the model must have float32 weights, but has {model.dtype}. Load it with dtype='float32'.")
    check_place(Path(output_dir))
    from transformers import exporters

    tokenizer = copy.deepcopy(tokenizer)
    positions = count_positions(model) or get_native_config(model.config).max_position_embeddings
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    if max_seq_length is not None:
        check_length(tokenizer, max_seq_length)
        tokenizer.model_max_length = max_seq_length
    max_length = tokenizer.model_max_length
    model.eval()
    model.config.output_attentions = False
    model.config.output_hidden_states = False
    sample: dict[str, Any] = make_inputs(model, tokenizer, TRACED_SHAPE)
    # DYNAMIC, not AUTO: if the trace fixes an axis, fail instead of exporting a program for one length.
    axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in sample}
    config = exporters.OnnxConfig(dynamic=True, dynamic_shapes=axes)
    exported = exporters.OnnxExporter().export(model, sample, config)

    differences = {
        f"{shape[0]} x {shape[1]}": measure_difference(model, exported, make_inputs(model, tokenizer, shape))
        for shape in (*SHAPES, (1, max_length))
    }
    if not all(difference <= TOLERANCE for difference in differences.values()):  # nan is no difference that is small
        raise ValueError(
            f"the export must compute the model's outputs, but they differ by {differences}; nothing was written. Look "
            "for NaN in the weights of the model, or try another version of torch or transformers."
        )
    # Delete the programs of an earlier export: the report describes only the new one.
    with write_folder(output_dir, replaced=PROGRAMS) as folder:
        save_program(exported.program, folder / PROGRAM)
        make_loader_config(model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        report = {
            "model": type(model).__name__,
            "parameters": model.num_parameters(),
            "max_length": max_length,
            "file_bytes": {str(file.relative_to(folder)): file.stat().st_size for file in list_programs(folder)},
            "differences": differences,
        }
        write_json(folder / REPORT, report)
    return report


def make_loader_config(model: PreTrainedModel) -> PreTrainedConfig:
    """Return the configuration for ONNX loaders; for one of our models, that of its encoder.

    Loaders do not know our model types. They read the type and the labels; the program itself does not depend on them.
    """
    if not isinstance(model, BackbonePreTrainedModel):
        return model.config
    config = copy.deepcopy(get_native_config(model.config))
    head = type(model).__name__.partition("For")[2]
    family = type(find_encoder(model)).__name__.removesuffix("Model")
    config.architectures = [f"{family}For{head}" if head else f"{family}Model"]
    for name in FIELDS:
        if hasattr(model.config, name):
            setattr(config, name, getattr(model.config, name))
    return config


def save_program(program: Any, file: Path) -> None:
    """Write an ONNX program as one file, or with its weights in a second file if they are too large."""
    import onnx_ir

    file.parent.mkdir(exist_ok=True)
    weights = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    onnx_ir.save(program, str(file), external_data=f"{file.name}_data" if weights > ONE_FILE else None)


def check_place(folder: Path) -> None:
    """Raise a ValueError unless a folder is new or contains only an earlier export."""
    held = sorted(path.name for path in folder.glob("[!_.]*"))
    # A killed run may have left a program without its report; the next run replaces it.
    if held and REPORT not in held and not list_programs(folder):
        raise ValueError(
            f"the output folder must be new or contain an earlier export, but {folder} has {held[0]}. Name another "
            "folder."
        )


def list_programs(folder: Path) -> list[Path]:
    """List the exported programs of a folder, with their weights."""
    return sorted(file for pattern in PROGRAMS for file in folder.glob(pattern))


def make_inputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, shape: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens with the inputs of the tokenizer; the second half of the last row is padding.

    The same arguments give the same batch.
    """
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    input_ids = torch.randint(len(tokenizer), shape, generator=generator)
    usable = next(number for number in range(len(tokenizer)) if number not in special)
    input_ids[torch.isin(input_ids, special)] = usable
    attention_mask = torch.ones(shape, dtype=torch.long)
    attention_mask[-1, shape[1] // 2 + 1 :] = 0
    input_ids[attention_mask == 0] = tokenizer.pad_token_id
    values = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": torch.zeros_like(input_ids)}
    accepted = set(tokenizer.model_input_names) & inspect.signature(model.forward).parameters.keys()
    return {name: value for name, value in values.items() if name in accepted}


@torch.no_grad()
def measure_difference(model: PreTrainedModel, exported: Any, inputs: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between the outputs of a model and its export, without padding."""
    differences = []
    theirs = dict(exported(**inputs).items())
    for name, output in model(**inputs).items():
        difference = (output - theirs[name]).abs()
        if output.shape[:2] == inputs["input_ids"].shape:
            difference = difference[inputs["attention_mask"].bool()]
        differences.append(difference.max())
    return torch.stack(differences).max().item()  # Python's max() would ignore a NaN
