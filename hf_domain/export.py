"""Serving: any encoder and head as one file for ONNX Runtime or for `torch.export`, checked against the model.

`transformers.exporters` does the work; what is added here is which models can be exported, that batch and length stay
free, and that an export which differs from its model is never written.
"""

import importlib.util
import inspect
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.files import write_folder, write_json
from hf_domain.modeling.backbone import BackbonePreTrainedModel

TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"})
TARGETS = frozenset({"labels", "start_positions", "end_positions", "num_items_in_batch"})
# Two shapes besides that of the trace: an axis that was fixed by mistake fails on one of them.
SHAPES = ((1, 7), (3, 40))
TRACED_SHAPE = (2, 16)
# float32 kernels of different libraries; the tests measure up to 4e-6 on logits around 1.
TOLERANCE = 1e-3
REPORT = "export_report.json"


@dataclass(frozen=True)
class ExportReport:
    """What an export is.

    Args:
        export_format: "onnx" or "dynamo".
        int8: Whether its weights are 8-bit integers.
        parameters: Of the model.
        file_bytes: Of the program and its weights on disk.
        differences: Largest absolute difference of any output from the model's, by "batch x length".
    """

    export_format: str
    int8: bool
    parameters: int
    file_bytes: int
    differences: dict[str, float]


def check_exportable(model: PreTrainedModel) -> None:
    """Check that a model can be served from text alone.

    An exported program gets only what a tokenizer returns. `forward` of the model, and of each of our models inside it,
    may therefore take only text inputs and targets; a stock model may have other inputs with a default. Without the
    memory of a G-MAP or the passages of a RADA, the program would silently compute something else.

    Raises:
        ValueError: The model has another input; names both.
    """
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
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
                f"{', '.join(needed)}. Serve it with transformers, or distill it into a student "
                "(hf_domain.distillation.model) and export that."
            )


def check_exporters(export_format: str) -> None:
    """Check that what an export needs is installed.

    Raises:
        ValueError: It is not, or the format is unknown; says what to install.
    """
    if export_format not in ("onnx", "dynamo"):
        raise ValueError(f"export_format must be 'onnx' or 'dynamo', but is {export_format!r}")
    if importlib.util.find_spec("transformers.exporters") is None:
        raise ValueError(
            "an export needs the exporters of transformers, which this release lacks. Run pip install -U transformers."
        )
    packages = ("onnx", "onnxruntime", "onnxscript") if export_format == "onnx" else ()
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise ValueError(f"an export to ONNX needs {', '.join(missing)}. Run pip install hf-domain[onnx].")


def export_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | Path,
    *,
    export_format: Literal["onnx", "dynamo"] = "onnx",
    int8: bool = False,
) -> ExportReport:
    """Export a model with free batch and length, check it against the model, and save it with its tokenizer.

    `transformers.exporters.ExportedModel.from_pretrained(output_dir)` loads it, one of our models after
    `import hf_domain`; it is called as the model is.

    Args:
        model: Any encoder or head that `check_exportable` lets pass; put into evaluation mode, hidden states and
            attentions switched off.
        output_dir: Where `model.onnx` (with `model.onnx.data`) or `model.pt2`, the configuration, the tokenizer and
            `export_report.json` go.
        export_format: "onnx" for ONNX Runtime, "dynamo" for `torch.export`.
        int8: Dynamic quantization for CPU: weights, the embedding table included, become 8-bit integers, activations
            are quantized while it runs. ONNX only. Its outputs differ from the model's; the report says by how much.

    Returns:
        The report.

    Raises:
        ValueError: The model or its packages do not allow it, or the export gives other outputs than the model.
    """
    check_exporters(export_format)
    check_exportable(model)
    check_place(Path(output_dir))
    if int8 and export_format != "onnx":
        raise ValueError(f"int8 needs export_format='onnx', but export_format is {export_format!r}")
    from transformers import exporters

    model.eval()
    for name in ("output_hidden_states", "output_attentions"):
        setattr(model.config, name, False)  # a program has the outputs of the head alone
    options: dict[str, Any] = {}
    if int8:
        options["quantizer"] = exporters.OnnxRuntimeQuantizer(exporters.OnnxRuntimeDynamicConfig())
    sample: dict[str, Any] = make_inputs(model, tokenizer, TRACED_SHAPE)
    # DYNAMIC, not AUTO: an axis that the trace would fix must fail instead of giving a program for one length.
    axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in sample}
    exporter, config_class = {
        "onnx": (exporters.OnnxExporter, exporters.OnnxConfig),
        "dynamo": (exporters.DynamoExporter, exporters.DynamoConfig),
    }[export_format]
    exported = exporter().export(model, sample, config_class(dynamic=True, dynamic_shapes=axes, **options))

    differences: dict[str, float] = {}
    for shape in SHAPES:
        inputs = make_inputs(model, tokenizer, shape)
        differences[f"{shape[0]} x {shape[1]}"] = measure_difference(model, exported, inputs)
    if not all(map(math.isfinite, differences.values())):
        raise ValueError(
            f"the model and its export must give finite values, but do not ({differences}); nothing was written. "
            "Look for NaN in the weights of the model."
        )
    if not int8 and (largest := max(differences.values())) > TOLERANCE:
        raise ValueError(
            f"the export must give the model's outputs, but differs by up to {largest:.2g} ({differences}); "
            "nothing was written. Try the other export_format."
        )
    # Programs of an earlier export are deleted: the report describes one program.
    with write_folder(output_dir, replaced=("model.onnx*", "model.pt2")) as folder:
        exported.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        report = ExportReport(
            export_format=export_format,
            int8=int8,
            parameters=model.num_parameters(),
            file_bytes=sum(file.stat().st_size for file in list_programs(folder)),
            differences=differences,
        )
        write_json(folder / REPORT, asdict(report))
    return report


def check_place(folder: Path) -> None:
    """Check that an export may go into a folder.

    Raises:
        ValueError: It holds something else than an earlier export.
    """
    held = sorted(path.name for path in folder.glob("[!_.]*"))
    # A run that was killed may have left a program without its report; the next one replaces it.
    if held and REPORT not in held and not list_programs(folder):
        listed = ", ".join(held[:5]) + (f" and {len(held) - 5} more" if len(held) > 5 else "")
        raise ValueError(
            f"an export must go into a new folder or that of an earlier export, but {folder} holds {listed}. Name "
            "another."
        )


def list_programs(folder: Path) -> list[Path]:
    """List the exported programs of a folder, with their weights."""
    return [*folder.glob("model.onnx*"), *folder.glob("model.pt2")]


def make_inputs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, shape: tuple[int, int]
) -> dict[str, torch.Tensor]:
    """Make a batch as the tokenizer would, of random entries, the second half of the last row being padding.

    Args:
        model: Says by its `forward` which inputs it takes.
        tokenizer: Says which inputs it gives.

    Returns:
        The inputs, each of that shape; always the same.
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
    """Return the largest absolute difference between the outputs of a model and of its export, padding left out."""
    differences = []
    theirs = exported(**inputs)
    for name, output in model(**inputs).items():
        difference = (output - theirs[name]).abs()
        if output.shape[:2] == inputs["input_ids"].shape:
            difference = difference[inputs["attention_mask"].bool()]
        differences.append(difference.max())
    return torch.stack(differences).max().item()  # NaN if any is: max() of Python would pass over it
