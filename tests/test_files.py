"""Output folders keep what is in them."""

import pytest
from transformers import BertConfig, PreTrainedConfig, RobertaConfig

from hf_domain.files import check_output_dir, write_text, write_whole

LABELS = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}


def test_folder_of_the_same_model_is_used_again(tmp_path):
    check_output_dir(tmp_path / "missing", BertConfig())
    for config in (BertConfig(), BertConfig(**LABELS), BertConfig(num_labels=3)):
        config.save_pretrained(tmp_path)
        check_output_dir(tmp_path, config)


@pytest.mark.parametrize("folder", ["", "checkpoint-5"])
def test_folder_of_another_model_is_refused(tmp_path, folder):
    BertConfig(**LABELS).save_pretrained(tmp_path / folder)
    check_output_dir(tmp_path, BertConfig(**LABELS))
    with pytest.raises(ValueError, match=r"config.json has model_type bert, this run roberta"):
        check_output_dir(tmp_path, RobertaConfig(**LABELS))
    with pytest.raises(ValueError, match=r"config.json has labels \['a', 'b'\], this run \['b', 'a'\]"):
        check_output_dir(tmp_path, BertConfig(id2label={0: "b", 1: "a"}, label2id={"b": 0, "a": 1}))
    with pytest.raises(ValueError, match=r"has labels \['a', 'b'\], this run \['LABEL_0', 'LABEL_1'\]"):
        check_output_dir(tmp_path, BertConfig())


def test_backbone_tells_models_of_ours_apart(tmp_path):
    class OwnConfig(PreTrainedConfig):
        model_type = "ours"

    (tmp_path / "config.json").write_text('{"model_type": "ours", "backbone_config": {"model_type": "bert"}}')
    check_output_dir(tmp_path, OwnConfig(backbone_config={"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"has backbone bert, this run roberta"):
        check_output_dir(tmp_path, OwnConfig(backbone_config={"model_type": "roberta"}))


def test_text_is_written_as_a_whole(tmp_path):
    write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "new \ud800")
    assert (tmp_path / "file").read_text() == "old"
    write_text(tmp_path / "file", "neü")
    assert (tmp_path / "file").read_bytes() == "neü".encode()


def test_file_that_could_not_be_written_stays(tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(b"good")
    with pytest.raises(OSError, match="full"), write_whole(file) as unfinished:
        unfinished.write_bytes(b"ba")
        raise OSError("the disk is full")
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(file, b"good")]
