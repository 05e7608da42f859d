"""Distillation of a small encoder by the attention relations of a large one: MiniLM and MiniLMv2.

AdaLM (Yao et al., Findings of ACL 2021, section 4.2) distills with MiniLM (Wang et al., NeurIPS 2020). MiniLMv2 (Wang
et al., Findings of ACL 2021) drops MiniLM's demand for equally many heads. The student's last layer learns how one
layer of the teacher relates the tokens of a text to each other; widths and depths may differ.

Symbols of the papers, and what they are called here:

    |x|                  real tokens of a sequence, padding left out on both axes
    A_h, d_k             attention heads and their width; A_r, d_r: `num_relation_heads` and the width it leaves
    Q, K, V              `AttentionStates.query`, `.key`, `.value`, heads side by side
    A_T, A_S             attention distributions, softmax(QK'/sqrt(d_k))
    VR_T, VR_S           value relations, softmax(VV'/sqrt(d_k))
    L_AT, L_VR           `attention_loss`, `value_loss`, summed without weights
    Q-Q, K-K, V-V        relations of MiniLMv2: `query_loss`, `key_loss`, `value_loss`, also summed

Every loss is KL(teacher || student), without temperature, averaged over heads, real positions and sequences.

A distilled student cannot predict masked tokens: the loss reads the projections of its last layer, so the rest of that
layer and the LM head get no gradient. Fine-tuning trains the layer; a short phase of masked LM trains both.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_domain.methods.adalm.attention import run_to_layer
from hf_domain.methods.adalm.losses import DistillationConfig, compute_distillation_losses
from hf_domain.methods.adalm.students import check_pair


@dataclass
class DistillationOutput(ModelOutput):
    """Output of `DistillationModel`: the loss, with gradient, and the terms that it sums, detached; in nats."""

    loss: torch.FloatTensor | None = None
    attention_loss: torch.FloatTensor | None = None
    query_loss: torch.FloatTensor | None = None
    key_loss: torch.FloatTensor | None = None
    value_loss: torch.FloatTensor | None = None


class DistillationModel(PreTrainedModel):
    """A student and its teacher, for the stock Trainer.

    Only the student trains and is saved: a checkpoint is a plain one of the student, which `AutoModel` loads and from
    which Trainer resumes. The teacher stays in evaluation mode, without gradient and in its own type; load it with
    `dtype=torch.bfloat16` to halve its memory. Inputs are single, unmasked texts with default token types.

    Args:
        student: An encoder of the seven families or one of our models, with or without a head; heads do not change.
        teacher: The same; all its parameters are frozen.
        distillation_config: What the student learns; None is MiniLM.

    Raises:
        ValueError: Vocabularies, layers, heads, widths or attention implementations do not fit. Tables that differ by
            at most 1,024 rows pass, since padding may explain it: `check_same_vocabulary` compares tokenizers.

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
        # A copy, because the list of auxiliary losses must not be saved with the student.
        super().__init__(copy.deepcopy(student.config))
        self.config.keys_to_ignore_at_inference = [
            name for name in DistillationOutput.__annotations__ if name != "loss"
        ]
        self.distillation_config = distillation_config
        self.student = student
        self.teacher = teacher.requires_grad_(False)
        self.train(student.training)

    def train(self, mode: bool = True) -> "DistillationModel":
        """Switch the student's mode; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def state_dict(self, *args, **kwargs) -> Any:
        """Return the student's state dict; a checkpoint does not contain the teacher."""
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
            return_loss: Not used. Trainer takes its name as a sign that the loss needs no labels.
        """
        assert input_ids is not None
        rows = [model.config.vocab_size for model in (self.student, self.teacher)]
        if rows[0] != rows[1] and (largest := int(input_ids.max())) >= min(rows):
            raise ValueError(
                f"student and teacher must have the same vocabulary, but the batch has id {largest}, the student "
                f"{rows[0]:,} entries and the teacher {rows[1]:,}. Apply the same vocabulary delta to both."
            )
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        layer = self.distillation_config.teacher_layer or 0
        # The loss needs no output, so nothing after the layer's projections has to run.
        with torch.no_grad():
            teacher = run_to_layer(self.teacher, layer - 1, input_ids, attention_mask, stop=True)
        student = run_to_layer(self.student, -1, input_ids, attention_mask, stop=True)
        with torch.autocast(input_ids.device.type, enabled=False):
            terms = compute_distillation_losses(teacher, student, real, self.distillation_config)
        logged: dict[str, Any] = {name: value.detach() for name, value in terms.items()}
        return DistillationOutput(loss=torch.stack(list(terms.values())).sum(), **logged)  # type: ignore[arg-type]
