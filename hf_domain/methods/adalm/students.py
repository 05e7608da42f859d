"""Students: how to build them small or cut them from a teacher, and whether a teacher fits them."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.methods.adalm.losses import DistillationConfig, count_relation_heads
from hf_domain.methods.new_embeddings import LARGEST_PADDING
from hf_domain.modeling.backbone import (
    find_encoder,
    find_layers,
    get_module_name,
    get_native_config,
    load_matching_weights,
)


def check_pair(student: PreTrainedModel, teacher: PreTrainedModel, config: DistillationConfig) -> None:
    """Check that `student` can learn from `teacher`; see `DistillationModel`.

    Raises:
        ValueError: Vocabularies, layers, heads or widths do not fit.
    """
    rows = student.config.vocab_size, teacher.config.vocab_size
    if abs(rows[0] - rows[1]) > LARGEST_PADDING:
        raise ValueError(
            f"student and teacher must have the same vocabulary, but the student has {rows[0]:,} entries and the "
            f"teacher {rows[1]:,}. Apply the same vocabulary delta to both, or make the student from this teacher."
        )
    ours, theirs = find_encoder(student).config, find_encoder(teacher).config
    for owner, encoder_config in (("student", ours), ("teacher", theirs)):
        # Flash and flex attention have no mask that shows which positions a local layer attends to.
        if (attention := str(encoder_config._attn_implementation)).startswith(("flash", "flex")):
            raise ValueError(
                f"the attention must be sdpa or eager, but the {owner} has {attention}. Load it with "
                "attn_implementation='sdpa'."
            )
    if config.teacher_layer is not None and config.teacher_layer > theirs.num_hidden_layers:
        raise ValueError(
            f"teacher_layer must be at most {theirs.num_hidden_layers}, the layers of the teacher, but is "
            f"{config.teacher_layer}"
        )
    if config.method == "minilm" and ours.num_attention_heads != theirs.num_attention_heads:
        raise ValueError(
            "student and teacher must have as many attention heads for MiniLM, but the student has "
            f"{ours.num_attention_heads} and the teacher {theirs.num_attention_heads}. Use method='minilmv2', or "
            "another student."
        )
    num_heads = count_relation_heads(theirs.num_attention_heads, config)
    if config.method == "minilmv2" and (ours.hidden_size % num_heads or theirs.hidden_size % num_heads):
        raise ValueError(
            f"num_relation_heads must divide both widths, but {num_heads} does not divide {ours.hidden_size} "
            f"(student) and {theirs.hidden_size} (teacher). Set num_relation_heads."
        )
    if not any(parameter.requires_grad for parameter in find_encoder(student).parameters()):
        raise ValueError(
            "the encoder of the student must be trainable, but is frozen. Set freeze_backbone=False in our models."
        )
    sizes = [sum(parameter.numel() for parameter in model.base_model.parameters()) for model in (student, teacher)]
    if sizes[0] > sizes[1]:
        warnings.warn(
            (
                f"the student has {sizes[0]:,} parameters, more than the teacher with {sizes[1]:,}: it costs more and "
                "cannot learn more than the teacher knows"
            ),
            stacklevel=3,
        )


def check_same_vocabulary(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Check that two tokenizers give every entry the same id.

    Raises:
        ValueError: They differ; names an entry.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    entry = next(entry for entry in sorted(ours.keys() | theirs.keys()) if ours.get(entry) != theirs.get(entry))
    raise ValueError(
        f"student and teacher must have the same vocabulary, but {entry!r} has the id {ours.get(entry)} in the "
        f"student's ({len(ours):,} entries) and {theirs.get(entry)} in the teacher's ({len(theirs):,}). Expand "
        "both by the same vocabulary delta, or make the student from this teacher."
    )


def make_student(
    teacher: PreTrainedModel,
    *,
    num_hidden_layers: int,
    hidden_size: int | None = None,
    num_attention_heads: int | None = None,
    intermediate_size: int | None = None,
) -> PreTrainedModel:
    """Build a fresh student of the teacher's family and vocabulary.

    AdaLM's students have 6 layers of width 384 with 12 heads and an intermediate size of 1536.

    Args:
        teacher: An encoder of the seven families or one of our models; only its configuration is read.
        hidden_size: Width; None is the teacher's, as for the next two.
        num_attention_heads: Heads; MiniLM needs the teacher's number.
        intermediate_size: Width of the feed-forward networks.

    Returns:
        A stock masked LM in float32 with random weights.
    """
    config: Any = copy.deepcopy(get_native_config(teacher.config))
    shape: dict[str, Any] = {
        "num_hidden_layers": num_hidden_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "hidden_dim" if hasattr(config, "hidden_dim") else "intermediate_size": intermediate_size,
    }
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:  # local and global layers alternate as in the teacher
        shape["layer_types"] = [kinds[layer % len(kinds)] for layer in range(num_hidden_layers)]
    for name, value in shape.items():
        if value is not None:
            setattr(config, name, value)
    config.vocab_size = teacher.config.vocab_size
    config.dtype = None
    return AutoModelForMaskedLM.from_config(config).eval()


def pick_layers(
    teacher: PreTrainedModel, layers: Sequence[int], intermediate_size: int | None = None
) -> PreTrainedModel:
    """Build a student from copies of some of the teacher's layers and its embeddings.

    Args:
        teacher: A stock encoder of the seven families, or one of our models around it except exBERT. A stock masked LM
            also passes on its head.
        layers: Ascending numbers of layers, from 1: `(1, 3, 5)` takes three layers of six.
        intermediate_size: Width of the feed-forward networks, which keep their neurons with the largest weights; None
            keeps all.

    Returns:
        A stock masked LM in float32.

    Raises:
        ValueError: The numbers do not rise or are no layers of the teacher. A ModernBERT loses its first layer, the
            only one without a norm before its attention. The teacher is an exBERT, whose side modules fit no stock
            layer. `intermediate_size` is not from 1 to the teacher's.
    """
    encoder = find_encoder(teacher)
    count = encoder.config.num_hidden_layers
    if not layers or list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= count:
        raise ValueError(
            f"layers must be rising numbers from 1 to {count}, the teacher's layers, but are {list(layers)}"
        )
    if encoder.config.model_type == "modernbert" and layers[0] != 1:
        raise ValueError(
            "layers of a ModernBERT must begin with 1, because no other layer can be the first, but begin with "
            f"{layers[0]}"
        )
    if teacher.config.vocab_size != encoder.config.vocab_size or hasattr(find_layers(encoder)[0], "side"):
        raise ValueError("layers cannot be picked from an exBERT, because they hold side modules. Use make_student.")
    narrowed = {} if intermediate_size is None else narrow_layers(encoder, intermediate_size)
    student = make_student(teacher, num_hidden_layers=len(layers), intermediate_size=intermediate_size)
    kinds = getattr(encoder.config, "layer_types", None)
    if kinds is not None:
        config = student.config
        config.layer_types = [kinds[layer - 1] for layer in layers]
        student = AutoModelForMaskedLM.from_config(config)
    has_head = encoder is teacher.base_model and teacher.get_output_embeddings() is not None
    source, target = (teacher, student) if has_head else (encoder, student.base_model)
    stack = get_module_name(source, find_layers(encoder))
    places = {str(layer - 1): str(place) for place, layer in enumerate(layers)}
    weights = {}
    for name, weight in source.state_dict(keep_vars=True).items():
        weight = narrowed.get(id(weight), weight)
        if name.startswith(stack + "."):
            number, _, rest = name.removeprefix(stack + ".").partition(".")
            if number not in places:
                continue
            name = f"{stack}.{places[number]}.{rest}"
        weights[name] = weight.detach()
    load_matching_weights(target, weights, "the student")
    student.tie_weights()
    return student.eval()


def narrow_layers(encoder: PreTrainedModel, intermediate_size: int) -> dict[int, torch.Tensor]:
    """Cut the neurons with the smallest weights from the feed-forward networks of a stock encoder.

    The output of such a network is a sum over its neurons: the activation times a column of the second matrix. So a
    neuron counts by the norm of its weights in the first matrix times the norm of this column. No text is needed.

    Returns:
        The id of each parameter with a dimension of neurons, and what is left of it. The encoder stays as it is.
    """
    config: Any = encoder.config
    width = config.hidden_dim if hasattr(config, "hidden_dim") else config.intermediate_size
    if not 1 <= intermediate_size <= width:
        raise ValueError(f"intermediate_size must be from 1 to {width}, the teacher's, but is {intermediate_size}")
    left: dict[int, torch.Tensor] = {}
    for layer in find_layers(encoder):
        # The feed-forward network comes last in a layer of each of the seven families.
        first, second = [module for module in layer.modules() if isinstance(module, nn.Linear)][-2:]
        parts = first.out_features // width  # 2 in a gated network: input and gate, one after the other
        rows = first.weight.detach().unflatten(0, (parts, width))
        sizes = rows.norm(dim=(0, 2)) * second.weight.detach().norm(dim=0)
        kept = sizes.topk(intermediate_size).indices.sort().values
        all_rows = torch.cat([kept + part * width for part in range(parts)])
        left |= {id(first.weight): first.weight[all_rows], id(second.weight): second.weight[:, kept]}
        if first.bias is not None:
            left[id(first.bias)] = first.bias[all_rows]
    return left
