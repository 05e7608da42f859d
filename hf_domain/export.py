"""Export any encoder with its head for ONNX Runtime or `torch.export`, and check the program against the model.

`transformers.exporters` does the export. This module checks which models can be exported, keeps batch size and length
free, writes the layout that ONNX loaders expect, and never writes a program whose outputs differ from the model's.
"""

import copy
import inspect
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.checks import check_weights
from hf_domain.extras import require
from hf_domain.methods.rada.passages import count_positions
from hf_domain.modeling.backbone import BackbonePreTrainedModel, find_encoder, get_native_config
from hf_domain.safe_io import write_folder, write_json
from hf_domain.tasks.classification import find_vote

logger = logging.getLogger(__name__)

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
# The names that transformers.js, optimum and sentence-transformers expect.
PROGRAM, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
PROGRAMS = ("onnx/model*.onnx", "onnx/model*.onnx_data", "model.pt2")
# Fields of a configuration that decide what is predicted from the outputs.
DECIDING = ("label_thresholds", "version_2_with_negative", "null_score_diff_threshold")
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
NUM_TEXTS = 200
"""Texts on which int8 is compared with float32."""


@dataclass(frozen=True)
class QuantizationReport:
    """How close int8 comes to float32 on real texts, each in its own batch.

    Args:
        scheme: Key of `SCHEMES`: "channels", or "blocks" if channels are not close enough.
        num_texts: Number of compared texts.
        max_length: Number of tokens of the longest text, the longest that the encoder reads.
        cosines: Smallest cosine over the texts, by output: of the mean-pooled states, and of the logits of a head
            (minus their mean if there are more than two).
        same_predictions: Share of predictions (for texts, words or masks) that equal the model's; None without a head.
    """

    scheme: str
    num_texts: int
    max_length: int
    cosines: dict[str, float]
    same_predictions: float | None

    def __str__(self) -> str:
        cosines = ", ".join(f"{name} at least {cosine:.3f}" for name, cosine in self.cosines.items())
        same = "" if self.same_predictions is None else f"; {self.same_predictions:.1%} of the predictions are equal"
        return f"int8 in {self.scheme}: cosine to float32 on {self.num_texts} texts: {cosines}{same}"


@dataclass(frozen=True)
class ExportReport:
    """The facts about an export.

    Args:
        model: Class of the exported model.
        export_format: "onnx" or "dynamo".
        parameters: Number of parameters of the model.
        max_length: Number of tokens of the longest text in the check.
        file_bytes: Size of each program with its weights, by file.
        differences: Largest absolute difference of any output from the model's, in float32, by "batch x length".
        quantization: Report of the int8 program, if any.
    """

    model: str
    export_format: str
    parameters: int
    max_length: int
    file_bytes: dict[str, int]
    differences: dict[str, float]
    quantization: QuantizationReport | None = None


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


