"""What every model of this package is built from: an encoder inside, its own masked-LM head, and the task heads.

A model of ours holds an encoder of transformers (or another model of ours) as `backbone` and adds to it without
copying any of its code. Heads hold the model as `model`, so that a head loads from the repository of any other head.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .configuration_backbone import BackboneConfig

# Rows projected to the vocabulary at once. Up to DIRECT_ROWS one block is fastest; beyond, checkpointed chunks are both
# faster and a quarter of the memory (benchmarks/varmae.py measures it).
CHUNK_ROWS = 512
DIRECT_ROWS = 2048

NumItems = torch.Tensor | int | None


# ----------------------------------------------------------------------------------------- the encoder


def build_backbone(config: Any) -> PreTrainedModel:
    """Build the encoder that `config` describes, with fresh weights and without a pooler.

    Checkpoints with a masked-LM head have no pooler: it would be random, and none of our heads reads it.
    """
    # Our own types are named here instead of being looked up: on the Hub nothing has registered them.
    if config.model_type == "varmae":
        from .modeling_varmae import VarMAEModel

        return VarMAEModel(config)
    if config.model_type == "exbert":
        from .modeling_exbert import ExBertModel

        return ExBertModel(config)
    if config.model_type == "gmap":
        from .modeling_gmap import GMapModel

        if not config.save_memory:
            raise ValueError("save_memory=False leaves out a memory that only G-MAP itself finds again; save it whole")
        return GMapModel(config)
    if config.model_type == "rada":
        from .modeling_rada import RadaModel

        return RadaModel(config)
    backbone = AutoModel.from_config(config)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    return backbone


def get_native_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of the stock encoder at the core of nested models of ours."""
    while hasattr(config, "backbone_config"):
        config = config.backbone_config
    return config


def find_encoder(model: Any) -> PreTrainedModel:
    """Return the stock encoder at the core of nested models of ours."""
    while isinstance(model, BackbonePreTrainedModel):
        model = model.base_model.backbone
    return model.base_model


