from hf_domain.tokenization import VocabularyDelta


def test_a_saved_delta_loads_equal(tmp_path):
    delta = VocabularyDelta(100, {"lymphoma": [4, 5], "##ö": [], "患": [7]}, [3] * 103)
    delta.save(tmp_path / "tokenizer")
    loaded = VocabularyDelta.load(tmp_path / "tokenizer")
    assert loaded == delta and list(loaded.pieces) == ["lymphoma", "##ö", "患"] and loaded.new_size == 103
    (file,) = (tmp_path / "tokenizer").iterdir()
    assert file.name == "vocabulary_delta.json" and "患" in file.read_text(encoding="utf-8")
