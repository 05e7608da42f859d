"""Distillation of a small encoder by the attention relations of a large one: MiniLM and MiniLMv2.

MiniLM (Wang et al., NeurIPS 2020) is what AdaLM distills with (Yao et al., Findings of ACL 2021, section 4.2); MiniLMv2
(Wang et al., Findings of ACL 2021) lifts its demand for equally many heads. The student's last layer learns how one
layer of the teacher relates the tokens of a text to each other; widths and depths may differ.

Symbols of the papers, and what they are called here:

    |x|                  real tokens of a sequence, padding left out on both axes
    A_h, d_k             attention heads and their width; A_r, d_r: `num_relation_heads` and the width it leaves
    Q, K, V              `AttentionStates.query`, `.key`, `.value`, heads side by side
    A_T, A_S             attention distributions, softmax(QK'/sqrt(d_k))
    VR_T, VR_S           value relations, softmax(VV'/sqrt(d_k))
    L_AT, L_VR           `attention_loss`, `value_loss`, summed without weights
    Q-Q, K-K, V-V        relations of MiniLMv2: `query_loss`, `key_loss`, `value_loss`, likewise

Every loss is KL(teacher || student), without temperature, averaged over heads, real positions and sequences.

A distilled student cannot predict masked tokens: the loss reads the projections of its last layer, so the rest of that
layer and the LM head get no gradient. It is for fine-tuning; a short phase of masked LM makes both usable.
"""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb
from transformers.utils import ModelOutput

from hf_domain.embeddings import LARGEST_PADDING
from hf_domain.modeling.backbone import get_module_name, get_native_config, load_matching_weights
from hf_domain.modeling.modeling_exbert import find_encoder, find_layers, get_boolean_mask

# The linear layers of Q, K and V in each family; one that makes all three stands alone.
PROJECTIONS = (
    ("query", "key", "value"),  # BERT, RoBERTa, XLM-R, ELECTRA
    ("q_lin", "k_lin", "v_lin"),  # DistilBERT
    ("query_proj", "key_proj", "value_proj"),  # DeBERTa-v2
    ("Wqkv",),  # ModernBERT
)
# The terms of each method.
RELATIONS = {"minilm": ("attention", "value"), "minilmv2": ("query", "key", "value")}
# Elements of one relation map at once, 8 MB: benchmarks/distillation.py measures what more would cost.
CHUNK_ELEMENTS = 2**21


