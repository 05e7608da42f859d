"""Students: what they copy from a teacher, and which pairs fit."""

import pytest
import torch
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer, make_roberta_tokenizer

from hf_domain.methods.adalm.attention import run_to_layer
from hf_domain.methods.adalm.losses import DistillationConfig
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.methods.adalm.students import check_same_vocabulary, make_student, pick_layers
from hf_domain.modeling.backbone import find_layers

MINILM = DistillationConfig()
MINILMV2 = DistillationConfig("minilmv2", num_relation_heads=8)


def test_picked_layers_are_the_teachers(family):
    teacher = make_masked_lm(family)
    batch = make_batch(masked=False)
    assert torch.equal(pick_layers(teacher, [1, 2])(**batch).logits, teacher(**batch).logits)
    assert torch.equal(
        pick_layers(teacher.base_model, [1, 2]).base_model(**batch).last_hidden_state,
        teacher.base_model(**batch).last_hidden_state,
    )
    first = pick_layers(teacher, [1])
    expected = run_to_layer(teacher, 0, **batch)
    assert torch.equal(run_to_layer(first, 0, **batch).query, expected.query)
    first.get_input_embeddings().weight.data.zero_()
    assert teacher.get_input_embeddings().weight.any()
    if family == "modernbert":
        assert pick_layers(teacher, [1, 2]).config.layer_types == teacher.config.layer_types
        with pytest.raises(ValueError, match="but begin with 2"):
            pick_layers(teacher, [2])
    else:
        second = pick_layers(teacher, [2])
        name = next(name for name, _ in find_layers(teacher)[1].named_parameters())
        assert torch.equal(find_layers(second)[0].get_parameter(name), find_layers(teacher)[1].get_parameter(name))


def test_narrow_layers_keep_the_neurons_with_the_largest_weights(family):
    """The student computes what the teacher does without the output of its other neurons."""
    torch.manual_seed(0)
    teacher, batch = make_masked_lm(family), make_batch(masked=False)
    student = pick_layers(teacher, [1, 2], intermediate_size=20)
    for layer in find_layers(teacher):
        first, second = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)][-2:]
        sizes = []
        for neuron in range(48):
            rows = first.weight[neuron::48]  # two in ModernBERT: input and gate
            sizes.append((rows.square().sum() * second.weight[:, neuron].square().sum()).item())
        smallest = sorted(range(48), key=sizes.__getitem__)[:28]
        with torch.no_grad():
            second.weight[:, smallest] = 0
    torch.testing.assert_close(student(**batch).logits, teacher(**batch).logits)
    shapes = [tuple(module.weight.shape) for module in find_layers(student)[1].modules() if hasattr(module, "weight")]
    assert (32, 20) in shapes and (32, 48) not in shapes
    assert sum(p.numel() for p in student.parameters()) < sum(p.numel() for p in teacher.parameters())
    for width in (0, 49):
        with pytest.raises(ValueError, match=f"intermediate_size must be from 1 to 48, the teacher's, but is {width}"):
            pick_layers(teacher, [1, 2], intermediate_size=width)


def test_fresh_student_keeps_family_and_vocabulary(family):
    teacher = make_masked_lm(family).bfloat16()
    student = make_student(teacher, num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=8)
    config = student.config
    assert config.model_type == teacher.config.model_type
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (1, 16, 2)
    assert len(find_layers(student)) == 1
    assert 8 in {module.in_features for module in student.modules() if isinstance(module, torch.nn.Linear)}
    assert config.vocab_size == VOCAB_SIZE
    assert student.dtype == torch.float32
    assert teacher.config.num_hidden_layers == 2


def test_bad_pairs():
    teacher = make_masked_lm("bert")
    with pytest.raises(ValueError, match="at most 2, the layers of the teacher, but is 3"):
        DistillationModel(make_masked_lm("bert"), teacher, DistillationConfig(teacher_layer=3))
    with pytest.raises(ValueError, match=r"5 does not divide 32 \(student\)"):
        DistillationModel(make_masked_lm("bert"), teacher, DistillationConfig("minilmv2", num_relation_heads=5))
    large = make_masked_lm("bert")
    large.resize_token_embeddings(2000, mean_resizing=False)
    with pytest.raises(
        ValueError, match=r"student has 2,000 entries and the teacher 120\. Apply the same vocabulary delta"
    ):
        DistillationModel(large, teacher)
    # As many rows more as padding may be: the batch tells.
    large.resize_token_embeddings(500, mean_resizing=False)
    with pytest.raises(ValueError, match="the batch has id 400, the student 500 entries and the teacher 120"):
        DistillationModel(large, teacher)(torch.tensor([[1, 400]]))
    large = make_masked_lm("bert")
    large.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match="sdpa or eager, but the student has flex_attention"):
        DistillationModel(large, teacher)
    for layers in ([], [2, 1], [1, 1], [0], [3]):
        with pytest.raises(ValueError, match="rising numbers from 1 to 2"):
            pick_layers(teacher, layers)


def test_larger_student_is_warned_of():
    teacher = make_student(make_masked_lm("bert"), num_hidden_layers=1)
    with pytest.warns(UserWarning, match=r"the student has .* more than the teacher"):
        DistillationModel(make_masked_lm("bert"), teacher)


def test_tokenizers_must_agree():
    check_same_vocabulary(make_bert_tokenizer(), make_bert_tokenizer())
    with pytest.raises(ValueError, match="must have the same vocabulary"):
        check_same_vocabulary(make_roberta_tokenizer(), make_bert_tokenizer())
    larger = make_bert_tokenizer()
    larger.add_tokens(["zzz"])
    with pytest.raises(ValueError, match=r"'zzz' has the id \d+ in the student's .* and None in the teacher's"):
        check_same_vocabulary(larger, make_bert_tokenizer())