def check_exporters(export_format: str) -> None:
    """Raise a ValueError unless the format is known and the packages of an export are installed."""
    if export_format not in ("onnx", "dynamo"):
        raise ValueError(f"export_format must be 'onnx' or 'dynamo', but is {export_format!r}. Name one of them.")
    if Version(version("transformers")) < EXPORTING:
        raise ValueError(
            f"an export needs transformers {EXPORTING} or newer, but this is {version('transformers')}. "
            "Run pip install -U transformers."
        )
    packages = ("onnx", "onnxruntime", "onnxscript") if export_format == "onnx" else ()
    require("an export to ONNX", *packages)


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
    export_format: Literal["onnx", "dynamo"] = "onnx",
    int8: bool = False,
    texts: Sequence[str] = (),
    min_cosine: float = 0.99,
    max_seq_length: int | None = None,
) -> ExportReport:
    """Export a model with free batch size and length, check it against the model, and save it with its tokenizer.

    An ONNX folder contains `onnx/model.onnx` and, with `int8`, `onnx/model_quantized.onnx`. `onnxruntime`,
    transformers.js, optimum and sentence-transformers load these. For one of our models, the folder has the encoder's
    configuration, because loaders choose by model type. `transformers.exporters.ExportedModel.from_pretrained` loads
    "dynamo", with `trust_remote_code=True`: such a program is pickled, so load none that you did not make.

    Args:
        model: Any encoder or head that passes `check_exportable`. It is put into evaluation mode, without outputs of
            hidden states and attentions.
        output_dir: Folder for the programs, the configuration, the tokenizer and `export_report.json`.
        export_format: "onnx" for ONNX Runtime, "dynamo" for `torch.export`.
        int8: Add an ONNX program for CPUs whose weights, embeddings included, are 8-bit integers; it quantizes
            activations at run time. The fastest of `SCHEMES` whose outputs are close enough is used.
        texts: Real texts on which int8 is compared with float32; the first 200 are used.
        min_cosine: Minimum cosine between int8 and float32 outputs, for every text.
        max_seq_length: Number of tokens of the longest text to serve. Default: the encoder's limit.

    Raises:
        ValueError: The model cannot be exported, packages are missing, or the outputs of the export differ.
    """
    check_exporters(export_format)
    check_exportable(model)
    if model.dtype != torch.float32:
        raise ValueError(f"the model must have float32 weights, but has {model.dtype}. Load it with dtype='float32'.")
    check_place(Path(output_dir))
    check_quantization(int8, export_format, texts, min_cosine)
    from transformers import exporters

    tokenizer = limit_length(tokenizer, model, max_seq_length)
    max_length = tokenizer.model_max_length
    model.eval()
    model.config.output_attentions = False
    # The saved program returns only the outputs of the head; the check of int8 also needs the states.
    model.config.output_hidden_states = int8 and model.base_model is not model
    sample: dict[str, Any] = make_inputs(model, tokenizer, TRACED_SHAPE)
    # DYNAMIC, not AUTO: if the trace fixes an axis, fail instead of exporting a program for one length.
    axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in sample}
    exporter, config_class = {
        "onnx": (exporters.OnnxExporter, exporters.OnnxConfig),
        "dynamo": (exporters.DynamoExporter, exporters.DynamoConfig),
    }[export_format]
    exported = exporter().export(model, sample, config_class(dynamic=True, dynamic_shapes=axes))

    differences: dict[str, float] = {}
    for shape in (*SHAPES, (1, max_length)):
        inputs = make_inputs(model, tokenizer, shape)
        differences[f"{shape[0]} x {shape[1]}"] = measure_difference(model, exported, inputs)
    if not all(map(math.isfinite, differences.values())):
        raise ValueError(
            f"the outputs of model and export must be finite, but differ by {differences}; nothing was written. "
            "Look for NaN in the weights of the model."
        )
    if (largest := max(differences.values())) > TOLERANCE:
        raise ValueError(
            f"the export must compute the model's outputs, but differs by up to {largest:.2g} ({differences}); "
            "nothing was written. Try the other export_format."
        )
    quantized = quantization = None
    if int8:
        quantized, quantization = quantize(model, tokenizer, exported, texts, min_cosine)
    model.config.output_hidden_states = False
    # Delete the programs of an earlier export: the report describes only the new ones.
    with write_folder(output_dir, replaced=PROGRAMS) as folder:
        if export_format == "onnx":
            save_program(exported.program, folder / PROGRAM)
            make_loader_config(model).save_pretrained(folder)
        else:
            exported.save_pretrained(folder)
        if quantized is not None:
            save_program(quantized, folder / QUANTIZED)
        tokenizer.save_pretrained(folder)
        report = ExportReport(
            model=type(model).__name__,
            export_format=export_format,
            parameters=model.num_parameters(),
            max_length=max_length,
            file_bytes={str(file.relative_to(folder)): file.stat().st_size for file in list_programs(folder)},
            differences=differences,
            quantization=quantization,
        )
        write_json(folder / REPORT, asdict(report))
    return report


