"""RADA: retrieval-augmented domain adaptation (Xu et al., RepL4NLP 2023).

Beside an input the model gets passages that were retrieved for it. An interface on top of the encoder chooses one of
them, weighs its words, and adds what it read to the state of every token of the input.

Symbols of the paper, and what they are called here (one head; d is its size):

    h_i^x, h_j^p            `hidden_states`, `passage_states`
    W^Q, W^K, W^V, W        `RetrievalInterface.query`, `.key`, `.value`, `.output`
    alpha_ij, alpha_j       scores of words: q_i . k_j / sqrt(d), and over all i; `word_scores`
    alpha^k                 the score of passage k, summed over its words and the heads; `passage_scores`
    g, tau, beta^k          noise, `temperature`, `passage_weights`
    k-hat                   `selected_passages`
    alpha-tilde_j           `word_weights`, normalized within a passage (Eq. 12)
    h-hat                   `fused`, the same vector at every position (Eq. 13)

Eqs. 5-8 sum q_i . k_j over i before anything else is done with it, so they need the mean of the queries alone. Put
through W^K transposed it scores the states themselves, and their weighted sum is put through W^V: the passages are
never projected. Likewise the score of a passage needs one vector of it, the mean of its states. So where no gradient is
wanted, a passage is chosen first, and only the states of that one are encoded or read.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .backbone import BackbonePreTrainedModel, build_backbone, needs_gradient
from .configuration_rada import RadaConfig
from .heads import (
    BackboneForMaskedLM,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
    NumItems,
)

# Passages encoded at once: with 10 of them an input, a batch of 16 would otherwise be a batch of 160.
ENCODED_AT_ONCE = 64


@dataclass
class PassageReading:
    """What was read for each input of a batch; None where the model got no passages. Detached.

    Args:
        selected_passages: `[batch]`, which of its passages was chosen, as an index into them; -1 where there was none.
        passage_weights: `[batch, passages]`, beta; sums to 1, or to 0 where there was no passage.
        word_weights: `[batch, num_heads, passage_length]`, of the words of the chosen passage; sums to 1, or to 0.
    """

    selected_passages: torch.Tensor | None = None
    passage_weights: torch.Tensor | None = None
    word_weights: torch.Tensor | None = None


@dataclass
class RadaModelOutput(PassageReading, BaseModelOutput):
    """Output of `RadaModel` and `RetrievalInterface`."""


@dataclass
class RadaMaskedLMOutput(PassageReading, MaskedLMOutput):
    """Output of `RadaForMaskedLM`."""


@dataclass
class RadaSequenceClassifierOutput(PassageReading, SequenceClassifierOutput):
    """Output of `RadaForSequenceClassification`."""


@dataclass
class RadaTokenClassifierOutput(PassageReading, TokenClassifierOutput):
    """Output of `RadaForTokenClassification`."""


@dataclass
class RadaQuestionAnsweringModelOutput(PassageReading, QuestionAnsweringModelOutput):
    """Output of `RadaForQuestionAnswering`."""


# ------------------------------------------------------------------------------------------ the interface


def average_states(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average over real tokens.

    Args:
        states: `[..., length, hidden_size]`.
        mask: `[..., length]`, bool.

    Returns:
        `[..., hidden_size]`, float32; zeros where there is no token.
    """
    mask = mask.unsqueeze(-2).float()
    return (mask @ states.float()).squeeze(-2) / mask.sum(dim=-1).clamp(min=1)


def sample_gumbel(like: torch.Tensor) -> torch.Tensor:
    """Sample from Gumbel(0, 1) in the shape of `like` (Eq. 10), as -log of an exponential; always finite.

    Eq. 11 is infinite where the uniform sample is 0 or 1.
    """
    return -torch.empty_like(like).exponential_().clamp(min=torch.finfo(like.dtype).tiny).log()


def read_matrix(linear: nn.Module) -> torch.Tensor:
    """Return the matrix `[out, in]` of a linear map without bias, float32.

    An adapter of peft in its place keeps the matrix of its own: what it does to the unit vectors is the matrix of both.
    """
    weight: Any = linear.weight
    if type(linear) is not nn.Linear:
        weight = linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).T
    return weight.float()