def find_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of an encoder of any family."""
    return next(
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and all(isinstance(layer, GradientCheckpointingLayer) for layer in module)
    )


def load_matching_weights(
    module: nn.Module, state_dict: dict[str, torch.Tensor], what: str, added_modules: tuple[str, ...] = ()
) -> None:
    """Load `state_dict` into `module`; keys of a pooler or of buffers may be left over, a parameter may not be missing.

    Args:
        module: What is filled.
        state_dict: Weights of a checkpoint.
        what: Names `module` in the error.
        added_modules: Names of modules inside `module` that the checkpoint does not know; they keep their weights.

    Raises:
        ValueError: A parameter of `module` is not in `state_dict`; names it.
    """
    missing = module.load_state_dict(state_dict, strict=False).missing_keys
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if lost := [key for key in missing if key in parameters and set(added_modules).isdisjoint(key.split("."))]:
        raise ValueError(f"{what} has no weights for {', '.join(lost[:5])}; it must be of the configured architecture")


class BackbonePreTrainedModel(PreTrainedModel):
    """Base of every model of this package.

    Class attributes a method sets: `config_class`, `base_class` (the model without a head), `added_modules` (names of
    what it adds inside the encoder or the LM head) and `auto_classes`, the whole `auto_map` of a repository:
    transformers would record only the head that was saved, and `AutoModel` would then refuse the repository of a
    masked LM.
    """

    config_class: type[BackboneConfig]
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    base_class: type[PreTrainedModel]
    added_modules: tuple[str, ...] = ()
    auto_classes: dict[str, str] = {}

    @classmethod
    def from_backbone(
        cls,
        backbone: str | PreTrainedModel,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | None = None,
        dtype: torch.dtype | str = torch.float32,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> Self:
        """Build this model from any pretrained encoder; a masked-LM head is taken over as well.

        Args:
            backbone: Name or folder of a checkpoint, or a loaded model (with or without a masked-LM head), whose
                weights are copied.
            revision: Branch, tag or commit on the Hub.
            token: Hub token.
            cache_dir: Where downloads are kept.
            dtype: Type of the weights when `backbone` is a name. float32 is our choice: transformers would keep the
                checkpoint's own type, and a bfloat16 checkpoint then trains in bfloat16.
            trust_remote_code: Whether code of the backbone's repository may run; never read from a configuration.
            options: Fields of the configuration of this model.

        Raises:
            ValueError: An option is not a field of the configuration, or the encoder cannot be a backbone.
        """
        allowed = {field.name for field in fields(cls.config_class)} | {"num_labels", "id2label", "label2id"}
        if unknown := sorted(options.keys() - allowed):
            own = sorted(set(cls.config_class.__annotations__))
            raise ValueError(
                f"{cls.config_class.__name__} has no option {', '.join(unknown)}; its own are {', '.join(own)}"
            )
        if isinstance(backbone, str):
            source = AutoModelForMaskedLM.from_pretrained(
                backbone,
                revision=revision or "main",
                token=token,
                cache_dir=cache_dir,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
            )
        else:
            source = backbone
        encoder = source.base_model
        model = cls(cls.config_class(backbone_config=encoder.config, **options)).to(source.dtype)
        load_matching_weights(model.get_backbone(), encoder.state_dict(), "the backbone", cls.added_modules)
        if isinstance(model, BackboneForMaskedLM):
            if source.get_output_embeddings() is None:
                raise ValueError(
                    f"{cls.__name__} needs a backbone with a masked-LM head, got {type(source).__name__}; "
                    "pass the checkpoint's name or an AutoModelForMaskedLM"
                )
            model.load_lm_head(source)
        model.tie_weights()
        return model.eval()

    @classmethod
    def from_pretrained(cls, *args, **kwargs) -> Any:
        """Load as transformers does, and freeze again what the method freezes: loading makes all of it trainable."""
        output = super().from_pretrained(*args, **kwargs)
        for module in (output[0] if isinstance(output, tuple) else output).modules():
            if isinstance(module, BackbonePreTrainedModel):  # also where it is the backbone of another
                module.freeze_parameters()
        return output

    def freeze_parameters(self) -> None:
        """Turn off the gradients of what the method leaves as it is; nothing by default."""

    def get_backbone(self) -> PreTrainedModel:
        """Return the encoder, from the model itself or from a head over it."""
        model: Any = self.base_model
        return model.backbone

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table of the encoder."""
        return self.get_backbone().get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table of the encoder."""
        self.get_backbone().set_input_embeddings(value)

    def build_output(self, output_class: Any, outputs: Any, **fields: Any) -> Any:
        """Return the output of a head; a method whose model gives more hands it on here.

        Args:
            output_class: Class of the output.
            outputs: What the model gave.
            fields: `loss`, and the logits.
        """
        return output_class(**fields, hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, with an `auto_map` that names every head."""
        if self.is_remote_code():
            self.config.auto_map = dict(self.auto_classes)
        super().save_pretrained(*args, **kwargs)


# -------------------------------------------------------------------------------------- masked-LM head


class EncoderPassthrough(nn.Module):
    """Stands where the encoder of a stock masked LM stood and hands on the hidden states it is given."""

    def forward(self, input_ids: torch.Tensor | None = None, *args, **kwargs) -> BaseModelOutput:
        """Return `input_ids`, which are hidden states here, as the encoder's output."""
        return BaseModelOutput(last_hidden_state=input_ids)


def build_native_lm_head(config: PreTrainedConfig) -> PreTrainedModel:
    """Build the masked-LM head of the family of `config`: the stock model with its encoder replaced by a pass-through.

    Calling it with hidden states `[..., hidden_size]` returns a `MaskedLMOutput` with logits `[..., vocab_size]`. Every
    family keeps its own transform, activation, normalization and biases, so logits equal the stock model's.

    Raises:
        ValueError: The family's head reads the encoder's embeddings itself (DeBERTa-v2 with `legacy=False`).
    """
    config = get_native_config(config)
    if config.model_type == "deberta-v2" and not getattr(config, "legacy", True):
        raise ValueError("a DeBERTa-v2 with legacy=False has a masked-LM head inside its encoder; use legacy=True")
    head = AutoModelForMaskedLM.from_config(config)
    prefix = head.base_model_prefix
    setattr(head, prefix, EncoderPassthrough())
    inner = {
        target: source for target, source in head.all_tied_weights_keys.items() if not source.startswith(prefix + ".")
    }
    head._tied_weights_keys, head.all_tied_weights_keys = inner, dict(inner)
    return head