def limit_length(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_seq_length: int | None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer with the maximum length to serve, at which loaders truncate texts.

    Raises:
        ValueError: The length exceeds the encoder's limit.
    """
    positions = count_positions(model) or get_native_config(model.config).max_position_embeddings
    limit = min(tokenizer.model_max_length, positions)
    if max_seq_length is not None and not 3 <= max_seq_length <= limit:
        raise ValueError(
            f"max_seq_length must be from 3 (two special tokens and one of text) to {limit} (the encoder's limit), but "
            f"is {max_seq_length}"
        )
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_seq_length or limit
    return tokenizer


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
    for name in ("id2label", "label2id", "problem_type", *DECIDING):
        if hasattr(model.config, name):
            setattr(config, name, getattr(model.config, name))
    return config


def save_program(program: Any, file: Path) -> None:
    """Write an ONNX program as one file, or with its weights in a second file if they are too large."""
    import onnx_ir

    file.parent.mkdir(exist_ok=True)
    for output in [*program.graph.outputs]:
        if output.name.startswith("hidden_states"):
            program.graph.outputs.remove(output)
    weights = sum(value.const_value.nbytes for value in program.graph.initializers.values())
    onnx_ir.save(program, str(file), external_data=f"{file.name}_data" if weights > ONE_FILE else None)


def check_place(folder: Path) -> None:
    """Raise a ValueError unless a folder is new or contains only an earlier export."""
    held = sorted(path.name for path in folder.glob("[!_.]*"))
    # A killed run may have left a program without its report; the next run replaces it.
    if held and REPORT not in held and not list_programs(folder):
        listed = ", ".join(held[:5]) + (f" and {len(held) - 5} more" if len(held) > 5 else "")
        raise ValueError(
            f"the output folder must be new or contain an earlier export, but {folder} has {listed}. Name another "
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
    theirs = read_outputs(exported(**inputs))
    for name, output in read_outputs(model(**inputs)).items():
        difference = (output - theirs[name]).abs()
        if output.shape[:2] == inputs["input_ids"].shape:
            difference = difference[inputs["attention_mask"].bool()]
        differences.append(difference.max())
    return torch.stack(differences).max().item()  # Python's max() would ignore a NaN


def read_outputs(outputs: Any) -> dict[str, torch.Tensor]:
    """Return the outputs of a model or a program by name; of the hidden states, only the last."""
    named = dict(outputs.items())
    if "hidden_states" in named:
        named["last_hidden_state"] = named.pop("hidden_states")[-1]
    return named


# ------------------------------------------------------------------------------------------------ int8


def check_quantization(int8: bool, export_format: str, texts: Sequence[str], min_cosine: float) -> None:
    """Raise a ValueError unless the options of int8 fit, before work starts."""
    if not 0 <= min_cosine <= 1:
        raise ValueError(f"min_cosine must be from 0 to 1, but is {min_cosine}")
    if int8 and export_format != "onnx":
        raise ValueError(f"int8 needs export_format='onnx', but export_format is {export_format!r}")
    if int8 and not any(map(str.strip, texts)):
        raise ValueError(
            "int8 needs texts for a comparison with float32, but there are none. Give some of your domain."
        )
    if int8 and (count := sum(map(bool, map(str.strip, texts)))) < NUM_TEXTS:
        logger.warning(
            f"int8 should be compared with float32 on {NUM_TEXTS} texts, but there are only {count}. Give more texts."
        )


def quantize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, exported: Any, texts: Sequence[str], min_cosine: float
) -> tuple[Any, QuantizationReport]:
    """Return the int8 program and its report.

    Args:
        tokenizer: Truncates texts to the maximum length to serve.
        exported: The float32 export of the model.
        texts: Real texts.
        min_cosine: See `export_model`.

    Raises:
        ValueError: No scheme is close enough.
    """
    from transformers import exporters
    from transformers.exporters.base import ExportedComponent

    inputs = list(read_inputs(model, tokenizer, texts))
    metadata = next(iter(exported.components.values())).metadata
    reports = []
    for scheme, quantize_program in SCHEMES.items():
        program = quantize_program(exported.program, inputs[0])
        quantized = exporters.ExportedModel({"model": ExportedComponent(program, metadata)}, "onnx")
        cosines, same_predictions = compare_outputs(model, quantized, inputs, tokenizer.mask_token_id)
        report = QuantizationReport(scheme, len(inputs), tokenizer.model_max_length, cosines, same_predictions)
        if min(cosines.values()) >= min_cosine:
            return program, report
        reports.append(report)
    best = max(reports, key=lambda report: min(report.cosines.values()))
    name, cosine = min(best.cosines.items(), key=lambda item: item[1])
    raise ValueError(
        f"the cosine of {name} between int8 and float32 must be at least {min_cosine} on each of {best.num_texts} "
        f"texts, but the smallest is {cosine:.3f}; nothing was written. Lower --min_cosine, or leave out --int8."
    )


def quantize_channels(program: Any, sample: dict[str, Any]) -> Any:
    """Quantize weights with a scale per output channel, and activations at run time with a scale per tensor.

    This is the fastest scheme. With one scale per weight matrix, the cosine would lose ten times as much. Weights of
    matrices have seven bits: with eight, processors without VNNI add two products in 16 bits and cut what exceeds them,
    and a program that was close where it was exported is not where it serves (cosine 0.915 instead of 0.989).
    """
    from transformers import exporters

    config = exporters.OnnxRuntimeDynamicConfig(per_channel=True, reduce_range=True)
    quantizer = exporters.OnnxRuntimeQuantizer(config)
    return quantizer.quantize(program, sample, quantizer.supported_formats[0])


def quantize_blocks(program: Any, sample: dict[str, Any]) -> Any:
    """Quantize weights and activations with a scale per 128 inputs.

    Activations inside a feed-forward network have outliers. With one scale per tensor, few of the 256 steps remain for
    the other values; in blocks, outliers affect only their neighbors.
    """
    import onnx_ir
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from transformers import exporters

    embeddings = exporters.OnnxRuntimeQuantizer(exporters.OnnxRuntimeDynamicConfig(op_types_to_quantize=["Gather"]))
    program = embeddings.quantize(program, sample, embeddings.supported_formats[0])
    # The level requests 8-bit arithmetic; without it only the weights have 8 bits.
    matrices = MatMulNBitsQuantizer(
        onnx_ir.to_proto(program), bits=8, block_size=128, is_symmetric=True, accuracy_level=4
    )
    matrices.process()
    return onnx_ir.from_proto(matrices.model.model)


SCHEMES = {"channels": quantize_channels, "blocks": quantize_blocks}
"""Fastest first; the next scheme is for models whose outputs the first one changes too much."""


def read_inputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the model's inputs for each text, in batches of one; the last text has the maximum length."""
    texts = [text for text in texts if text.strip()][:NUM_TEXTS]
    longest = " ".join(texts)
    while len(tokenizer(longest, truncation=True)["input_ids"]) < tokenizer.model_max_length:
        longest = f"{longest} {longest}"
    accepted = inspect.signature(model.forward).parameters.keys()
    for text in (*texts[: NUM_TEXTS - 1], longest):
        inputs = tokenizer(text, truncation=True, return_tensors="pt")
        if type(model).__name__.endswith("ForMaskedLM"):
            inputs["input_ids"][:, 3:-1:7] = tokenizer.mask_token_id  # every seventh, about the share of training
        yield {name: tensor for name, tensor in inputs.items() if name in accepted}


@torch.no_grad()
def compare_outputs(
    model: PreTrainedModel, quantized: Any, batches: Sequence[dict[str, torch.Tensor]], mask_id: int | None
) -> tuple[dict[str, float], float | None]:
    """Return the smallest cosine of each output over the texts, and the share of equal predictions.

    A regression has one value for a text and no predictions to be equal: the cosine is that of the values of all texts,
    each minus the mean of float32.

    Args:
        model: The float32 model.
        quantized: The int8 program.
        batches: One text each.
        mask_id: Compare a masked LM only at this token; elsewhere it merely repeats its input.
    """
    problem = getattr(model.config, "problem_type", None)
    thresholds = getattr(model.config, "label_thresholds", None)
    cut = torch.logit(torch.tensor(0.5 if thresholds is None else thresholds))
    cosines: dict[str, list[float]] = {}
    same: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for inputs in batches:
        masked = inputs["input_ids"] == (-1 if mask_id is None else mask_id)
        outputs = read_outputs(quantized(**inputs))
        for name, expected in read_outputs(model(**inputs)).items():
            pair = torch.stack([outputs[name], expected])
            if name == "logits" and pair[0].numel() == 1:
                values.append(pair.flatten())
                continue
            if name.endswith("logits"):
                if masked.any() and pair.shape[1:3] == masked.shape:
                    pair = pair[:, masked]
                several = problem == "multi_label_classification"
                chosen = pair > cut if several else pair.argmax(-1)
                same.append((chosen[0] == chosen[1]).flatten())
                if pair.shape[-1] > 2 and not several:  # a common offset changes no probability, but raises the cosine
                    pair = pair - pair.mean(-1, keepdim=True)
            else:
                pair = pair.mean(2)
            cosine = torch.cosine_similarity(pair[0].flatten(), pair[1].flatten(), dim=0)
            cosines.setdefault(name, []).append(cosine.item())
    if values:
        own, expected = torch.stack(values, dim=1)
        cosines["logits"] = [torch.cosine_similarity(own - expected.mean(), expected - expected.mean(), dim=0).item()]
    smallest = {name: min(values) for name, values in cosines.items()}
    return smallest, torch.cat(same).float().mean().item() if same else None