class RetrievalInterface(nn.Module):
    """The RA-interface (section 3.3): scores, selection and fusion, on the states of any encoder.

    Computes in float32 whatever the states are. The matrices have no biases, as printed; one in W^K would cancel.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        scores: str = "pooled",
        selection: str = "gumbel",
        temperature: float = 1.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.scores = scores
        self.selection = selection
        self.temperature = temperature
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.LayerNorm(hidden_size)
        if scores == "pooled":
            # The printed sum over both lengths is so large that neither noise nor gradient counts; the mean, of a
            # fresh interface, so small (they differ by 0.001) that fine-tuning could end before it outgrows the noise.
            self.scale = nn.Parameter(torch.full((1,), hidden_size**0.5))

    def forward(
        self,
        hidden_states: torch.Tensor,
        passage_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.Tensor | None = None,
    ) -> RadaModelOutput:
        """Read a passage for each input.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            passage_states: `[batch, passages, passage_length, hidden_size]`, or `[rows, passage_length, hidden_size]`
                with `passage_index`.
            attention_mask: `[batch, length]`, 0 at padding.
            passage_attention_mask: As `passage_states` without its last dimension; a passage of padding is none.
            passage_index: `[batch, passages]`, the row of each passage; -1 where there is none.

        Returns:
            `last_hidden_state` `[batch, length, hidden_size]`: exactly `hidden_states` where there is no passage; and
            what was read.
        """
        mask = passage_attention_mask
        mask = passage_states.new_ones(passage_states.shape[:-1]) if mask is None else mask
        if passage_index is not None:
            rows = passage_index.clamp(min=0)
            passage_states, mask = passage_states[rows], mask[rows] * (passage_index >= 0).unsqueeze(-1)
        mask = mask.bool()
        available = mask.any(dim=-1)
        with torch.autocast(hidden_states.device.type, enabled=False):
            hidden, states = hidden_states.float(), passage_states.float()
            word_scores, passage_scores = self.score(hidden, states, get_mask(hidden, attention_mask), mask)
            choice, passage_weights = self.choose(passage_scores, available)
            word_weights = self.weigh_words(word_scores, mask)
            contexts = word_weights.transpose(1, 2) @ states  # [batch, passages, heads, hidden_size]
            values = torch.einsum("bkhd,hed->bkhe", contexts, self.split_heads(self.value)).flatten(2)
            fused = choice.unsqueeze(1) @ values  # [batch, 1, hidden_size]
            norm = self.norm
            read = F.layer_norm(
                hidden + F.linear(fused, read_matrix(self.output)),
                norm.normalized_shape,
                norm.weight.float(),
                norm.bias.float(),
                norm.eps,
            )
        has_passage = available.any(dim=-1)
        selected = choice.detach().argmax(dim=-1)
        index = selected[:, None, None, None].expand(-1, self.num_heads, 1, mask.shape[-1])
        selected_weights = word_weights.detach().gather(2, index).squeeze(2)
        return RadaModelOutput(
            last_hidden_state=torch.where(has_passage[:, None, None], read.to(hidden_states.dtype), hidden_states),
            selected_passages=selected.masked_fill(~has_passage, -1),
            passage_weights=passage_weights.detach(),
            word_weights=selected_weights,
        )

    def split_heads(self, linear: nn.Module) -> torch.Tensor:
        """Return the matrix of a projection as `[heads, head_size, hidden_size]`, float32."""
        return read_matrix(linear).unflatten(0, (self.num_heads, -1))

    def project_query(self, hidden_states: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
        """Return the mean query of each head, put through W^K transposed and divided by sqrt(d).

        Its product with a state of a passage is the mean of q_i . k_j / sqrt(d) over the positions i.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            token_mask: `[batch, length]`, bool.

        Returns:
            `[batch, heads, hidden_size]`, float32.
        """
        query = torch.einsum("bd,hed->bhe", average_states(hidden_states, token_mask), self.split_heads(self.query))
        return torch.einsum("bhe,hed->bhd", query, self.split_heads(self.key)) / query.shape[-1] ** 0.5

    def score(
        self, hidden_states: torch.Tensor, states: torch.Tensor, token_mask: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score words and passages (Eqs. 4-8).

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            states: `[batch, passages, passage_length, hidden_size]`.
            token_mask: `[batch, length]`, bool.
            mask: `[batch, passages, passage_length]`, bool.

        Returns:
            Scores of words `[batch, heads, passages, passage_length]`, undefined at padding, and of passages
            `[batch, passages]`. With "joint" both are logarithms of the attention they get.
        """
        if self.scores == "joint":
            return self.score_jointly(hidden_states, states, token_mask, mask)
        query = self.project_query(hidden_states, token_mask)
        if self.scores == "literal":
            query = query * token_mask.sum(dim=-1)[:, None, None]
        word_scores = (query @ states.flatten(1, 2).transpose(1, 2)).unflatten(-1, states.shape[1:3])
        if self.scores == "literal":
            return word_scores, word_scores.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=(1, 3))
        return word_scores, self.score_passages(query, average_states(states, mask))

    def score_passages(self, query: torch.Tensor, passage_vectors: torch.Tensor) -> torch.Tensor:
        """Score passages by their mean states: the mean over their words, summed over heads, times the scale.

        Args:
            query: See `project_query`.
            passage_vectors: `[batch, passages, hidden_size]`, see `average_states`.

        Returns:
            `[batch, passages]`.
        """
        return self.scale.float() * (passage_vectors @ query.sum(dim=1).unsqueeze(-1)).squeeze(-1)

    def score_jointly(
        self, hidden_states: torch.Tensor, states: torch.Tensor, token_mask: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score by a softmax over all words of all passages at each position; see `score`.

        In logarithms throughout: a passage without attention has a very small weight, not 0 / 0.
        """
        query = torch.einsum("bld,hed->bhle", hidden_states, self.split_heads(self.query))
        keys = torch.einsum("bkpd,hed->bhkpe", states, self.split_heads(self.key)).flatten(2, 3)
        scores = query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5  # [batch, heads, length, words]
        lowest = torch.finfo(scores.dtype).min
        words = mask.flatten(1)[:, None]
        attention = scores.masked_fill(~words[:, None], lowest).log_softmax(dim=-1)
        length = token_mask.sum(dim=-1).clamp(min=1)[:, None, None]
        attention = attention.masked_fill(~token_mask[:, None, :, None], lowest).logsumexp(dim=2) - length.log()
        attention = attention.masked_fill(~words, lowest).unflatten(-1, mask.shape[1:])
        return attention, attention.transpose(1, 2).flatten(2).logsumexp(dim=-1) - math.log(self.num_heads)

    def choose(self, passage_scores: torch.Tensor, available: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose passages (Eqs. 9-11).

        Args:
            passage_scores: `[batch, passages]`.
            available: `[batch, passages]`, bool.

        Returns:
            What weighs the values, and beta, both `[batch, passages]`. The former is one-hot unless all are read; with
            "gumbel" its gradient is that of beta.
        """
        logits = passage_scores
        if self.selection == "gumbel" and self.training:
            # As printed, one sample for all passages, which the softmax cancels.
            logits = logits + sample_gumbel(logits[:, :1] if self.scores == "literal" else logits)
        logits = (logits / self.temperature).masked_fill(~available, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1) * available
        if self.selection == "all":
            return weights, weights
        choice = F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(weights.dtype)
        if self.selection == "gumbel":
            choice = choice + (weights - weights.detach())  # the difference is exactly 0
        return choice, weights

    def weigh_words(self, word_scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Normalize the scores of words within each passage (Eq. 12).

        Args:
            word_scores: `[batch, heads, passages, passage_length]`.
            mask: `[batch, passages, passage_length]`, bool.

        Returns:
            `[batch, heads, passages, passage_length]`; zeros at padding.
        """
        mask = mask.unsqueeze(1)
        if self.scores == "literal":
            word_scores = word_scores.masked_fill(~mask, 0.0)
            totals = word_scores.sum(dim=-1, keepdim=True)
            return word_scores / totals.masked_fill(~mask.any(dim=-1, keepdim=True), 1.0)
        lowest = torch.finfo(word_scores.dtype).min
        return word_scores.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0.0)

    def select(
        self,
        hidden_states: torch.Tensor,
        passage_vectors: torch.Tensor,
        available: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a passage by the vectors of the passages alone; needs `scores="pooled"`.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            passage_vectors: `[batch, passages, hidden_size]`, see `average_states`.
            available: `[batch, passages]`, bool.
            attention_mask: `[batch, length]`, 0 at padding.

        Returns:
            The index of the chosen passage `[batch]` (any where none is available) and beta `[batch, passages]`.
        """
        with torch.autocast(hidden_states.device.type, enabled=False):
            query = self.project_query(hidden_states, get_mask(hidden_states, attention_mask))
            choice, weights = self.choose(self.score_passages(query, passage_vectors.float()), available)
        return choice.argmax(dim=-1), weights


def get_mask(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return a mask of tokens as bool; all are real where there is none."""
    if attention_mask is None:
        return torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
    return attention_mask.bool()


def add_zero_gradients(states: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return `states` unchanged, in a graph that gives every trainable parameter of `module` at least a zero gradient.

    A batch without passages uses no weight of the interface, and selection="top1" never uses the scale. Processes that
    train together would wait for the missing gradients forever.
    """
    zeros: Any = [0 * parameter.flatten()[0] for parameter in module.parameters() if parameter.requires_grad]
    return states + sum(zeros).to(states.dtype) if zeros else states


# ------------------------------------------------------------------------------------------------ the models


class PassageReader(Protocol):
    """Encoded passages that are read when they are needed, such as `hf_domain.rada.states.PassageCache`."""

    def read_vectors(self, passage_ids: torch.Tensor) -> torch.Tensor:
        """Read the mean states of passages, `[...]` to `[..., hidden_size]`, float32."""

    def read_states(self, passage_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the states of passages, `[rows]` to `[rows, passage_length, hidden_size]`, and their mask."""


class RadaPreTrainedModel(BackbonePreTrainedModel):
    """Base of the RADA models."""

    config_class = RadaConfig
    auto_classes = {
        "AutoConfig": "configuration_rada.RadaConfig",
        "AutoModel": "modeling_rada.RadaModel",
        "AutoModelForMaskedLM": "modeling_rada.RadaForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_rada.RadaForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_rada.RadaForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_rada.RadaForQuestionAnswering",
    }
    reading_output_class: type[PassageReading]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RetrievalInterface):
            # What a fresh interface reads would be noise on every state: six tenths as large as the first token's of a
            # small encoder with `initializer_range` 0.05.
            init.zeros_(module.output.weight)
            if module.scores == "pooled":
                init.constant_(module.scale, module.query.in_features**0.5)

    @classmethod
    def from_backbone(cls, backbone: str | PreTrainedModel, **options: Any) -> Self:
        """Build a RADA around a pretrained encoder; arguments as in `BackbonePreTrainedModel.from_backbone`."""
        model = super().from_backbone(backbone, **options)
        rada: Any = model.base_model
        rada.copy_passage_encoder()
        return model

    @classmethod
    def from_pretrained(cls, *args, output_loading_info: bool = False, **kwargs) -> Any:
        """Load as transformers does; a frozen passage encoder that the checkpoint lacks is copied from its encoder."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = {key for key in info["missing_keys"] if "passage_backbone." in key}
        if missing:
            model.base_model.copy_passage_encoder()
            info["missing_keys"] = type(info["missing_keys"])(set(info["missing_keys"]) - missing)
        return (model, info) if output_loading_info else model

    def freeze_parameters(self) -> None:
        """Freeze the copy that encodes passages."""
        if self.config.passage_encoder == "frozen":
            self.base_model.passage_backbone.requires_grad_(False)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> Any:
        """Resize as transformers does; a frozen passage encoder gets the new rows as they begin."""
        rows = self.get_input_embeddings().num_embeddings
        table: Any = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if self.config.passage_encoder == "frozen" and table.num_embeddings != rows:
            rada: Any = self.base_model
            frozen = rada.passage_backbone.resize_token_embeddings(table.num_embeddings, mean_resizing=False)
            with torch.no_grad():
                frozen.weight[rows:] = table.weight[rows:]
            self.freeze_parameters()
        return table

    def use_passage_cache(self, cache: PassageReader | None) -> None:
        """Let the model read encoded passages by their ids, which batches then bring as `passage_ids`.

        Args:
            cache: Of the passage encoder as it is now; None forgets it.
        """
        rada: Any = self.base_model
        rada.passage_cache = cache

    def build_output(self, output_class: Any, outputs: Any, **fields: Any) -> Any:
        """Return the output of a head with what was read."""
        reading = {name: outputs[name] for name in PassageReading.__dataclass_fields__ if name in outputs}
        return super().build_output(self.reading_output_class, outputs, **fields, **reading)


class RadaModel(RadaPreTrainedModel):
    """An encoder and the interface that reads passages."""

    passage_cache: PassageReader | None = None

    def __init__(self, config: RadaConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        if config.passage_encoder == "frozen":
            self.passage_backbone = build_backbone(config.backbone_config)
        self.interface = RetrievalInterface(
            config.hidden_size, config.num_heads or 1, config.scores, config.selection, config.temperature
        )
        self.freeze_parameters()
        self.post_init()

    def train(self, mode: bool = True) -> "RadaModel":
        """Switch to training mode; a frozen passage encoder never uses dropout."""
        super().train(mode)
        if self.config.passage_encoder == "frozen":
            self.passage_backbone.eval()
        return self

    def copy_passage_encoder(self) -> None:
        """Give the frozen passage encoder, if there is one, the weights of the encoder."""
        if self.config.passage_encoder == "frozen":
            self.passage_backbone.load_state_dict(self.backbone.state_dict())

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        passage_input_ids: torch.LongTensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.LongTensor | None = None,
        passage_states: torch.FloatTensor | None = None,
        passage_vectors: torch.FloatTensor | None = None,
        passage_ids: torch.LongTensor | None = None,
        **kwargs,
    ) -> RadaModelOutput:
        """Encode a batch and read a passage for each input; without passages this is the encoder.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            passage_input_ids: `[batch, passages, passage_length]`, or `[rows, passage_length]` with `passage_index`.
            passage_attention_mask: The same shape, 0 at padding; a passage of padding is none.
            passage_index: `[batch, passages]`, the row of each passage; -1 where there is none. A passage that several
                inputs have is then encoded once.
            passage_states: Encoded passages instead of `passage_input_ids`, with `hidden_size` as last dimension.
            passage_vectors: Mean states of the passages, `[rows, hidden_size]` or `[batch, passages, hidden_size]`.
                With them only the chosen passage is encoded, where nothing but the chosen one is read (in evaluation,
                with pooled scores); elsewhere they are not needed.
            passage_ids: `[batch, passages]`, which passages to read from the cache (see `use_passage_cache`) instead of
                all the above; -1 where there is none.
            kwargs: Go to the encoder.

        Returns:
            `last_hidden_state` and what was read; `hidden_states` and `attentions` are the encoder's.

        Raises:
            ValueError: There is no cache to read `passage_ids` from, or it would go stale while a shared encoder
                trains; or passages that are not in the form above.
        """
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states: Any = outputs.last_hidden_state
        if passage_ids is not None:
            reading = self.read_cached_passages(hidden_states, attention_mask, passage_ids)
        elif passage_input_ids is not None or passage_states is not None:
            reading = self.read_passages(
                hidden_states,
                attention_mask,
                passage_input_ids,
                passage_attention_mask,
                passage_index,
                passage_states,
                passage_vectors,
            )
        else:
            reading = RadaModelOutput(last_hidden_state=hidden_states)
        if self.training:
            states: Any = reading.last_hidden_state
            reading["last_hidden_state"] = add_zero_gradients(states, self.interface)
        return RadaModelOutput(**reading, hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    def encode_passages(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Encode passages, with a gradient only if the configuration asks for it.

        Args:
            input_ids: `[rows, passage_length]`.
            attention_mask: `[rows, passage_length]`, 0 at padding.

        Returns:
            `[rows, passage_length, hidden_size]`.
        """
        encoder, is_trained = self.backbone, self.config.passage_gradient
        if self.config.passage_encoder == "frozen":
            encoder, is_trained = self.passage_backbone, needs_gradient(self.passage_backbone)
        # An encoder that may attend to nothing gives what its attention makes of it; NaN, in some.
        first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
        mask = attention_mask.bool() | (first & ~attention_mask.bool().any(dim=1, keepdim=True))
        mask = mask.to(attention_mask.dtype)
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            return torch.cat(
                [
                    encoder(input_ids=ids, attention_mask=ids_mask, return_dict=True).last_hidden_state
                    for ids, ids_mask in zip(input_ids.split(ENCODED_AT_ONCE), mask.split(ENCODED_AT_ONCE), strict=True)
                ]
            )

    @property
    def chooses_first(self) -> bool:
        """Whether a passage is chosen by the vectors of all before the states of that one are read."""
        return not self.training and self.config.scores == "pooled" and self.config.selection != "all"

    def read_passages(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        mask: torch.Tensor | None,
        index: torch.Tensor | None,
        states: torch.Tensor | None,
        vectors: torch.Tensor | None,
    ) -> RadaModelOutput:
        """Read passages that the batch brings; arguments as in `forward`."""
        shape = input_ids.shape if states is None else states.shape[:-1]  # type: ignore[union-attr]
        if len(shape) != (3 if index is None else 2) or (mask is not None and mask.shape != shape):
            raise ValueError(
                "passages are [batch, passages, passage_length], or [rows, passage_length] with passage_index; got "
                f"{list(shape)}, {'no' if index is None else 'a'} passage_index, and a passage_attention_mask of "
                f"{None if mask is None else list(mask.shape)}"
            )
        device = hidden_states.device
        mask = torch.ones(shape, dtype=torch.long, device=device) if mask is None else mask
        if index is None:
            index = torch.arange(shape[0] * shape[1], device=device).view(shape[:2])
            mask = mask.flatten(0, 1)
            input_ids = None if input_ids is None else input_ids.flatten(0, 1)
            states = None if states is None else states.flatten(0, 1)
        if not index.shape[1] or not mask.numel():
            return RadaModelOutput(last_hidden_state=hidden_states)
        rows = index.clamp(min=0)
        available = (index >= 0) & mask.bool().any(dim=-1)[rows]
        if states is None and not (self.chooses_first and vectors is not None):
            states = self.encode_passages(input_ids, mask)  # type: ignore[arg-type]
        if not self.chooses_first:
            return self.interface(hidden_states, states, attention_mask, mask, index)
        if vectors is None:
            vectors = average_states(states, mask.bool())  # type: ignore[arg-type]
        vectors = vectors[rows] if vectors.dim() == 2 else vectors
        selected, weights = self.interface.select(hidden_states, vectors, available, attention_mask)
        chosen = rows.gather(1, selected.unsqueeze(1)).squeeze(1)
        chosen_mask = mask[chosen] * available.any(dim=1, keepdim=True)
        states = self.encode_passages(input_ids[chosen], mask[chosen]) if states is None else states[chosen]  # type: ignore[index]
        return self.read_chosen(hidden_states, attention_mask, states, chosen_mask, selected, weights)

    def read_cached_passages(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, passage_ids: torch.Tensor
    ) -> RadaModelOutput:
        """Read passages from the cache; arguments as in `forward`."""
        if self.passage_cache is None:
            raise ValueError("passage_ids are read from a cache and there is none; call use_passage_cache first")
        if self.training and (self.config.passage_encoder == "shared" or needs_gradient(self.passage_backbone)):
            raise ValueError(
                "cached passages go stale while the encoder that made them trains; use passage_encoder='frozen', and "
                "leave passage_backbone out of an adapter by exclude_modules"
            )
        available = passage_ids >= 0
        if not available.any():
            return RadaModelOutput(last_hidden_state=hidden_states)
        device = hidden_states.device
        known = passage_ids.masked_fill(~available, passage_ids.max())
        if not self.chooses_first:
            unique, index = known.unique(return_inverse=True)
            states, mask = (tensor.to(device) for tensor in self.passage_cache.read_states(unique))
            return self.interface(hidden_states, states, attention_mask, mask, index.masked_fill(~available, -1))
        vectors = self.passage_cache.read_vectors(known).to(device)
        selected, weights = self.interface.select(hidden_states, vectors, available, attention_mask)
        chosen = known.gather(1, selected.unsqueeze(1)).squeeze(1)
        states, mask = (tensor.to(device) for tensor in self.passage_cache.read_states(chosen))
        mask = mask * available.any(dim=1, keepdim=True)
        return self.read_chosen(hidden_states, attention_mask, states, mask, selected, weights)

    def read_chosen(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        states: torch.Tensor,
        mask: torch.Tensor,
        selected: torch.Tensor,
        weights: torch.Tensor,
    ) -> RadaModelOutput:
        """Read one passage for each input.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            attention_mask: `[batch, length]`.
            states: `[batch, passage_length, hidden_size]`, of the chosen passage.
            mask: `[batch, passage_length]`; of padding alone where there is none.
            selected: `[batch]`, see `RetrievalInterface.select`.
            weights: `[batch, passages]`, likewise.
        """
        reading = self.interface(hidden_states, states.unsqueeze(1), attention_mask, mask.unsqueeze(1))
        reading.selected_passages = selected.masked_fill(reading.selected_passages < 0, -1)
        reading.passage_weights = weights.detach()
        return reading


# ------------------------------------------------------------------------------------------------- the heads


class RadaHead(RadaPreTrainedModel):
    """A head with `labels` over `RadaModel`."""

    base_class = RadaModel

    def __init__(self, config: RadaConfig):
        super().__init__(config)
        self.post_init()

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
        passage_input_ids: torch.LongTensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.LongTensor | None = None,
        passage_states: torch.FloatTensor | None = None,
        passage_vectors: torch.FloatTensor | None = None,
        passage_ids: torch.LongTensor | None = None,
        **kwargs,
    ) -> Any:
        """Predict with passages; they are given as to `RadaModel.forward`, all else as to the head without them."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, labels, num_items_in_batch)
        passages = {
            "passage_input_ids": passage_input_ids,
            "passage_attention_mask": passage_attention_mask,
            "passage_index": passage_index,
            "passage_states": passage_states,
            "passage_vectors": passage_vectors,
            "passage_ids": passage_ids,
        }
        return super().forward(*inputs, **passages, **kwargs, return_dict=True)


class RadaForMaskedLM(RadaHead, BackboneForMaskedLM):
    """Masked LM on what was read."""

    reading_output_class = RadaMaskedLMOutput


class RadaForSequenceClassification(RadaHead, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the first token."""

    reading_output_class = RadaSequenceClassifierOutput


class RadaForTokenClassification(RadaHead, BackboneForTokenClassification):
    """Token classification."""

    reading_output_class = RadaTokenClassifierOutput


class RadaForQuestionAnswering(RadaPreTrainedModel, BackboneForQuestionAnswering):
    """Extractive question answering."""

    base_class = RadaModel
    reading_output_class = RadaQuestionAnsweringModelOutput

    def __init__(self, config: RadaConfig):
        super().__init__(config)
        self.post_init()

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
        passage_input_ids: torch.LongTensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.LongTensor | None = None,
        passage_states: torch.FloatTensor | None = None,
        passage_vectors: torch.FloatTensor | None = None,
        passage_ids: torch.LongTensor | None = None,
        **kwargs,
    ) -> Any:
        """Find the answer's span with passages; see `RadaHead.forward`."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        passages = {
            "passage_input_ids": passage_input_ids,
            "passage_attention_mask": passage_attention_mask,
            "passage_index": passage_index,
            "passage_states": passage_states,
            "passage_vectors": passage_vectors,
            "passage_ids": passage_ids,
        }
        return super().forward(*inputs, start_positions, end_positions, **passages, **kwargs, return_dict=True)


RadaConfig.register_for_auto_class()
RadaModel.register_for_auto_class("AutoModel")
RadaForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
RadaForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
RadaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
RadaForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