def get_module_name(root: nn.Module, module: nn.Module) -> str:
    """Return the dotted name of `module` inside `root`."""
    return next(name for name, candidate in root.named_modules() if candidate is module)


def compute_vocabulary_losses(
    decode: Callable[[torch.Tensor], torch.Tensor], hidden_states: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy of each row against its label, without ever holding all logits.

    Args:
        decode: Maps `[rows, hidden_size]` to logits `[rows, vocab_size]`.
        hidden_states: `[rows, hidden_size]`.
        labels: `[rows]`, token ids.

    Returns:
        `[rows]`, nats, float32.
    """

    def compute(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(decode(rows).float(), targets, reduction="none")

    if len(hidden_states) <= DIRECT_ROWS:
        return compute(hidden_states, labels)
    chunks = zip(hidden_states.split(CHUNK_ROWS), labels.split(CHUNK_ROWS), strict=True)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(compute, rows, targets, use_reentrant=False) for rows, targets in chunks])
    return torch.cat([compute(rows, targets) for rows, targets in chunks])


def compute_masked_lm_loss(
    decode: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: NumItems = None,
) -> torch.Tensor:
    """Masked-LM loss from the labelled positions alone.

    Args:
        decode: Maps hidden states to logits.
        hidden_states: `[batch, length, hidden_size]`.
        labels: `[batch, length]`; -100 where nothing is predicted.
        num_items_in_batch: Labels in the whole accumulation window, as Trainer counts them; None counts them here.

    Returns:
        Sum of the losses over `num_items_in_batch`: batch 8 x 1 and 2 x 4 accumulation give the same.
    """
    labelled = labels != -100
    losses = compute_vocabulary_losses(decode, hidden_states[labelled], labels[labelled])
    return losses.sum() / count_items(labelled.sum(), num_items_in_batch)


def count_items(local_count: torch.Tensor, num_items_in_batch: NumItems) -> torch.Tensor | int:
    """Return what a summed loss is divided by: Trainer's count, or else the batch's own (at least 1)."""
    return local_count.clamp(min=1) if num_items_in_batch is None else num_items_in_batch


class BackboneForMaskedLM(BackbonePreTrainedModel):
    """Any model of ours under the masked-LM head of its encoder's family.

    In training the logits of a labelled batch are not returned: only the labelled rows are projected.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        if config.backbone_config.vocab_size != get_native_config(config).vocab_size:
            raise ValueError("the backbone is an exBERT, and only ExBertForMaskedLM decodes its extension vocabulary")
        self.model = self.base_class(config)
        self.lm_head = build_native_lm_head(config)
        decoder = get_module_name(self, self.get_output_embeddings())
        embeddings = get_module_name(self, self.get_input_embeddings())
        self._tied_weights_keys = {f"{decoder}.weight": f"{embeddings}.weight"}

    def load_lm_head(self, source: PreTrainedModel) -> None:
        """Copy the masked-LM head of `source`, a stock masked LM or one of ours."""
        if isinstance(source, BackboneForMaskedLM):
            state_dict = source.lm_head.state_dict()
        else:
            encoder = source.base_model_prefix + "."
            state_dict = {key: value for key, value in source.state_dict().items() if not key.startswith(encoder)}
        load_matching_weights(self.lm_head, state_dict, "the masked-LM head", self.added_modules)

    def decode(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map hidden states `[..., hidden_size]` to logits `[..., vocab_size]`."""
        return self.lm_head(hidden_states).logits

    def get_output_embeddings(self) -> nn.Module:
        """Return the decoder."""
        return self.lm_head.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the decoder."""
        self.lm_head.set_output_embeddings(new_embeddings)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> MaskedLMOutput:
        """Predict masked tokens.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            labels: `[batch, length]`, -100 where nothing is predicted.
            num_items_in_batch: Labels in the accumulation window; Trainer passes it.
            kwargs: Go to the encoder.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = compute_masked_lm_loss(self.decode, hidden_states, labels, num_items_in_batch)
        logits = None if self.training and labels is not None else self.decode(hidden_states)
        return self.build_output(MaskedLMOutput, outputs, loss=loss, logits=logits)


# ------------------------------------------------------------------------------------------ task heads


class ClassificationHead(nn.Module):
    """Dense, tanh and output layer on the first token, with dropout before both (RoBERTa's head).

    Our choice for every family: all of them put a [CLS] or <s> first, and several have no pooler.
    """

    def __init__(self, config: Any, hidden_size: int | None = None):
        super().__init__()
        hidden_size = hidden_size or config.hidden_size
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(get_classifier_dropout(config))
        self.out_proj = nn.Linear(hidden_size, config.num_labels)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `[batch, length, hidden_size]` to logits `[batch, num_labels]`."""
        first = self.dropout(hidden_states[:, 0])
        return self.out_proj(self.dropout(torch.tanh(self.dense(first))))


def get_classifier_dropout(config: PreTrainedConfig) -> float:
    """Return the dropout of a task head: the configured one, else the encoder's hidden dropout under any name."""
    if config.classifier_dropout is not None:
        return config.classifier_dropout
    native = get_native_config(config)
    for name in ("hidden_dropout_prob", "dropout", "mlp_dropout"):
        if hasattr(native, name):
            return getattr(native, name)
    return 0.0


def compute_classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig, num_items_in_batch: NumItems = None
) -> torch.Tensor:
    """Loss of a sequence classifier; a regression, single-label or multi-label problem by `config.problem_type`.

    Args:
        logits: `[batch, num_labels]`.
        labels: `[batch]` class ids or values, or `[batch, num_labels]` of 0 and 1 or values.
        config: Its `problem_type` is inferred from `num_labels` and the type of `labels` when it is None, as
            transformers does.
        num_items_in_batch: Labels in the accumulation window; None counts them here.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.long, torch.int):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    logits = logits.float()
    if config.problem_type == "single_label_classification":
        total = F.cross_entropy(logits, labels.view(-1), reduction="sum")
        count = (labels != -100).sum()
    else:
        labels = labels.view_as(logits).float()
        loss_function = F.mse_loss if config.problem_type == "regression" else F.binary_cross_entropy_with_logits
        total = loss_function(logits, labels, reduction="sum")
        count = torch.tensor(labels.numel(), device=labels.device)
    return total / count_items(count, num_items_in_batch)


class BackboneForSequenceClassification(BackbonePreTrainedModel):
    """Any model of ours with a classification or regression head on the first token."""

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.base_class(config)
        self.classifier: nn.Module = ClassificationHead(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Classify sequences or pairs; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            labels: `[batch]` class ids or values, or `[batch, num_labels]`; see `compute_classification_loss`.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = compute_classification_loss(logits, labels, self.config, num_items_in_batch)
        return self.build_output(SequenceClassifierOutput, outputs, loss=loss, logits=logits)


class BackboneForTokenClassification(BackbonePreTrainedModel):
    """Any model of ours with a linear layer on every token."""

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.base_class(config)
        self.dropout = nn.Dropout(get_classifier_dropout(config))
        self.classifier: nn.Module = nn.Linear(config.hidden_size, config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        """Classify tokens; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            labels: `[batch, length]` class ids, -100 where a token has none.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            total = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
            loss = total / count_items((labels != -100).sum(), num_items_in_batch)
        return self.build_output(TokenClassifierOutput, outputs, loss=loss, logits=logits)


class BackboneForQuestionAnswering(BackbonePreTrainedModel):
    """Any model of ours with start and end scores on every token."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = self.base_class(config)
        self.qa_outputs: nn.Module = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Find the answer's span; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            start_positions: `[batch]`, index of the answer's first token; beyond the length counts as no label.
            end_positions: `[batch]`, index of its last token.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        logits = {"start_logits": start_logits, "end_logits": end_logits}
        return self.build_output(QuestionAnsweringModelOutput, outputs, loss=loss, **logits)