@dataclass(frozen=True)
class DistillationConfig:
    """What the student learns from the teacher.

    Args:
        method: "minilm": attention distributions and value relations, for equally many heads (AdaLM's choice).
            "minilmv2": query, key and value relations over `num_relation_heads`, for any heads.
        num_relation_heads: Heads into which MiniLMv2 cuts the states of both models; must divide both widths. None is
            four times the teacher's heads: 48 for 12 and 64 for 16, as in the paper.
        teacher_layer: The layer that teaches, 1 is the first; None is the last (MiniLM, and MiniLMv2 for 12 layers; it
            takes the 21st of 24). The student always learns with its last.

    Raises:
        ValueError: An option is out of its range, or relation heads are given to MiniLM.
    """

    method: Literal["minilm", "minilmv2"] = "minilm"
    num_relation_heads: int | None = None
    teacher_layer: int | None = None

    def __post_init__(self) -> None:
        if self.method not in ("minilm", "minilmv2"):
            raise ValueError(f"method must be 'minilm' or 'minilmv2', got {self.method!r}")
        if self.method == "minilm" and self.num_relation_heads is not None:
            raise ValueError(
                f"MiniLM compares the attention heads themselves, got num_relation_heads={self.num_relation_heads}; "
                "use method='minilmv2'"
            )
        for name in ("num_relation_heads", "teacher_layer"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")


# ----------------------------------------------------------------------------------------------- the losses


def compute_relation_scores(left: torch.Tensor, right: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Scaled dot products between all positions, head by head.

    Args:
        left: `[batch, length, width]`, heads side by side.
        right: `[batch, length, width]`.
        num_heads: Must divide `width`.

    Returns:
        `[batch, num_heads, length, length]`, float32.
    """
    heads = [states.float().unflatten(-1, (num_heads, -1)).transpose(1, 2) for states in (left, right)]
    return heads[0] @ heads[1].mT / math.sqrt(left.shape[-1] / num_heads)


def compute_relation_loss(
    teacher_scores: torch.Tensor, student_scores: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """KL(teacher || student) of the distributions over the real positions.

    Args:
        teacher_scores: `[batch, heads, length, length]`, before the softmax; no gradient flows into them.
        student_scores: `[batch, heads, length, length]`.
        attention_mask: `[batch, length]`, 0 at padding.

    Returns:
        Mean over heads and real positions of a sequence, then over the sequences; nats. Each sequence weighs the same,
        as in the paper, so that gradient accumulation over equal batches changes nothing.
    """
    padding = attention_mask[:, None, None, :] == 0
    lowest = torch.finfo(student_scores.dtype).min
    target = teacher_scores.detach().masked_fill(padding, lowest).log_softmax(dim=-1)
    log_probabilities = student_scores.masked_fill(padding, lowest).log_softmax(dim=-1)
    divergence = (target.exp() * (target - log_probabilities)).sum(dim=-1)
    weights = attention_mask / attention_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return (divergence.mean(dim=1) * weights).sum(dim=-1).mean()


# ------------------------------------------------------------------------------------- what attention works on


@dataclass
class AttentionStates:
    """What the attention of one layer works on, as it multiplies it.

    Args:
        query: `[batch, length, width]`, heads side by side; with rotary positions (ModernBERT) after the rotation, so
            that the products are those of the model. MiniLMv2 relates the rotated states as well: one rule for all.
        key: Likewise.
        value: Likewise, never rotated.
        num_heads: Attention heads.
        score_scale: What the scaled products of queries and keys are multiplied with.
        score_bias: `[batch, num_heads, length, length]`, what is added to them: DeBERTa-v2's position terms, which are
            part of its attention distribution and of no other relation.
        visible: `[batch, 1, 1 or length, length]`, True where a position attends; None: everywhere. Narrower than the
            padding in the local layers of ModernBERT.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    num_heads: int
    score_scale: float = 1.0
    score_bias: torch.Tensor | None = None
    visible: torch.Tensor | None = None

    def compute_scores(self, relation: str, num_heads: int, also_visible: torch.Tensor | None = None) -> torch.Tensor:
        """Compute a relation before its softmax.

        Args:
            relation: "attention", or "query", "key" or "value" for these with themselves.
            num_heads: Of the relation; that of the layer for "attention".
            also_visible: A further `visible` for "attention".

        Returns:
            `[batch, num_heads, length, length]`, float32; the lowest float where "attention" sees nothing.
        """
        if relation != "attention":
            states = getattr(self, relation)
            return compute_relation_scores(states, states, num_heads)
        scores = compute_relation_scores(self.query, self.key, num_heads) * self.score_scale
        if self.score_bias is not None:
            scores = scores + self.score_bias.float()
        for visible in (self.visible, also_visible):
            if visible is not None:
                scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return scores

    def select(self, rows: slice) -> "AttentionStates":
        """Return the states of some sequences."""
        bias, visible = self.score_bias, self.visible
        return replace(
            self,
            query=self.query[rows],
            key=self.key[rows],
            value=self.value[rows],
            score_bias=None if bias is None else bias[rows],
            visible=visible if visible is None or len(visible) == 1 else visible[rows],
        )


class LayerReached(Exception):
    """Ends the forward pass of a model whose further output nobody reads."""


@contextmanager
def record_attention(layer: nn.Module, stop: bool = False) -> Iterator[dict[str, Any]]:
    """Record what a layer gets and what its projections of Q, K and V give, by forward hooks.

    Args:
        layer: Of any of the seven families; of an exBERT both branches, and the base's is recorded.
        stop: Raise `LayerReached` as soon as all is recorded.

    Yields:
        A dictionary that the forward pass fills: the layer's arguments by their names and the projections by theirs.
    """
    modules = {name.rpartition(".")[2]: module for name, module in layer.named_modules()}
    names = next(names for names in PROJECTIONS if modules.keys() >= set(names))
    record: dict[str, Any] = {}

    def record_arguments(module: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        record.update({"attention_mask": arguments[1] if len(arguments) > 1 else None} | options)

    def record_projection(name: str, output: torch.Tensor) -> None:
        # The first call counts: DeBERTa-v2 may send its position embeddings through the same projections.
        record.setdefault(name, output)
        if stop and record.keys() >= set(names):
            raise LayerReached

    handles = [layer.register_forward_pre_hook(record_arguments, with_kwargs=True)]
    for name in names:
        handles.append(
            modules[name].register_forward_hook(
                lambda module, arguments, output, name=name: record_projection(name, output)
            )
        )
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def read_attention_states(layer: nn.Module, record: dict[str, Any], num_heads: int) -> AttentionStates:
    """Make of what `record_attention` recorded what the layer's attention works on."""
    projected = [record[name] for names in PROJECTIONS for name in names if name in record]
    query, key, value = projected if len(projected) == 3 else projected[0].chunk(3, dim=-1)
    states = AttentionStates(query, key, value, num_heads, visible=get_boolean_mask(record["attention_mask"]))
    if (rotation := record.get("position_embeddings")) is not None:
        heads = [projection.unflatten(-1, (num_heads, -1)) for projection in (query, key)]
        rotated = apply_rotary_pos_emb(*heads, *rotation, unsqueeze_dim=2)
        states.query, states.key = (projection.flatten(2) for projection in rotated)
    if record.get("rel_embeddings") is not None:
        attention: Any = next(module for module in layer.modules() if hasattr(module, "disentangled_attention_bias"))
        terms = 1 + len({"c2p", "p2c"} & set(attention.pos_att_type))
        flat = [attention.transpose_for_scores(projection, num_heads) for projection in (query, key)]
        bias = attention.disentangled_attention_bias(*flat, record.get("relative_pos"), record["rel_embeddings"], terms)
        states.score_scale = 1 / math.sqrt(terms)
        states.score_bias = bias.unflatten(0, (-1, num_heads))
    return states


# --------------------------------------------------------------------------------------------- the trained object


@dataclass
class DistillationOutput(ModelOutput):
    """Output of `DistillationModel`: the loss, with gradient, and its terms, detached; nats.

    Args:
        loss: Sum of the terms.
        attention_loss: L_AT; of MiniLM.
        query_loss: Of the Q-Q relations; of MiniLMv2.
        key_loss: Of the K-K relations; of MiniLMv2.
        value_loss: Of the V-V relations; of both.
    """

    loss: torch.FloatTensor | None = None
    attention_loss: torch.FloatTensor | None = None
    query_loss: torch.FloatTensor | None = None
    key_loss: torch.FloatTensor | None = None
    value_loss: torch.FloatTensor | None = None


class DistillationModel(PreTrainedModel):
    """A student and its teacher, for the stock Trainer.

    Only the student trains, and only the student is saved: a checkpoint is a plain one of the student, which
    `AutoModel` loads and from which Trainer resumes. The teacher stays in evaluation mode, without gradient and in its
    own type: load it with `dtype=torch.bfloat16` to halve its memory. Inputs are single texts, unmasked, with the
    default token types.

    Args:
        student: Any encoder of the seven families or model of ours, with or without a head; the head is left as it is.
        teacher: Likewise; all its parameters are frozen.
        distillation_config: What is learned; None is MiniLM.

    Raises:
        ValueError: The vocabularies, layers, heads, widths or attention implementations do not allow it; says which.
            Tables of up to 1,024 rows apart may differ by padding alone: `check_same_vocabulary` compares tokenizers.

    Warns:
        UserWarning: The student has more parameters than the teacher.
    """

    supports_gradient_checkpointing = True
    _supports_sdpa = True
    # The loss is a mean over sequences: Trainer must divide it by the accumulation steps.
    accepts_loss_kwargs = False

    def __init__(
        self,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        distillation_config: DistillationConfig | None = None,
    ):
        distillation_config = distillation_config or DistillationConfig()
        check_pair(student, teacher, distillation_config)
        # A copy: it is told which outputs are auxiliary losses, and the student is saved without that.
        super().__init__(copy.deepcopy(student.config))
        self.config.keys_to_ignore_at_inference = [
            name for name in DistillationOutput.__annotations__ if name != "loss"
        ]
        self.distillation_config = distillation_config
        self.student = student
        self.teacher = teacher.requires_grad_(False)
        self.train(student.training)

    def train(self, mode: bool = True) -> "DistillationModel":
        """Switch the student; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def state_dict(self, *args, **kwargs) -> Any:
        """Return the student's: the teacher is no part of a checkpoint."""
        return self.student.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs) -> Any:
        """Load into the student."""
        return self.student.load_state_dict(*args, **kwargs)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save the student."""
        self.student.save_pretrained(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_loss: bool = True,
    ) -> DistillationOutput:
        """Compare how student and teacher relate the tokens of a batch.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding; None: no padding.
            return_loss: Without meaning; by this name Trainer knows that the loss needs no labels.
        """
        assert input_ids is not None
        rows = [model.config.vocab_size for model in (self.student, self.teacher)]
        if rows[0] != rows[1] and (largest := int(input_ids.max())) >= min(rows):
            raise ValueError(
                f"student and teacher must read the same tokens; the batch has entry {largest}, the student "
                f"{rows[0]:,} entries and the teacher {rows[1]:,}. Apply the same vocabulary delta to both."
            )
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        layer = self.distillation_config.teacher_layer or 0
        # The loss reads no output: what follows the projections of the layer would run for nobody.
        with torch.no_grad():
            teacher = run_to_layer(self.teacher, layer - 1, input_ids, attention_mask, stop=True)
        student = run_to_layer(self.student, -1, input_ids, attention_mask, stop=True)
        with torch.autocast(input_ids.device.type, enabled=False):
            terms = compute_distillation_losses(teacher, student, real, self.distillation_config)
        logged: dict[str, Any] = {name: value.detach() for name, value in terms.items()}
        return DistillationOutput(loss=torch.stack(list(terms.values())).sum(), **logged)  # type: ignore[arg-type]


@torch.compiler.disable  # the hooks of a traced model record nothing
def run_to_layer(
    model: PreTrainedModel,
    layer: int,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    stop: bool = False,
) -> AttentionStates:
    """Run an encoder and return what the attention of one of its layers works on.

    Args:
        model: Any of the seven families or of ours, under any head.
        layer: Index of the layer; -1 is the last.
        input_ids: `[batch, length]`.
        attention_mask: `[batch, length]`, 0 at padding.
        stop: Leave out all that comes after.
    """
    encoder = find_encoder(model)
    chosen = find_layers(encoder)[layer]
    with record_attention(chosen, stop) as record, suppress(LayerReached):
        model.base_model(input_ids=input_ids, attention_mask=attention_mask)
    return read_attention_states(chosen, record, encoder.config.num_attention_heads)


def compute_distillation_losses(
    teacher: AttentionStates, student: AttentionStates, attention_mask: torch.Tensor, config: DistillationConfig
) -> dict[str, torch.Tensor]:
    """Compute the terms of the loss.

    Where the student attends to a part of the text only (the local layers of ModernBERT), the teacher's attention
    distribution is that over the same part: no student could give weight to what it does not see. Value, query and key
    relations are over the whole text.

    The maps of a large batch are computed some sequences at a time, and again for the gradient: kept for all sequences
    they would take more memory than the student's whole forward pass.

    Args:
        teacher: Of the layer that teaches.
        student: Of the layer that learns.
        attention_mask: `[batch, length]`, 0 at padding.
        config: Which terms.

    Returns:
        The terms by the names of `DistillationOutput`.
    """
    batch_size, length = attention_mask.shape
    num_heads = count_relation_heads(teacher.num_heads, config)
    names = [f"{relation}_loss" for relation in RELATIONS[config.method]]
    size = max(1, CHUNK_ELEMENTS // (num_heads * length * length))
    totals = []
    for start in range(0, batch_size, size):
        rows = slice(start, start + size)
        arguments = teacher.select(rows), student.select(rows), attention_mask[rows], config
        if size < batch_size and torch.is_grad_enabled():
            means = checkpoint(compute_terms, *arguments, use_reentrant=False)
        else:
            means = compute_terms(*arguments)
        totals.append(means * len(attention_mask[rows]))
    return dict(zip(names, torch.stack(totals).sum(dim=0) / batch_size, strict=True))


def compute_terms(
    teacher: AttentionStates, student: AttentionStates, attention_mask: torch.Tensor, config: DistillationConfig
) -> torch.Tensor:
    """Compute the terms of `compute_distillation_losses` for one block of sequences, in the order of `RELATIONS`."""
    num_heads = count_relation_heads(teacher.num_heads, config)
    terms = []
    for relation in RELATIONS[config.method]:
        with torch.no_grad():
            teacher_scores = teacher.compute_scores(relation, num_heads, student.visible)
        student_scores = student.compute_scores(relation, num_heads)
        terms.append(compute_relation_loss(teacher_scores, student_scores, attention_mask))
    return torch.stack(terms)


def count_relation_heads(teacher_heads: int, config: DistillationConfig) -> int:
    """Return the heads over which relations are compared."""
    if config.method == "minilm":
        return teacher_heads
    return config.num_relation_heads or 4 * teacher_heads


# ------------------------------------------------------------------------------------------ what fits together


def check_pair(student: PreTrainedModel, teacher: PreTrainedModel, config: DistillationConfig) -> None:
    """Check that `student` can learn from `teacher`; see `DistillationModel`.

    Raises:
        ValueError: The vocabularies, layers, heads or widths do not allow it.
    """
    rows = student.config.vocab_size, teacher.config.vocab_size
    if abs(rows[0] - rows[1]) > LARGEST_PADDING:
        raise ValueError(
            f"student and teacher must read the same tokens; the student has {rows[0]:,} entries, the teacher "
            f"{rows[1]:,}. Apply the same vocabulary delta to both, or make the student from this teacher."
        )
    ours, theirs = find_encoder(student).config, find_encoder(teacher).config
    for owner, encoder_config in (("student", ours), ("teacher", theirs)):
        # Flash and flex attention hand on no mask that tells which positions a local layer attends to.
        if (attention := str(encoder_config._attn_implementation)).startswith(("flash", "flex")):
            raise ValueError(
                f"relations are read under sdpa or eager attention; the {owner} has {attention}. Load it with "
                "attn_implementation='sdpa'."
            )
    if config.teacher_layer is not None and config.teacher_layer > theirs.num_hidden_layers:
        raise ValueError(
            f"teacher_layer is a layer of the teacher, which has {theirs.num_hidden_layers}; got {config.teacher_layer}"
        )
    if config.method == "minilm" and ours.num_attention_heads != theirs.num_attention_heads:
        raise ValueError(
            f"MiniLM compares head with head; the student has {ours.num_attention_heads} and the teacher "
            f"{theirs.num_attention_heads}. Use method='minilmv2', or a student with as many heads."
        )
    num_heads = count_relation_heads(theirs.num_attention_heads, config)
    if config.method == "minilmv2" and (ours.hidden_size % num_heads or theirs.hidden_size % num_heads):
        raise ValueError(
            f"the relation heads must divide both widths; {num_heads} do not divide {ours.hidden_size} (student) and "
            f"{theirs.hidden_size} (teacher). Set num_relation_heads."
        )
    if not any(parameter.requires_grad for parameter in find_encoder(student).parameters()):
        raise ValueError("the encoder of the student is frozen; train it: freeze_backbone=False in models of ours")
    sizes = [sum(parameter.numel() for parameter in model.base_model.parameters()) for model in (student, teacher)]
    if sizes[0] > sizes[1]:
        warnings.warn(
            f"the student has {sizes[0]:,} parameters, more than the teacher with {sizes[1]:,}: it can learn no more "
            "than the teacher knows, at a higher cost",
            stacklevel=3,
        )


def check_same_vocabulary(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Check that two tokenizers give every entry the same id.

    Raises:
        ValueError: They do not; names an entry.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if ours == theirs:
        return
    entry = next(entry for entry in sorted(ours.keys() | theirs.keys()) if ours.get(entry) != theirs.get(entry))
    raise ValueError(
        f"student and teacher must have the same vocabulary; {entry!r} has the id {ours.get(entry)} in the student's "
        f"({len(ours):,} entries) and {theirs.get(entry)} in the teacher's ({len(theirs):,}). Expand both by the same "
        "vocabulary delta, or make the student from this teacher."
    )


# --------------------------------------------------------------------------------------------- making students


def make_student(
    teacher: PreTrainedModel,
    *,
    num_hidden_layers: int,
    hidden_size: int | None = None,
    num_attention_heads: int | None = None,
    intermediate_size: int | None = None,
) -> PreTrainedModel:
    """Make a fresh student of the teacher's family and vocabulary.

    AdaLM's students have 6 layers of width 384 with 12 heads and an intermediate size of 1536.

    Args:
        teacher: Any of the seven families or of ours; only its configuration is read.
        num_hidden_layers: Layers.
        hidden_size: Width; None is the teacher's, as with the following.
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
    if kinds is not None:  # local and global layers follow each other as the teacher's do
        shape["layer_types"] = [kinds[layer % len(kinds)] for layer in range(num_hidden_layers)]
    for name, value in shape.items():
        if value is not None:
            setattr(config, name, value)
    config.vocab_size = teacher.config.vocab_size
    config.dtype = None
    return AutoModelForMaskedLM.from_config(config).eval()


def pick_layers(teacher: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Make a student of some of the teacher's layers and its embeddings, all copied.

    Args:
        teacher: Any stock encoder of the seven families, or one of ours around it except exBERT; the masked-LM head of
            a stock one is taken over as well.
        layers: Numbers of the layers, rising, 1 is the first: `(1, 3, 5)` makes three layers of six.

    Returns:
        A stock masked LM in float32.

    Raises:
        ValueError: The numbers do not rise or are no layers of the teacher; a ModernBERT without its first layer, which
            alone has no norm before its attention; an exBERT, whose side modules no stock layer holds.
    """
    encoder = find_encoder(teacher)
    count = encoder.config.num_hidden_layers
    if not layers or list(layers) != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= count:
        raise ValueError(f"layers must be rising numbers from 1 to {count}, the teacher's layers; got {list(layers)}")
    if encoder.config.model_type == "modernbert" and layers[0] != 1:
        raise ValueError(
            f"ModernBERT's first layer alone can be a first one: layers must begin with 1, got {layers[0]}"
        )
    if teacher.config.vocab_size != encoder.config.vocab_size or hasattr(find_layers(encoder)[0], "side"):
        raise ValueError("an exBERT's layers hold side modules, which a student has not; use make_student")
    student = make_student(teacher, num_hidden_layers=len(layers))
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
    for name, weight in source.state_dict().items():
        if name.startswith(stack + "."):
            number, _, rest = name.removeprefix(stack + ".").partition(".")
            if number not in places:
                continue
            name = f"{stack}.{places[number]}.{rest}"
        weights[name] = weight
    load_matching_weights(target, weights, "the student")
    student.tie_weights()
    return student.eval()
