"""The HTTP face: answers, refusals in one sentence each, limits, keys, and metrics."""

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from dgz import DGZ, GZSLData
from dgz.images import Backbone
from dgz.serve import Engine, Limits, create_app
from dgz.words import open_encoder

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def model(data: GZSLData) -> DGZ:
    names, vectors = np.array(data.class_names), dict(zip(data.class_names, data.attributes, strict=True))
    return DGZ.without_generator(n_epochs=2, generator__n_epochs=2).fit(data.x_train, names[data.y_train], vectors)


@pytest.fixture
def engine(model: DGZ, backbone: Backbone) -> Engine:
    limits = Limits(body=300_000, rows=50, photos=4, pixels=10_000, seconds=10)
    return Engine(model, backbone=backbone, limits=limits)


@pytest.fixture
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        yield client


def photo(row: Any, kind: str = "PNG") -> bytes:
    pixels = np.clip(row.reshape(8, 16) * 15.9375, 0, 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def sent(client: TestClient, content: Any, **options: Any) -> Any:
    return client.post("/predict", content=json.dumps(content), headers=JSON, **options)


def error_of(answer: Any, code: int) -> str:
    assert answer.status_code == code, answer.text
    (sentence,) = answer.json().values()
    assert answer.json() == {"error": sentence}
    assert "\n" not in sentence
    return str(sentence)


# --- Predictions.
def test_vectors_get_the_models_answers(client: TestClient, model: DGZ, data: GZSLData) -> None:
    rows = data.x_test_seen[:6]
    answer = sent(client, {"features": rows.tolist()}, params={"top": 3})
    assert answer.status_code == 200
    labels, shares = model.predict_top(rows, 3)
    for found, names, parts in zip(answer.json()["predictions"], labels, shares, strict=True):
        assert [one["name"] for one in found["guesses"]] == names.tolist()
        assert [one["probability"] for one in found["guesses"]] == pytest.approx(parts, abs=1e-6)
    kinds = {one["name"]: one["kind"] for row in answer.json()["predictions"] for one in row["guesses"]}
    seen = set(model.classes_[model.seen_])
    assert all((kind == "seen") == (name in seen) for name, kind in kinds.items())


def test_npy_bodies_mean_the_same(client: TestClient, data: GZSLData) -> None:
    file = io.BytesIO()
    np.save(file, data.x_test_seen[:6])
    answer = client.post("/predict", content=file.getvalue(), headers={"Content-Type": "application/x-npy"})
    assert answer.json() == sent(client, {"features": data.x_test_seen[:6].tolist()}).json()


def test_photos_are_read_as_the_features_were(client: TestClient, model: DGZ, data: GZSLData) -> None:
    rows = data.x_test_seen[:3].round()
    files = [("photos", (f"{k}.png", photo(row), "image/png")) for k, row in enumerate(rows)]
    answer = client.post("/predict", files=files, params={"top": 1}).json()
    assert [one["source"] for one in answer["predictions"]] == ["0.png", "1.png", "2.png"]
    assert [one["guesses"][0]["name"] for one in answer["predictions"]] == model.predict(rows).tolist()


def test_the_balance_and_the_choice_of_classes(client: TestClient, model: DGZ, data: GZSLData) -> None:
    rows = data.x_test_seen[:9]
    for penalty in (-0.1, 0.3):
        answer = sent(client, {"features": rows.tolist()}, params={"top": 1, "seen_penalty": penalty}).json()
        found = [one["guesses"][0]["name"] for one in answer["predictions"]]
        assert found == model.predict(rows, seen_penalty=penalty).tolist()
    answer = sent(client, {"features": rows.tolist()}, params={"top": 999, "classes": "unseen"}).json()
    unseen = model.classes_[~model.seen_]
    for row, found in zip(model.predict(rows, classes=unseen), answer["predictions"], strict=True):
        assert found["guesses"][0]["name"] == row
        assert {one["name"] for one in found["guesses"]} == set(unseen)
        assert sum(one["probability"] for one in found["guesses"]) == pytest.approx(1)


# --- Classes.
def test_a_class_that_is_added_is_in_the_next_answer(client: TestClient, data: GZSLData) -> None:
    vector = data.attributes[data.unseen[3]].tolist()
    before = client.get("/classes").json()
    added = client.post("/classes", json={"name": "a/b new?", "vector": vector})
    assert added.status_code == 201
    assert {"name": "a/b new?", "kind": "added"} in added.json()["classes"]
    answer = sent(client, {"features": data.x_test_unseen[:2].tolist()}, params={"top": 999}).json()
    assert answer["revision"] == 1
    same = {one["name"]: one["score"] for one in answer["predictions"][0]["guesses"]}
    assert same["a/b new?"] == pytest.approx(same[data.class_names[data.unseen[3]]], abs=1e-6)
    assert "There is a class called" in error_of(
        client.post("/classes", json={"name": "a/b new?", "vector": vector}), 409
    )
    removed = client.delete("/classes/a%2Fb%20new%3F")
    assert removed.json()["classes"] == before["classes"]
    assert "no class called" in error_of(client.delete("/classes/a%2Fb%20new%3F"), 404)


def test_a_class_is_added_from_words(data: GZSLData) -> None:
    encoder = open_encoder("minilm")
    words = {name: f"the number {name}" for name in data.class_names}
    vectors = dict(zip(words, encoder.encode(list(words.values())), strict=True))
    names = np.array(data.class_names)
    model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1).fit(data.x_train, names[data.y_train], vectors)
    with TestClient(create_app(Engine(model, encoder=encoder))) as client:
        assert client.get("/classes").json()["takes_descriptions"] == "minilm"
        for name, text in (("a dozen", "the number 12"), ("Дюжина", "число двенадцать 🙂 عدد")):
            assert client.post("/classes", json={"name": name, "description": text}).status_code == 201
        answer = sent(client, {"features": data.x_test_seen[:1].tolist()}, params={"top": 999}).json()
        scores = {one["name"]: one["score"] for one in answer["predictions"][0]["guesses"]}
        assert scores["a dozen"] == pytest.approx(scores["12"], abs=1e-5)
        assert "Дюжина" in scores
        assert "words in it" in error_of(client.post("/classes", json={"name": "x", "description": " "}), 422)
        long = {"name": "x", "description": "word " * 5000}
        assert "20,000 characters" in error_of(client.post("/classes", json=long), 422)


# --- What is refused.
@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (b"", 400, "The body is no JSON"),
        (b"{", 400, "The body is no JSON"),
        (b"[" * 100_000, 400, "The body is no JSON"),
        (b"[]", 422, "must be an object with one entry"),
        (b'{"x": 1}', 422, "must be an object with one entry"),
        (b'{"features": "x"}', 422, "equally long lists of numbers"),
        (b'{"features": [[1, 2], [1]]}', 422, "equally long lists of numbers"),
        (b'{"features": [[1, 2]]}', 422, "must have 128 numbers each, found an array of shape (1, 2)"),
        (b'{"features": []}', 422, "must have 128 numbers each"),
        (b'{"features": [[' + b",".join([b"1e39"] * 128) + b"]]}", 422, "must be finite"),
        (b'{"features": [[' + b",".join([b"NaN"] * 128) + b"]]}", 400, "The body is no JSON"),
    ],
)
def test_bodies_that_make_no_sense(client: TestClient, content: bytes, code: int, sentence: str) -> None:
    assert sentence in error_of(client.post("/predict", content=content, headers=JSON), code)


def test_other_bodies_that_make_no_sense(client: TestClient, data: GZSLData) -> None:
    answer = client.post("/predict", content=b"x", headers={"Content-Type": "application/x-npy"})
    assert "no .npy file" in error_of(answer, 400)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}]), allow_pickle=True)
    answer = client.post("/predict", content=pickled.getvalue(), headers={"Content-Type": "application/x-npy"})
    assert "no .npy file" in error_of(answer, 400)
    answer = client.post("/predict", content=b"x", headers={"Content-Type": "text/plain"})
    assert "not text/plain" in error_of(answer, 415)
    many = {"features": np.zeros((51, 128)).tolist()}
    assert "1 to 50 feature vectors, found 51" in error_of(sent(client, many), 422)
    one = {"features": data.x_test_seen[:1].tolist()}
    assert "top" in error_of(sent(client, one, params={"top": 0}), 422)
    assert "seen_penalty" in error_of(sent(client, one, params={"seen_penalty": "nan"}), 422)
    assert "classes" in error_of(sent(client, one, params={"classes": "some"}), 422)
    assert error_of(client.get("/nowhere"), 404) == "Not Found"
    assert error_of(client.get("/predict"), 405) == "Method Not Allowed"


def bomb() -> bytes:
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "x.jpg is empty"),
        (b"not an image", "x.jpg is no photo"),
        (photo(np.zeros(128))[:-30], "x.jpg cannot be decoded"),
        (bomb(), "more than the 10,000 allowed"),
    ],
)
def test_photos_that_are_none(client: TestClient, data: GZSLData, content: bytes, sentence: str) -> None:
    good = ("photos", ("good.png", photo(data.x_test_seen[0]), "image/png"))
    answer = client.post("/predict", files=[good, ("photos", ("x.jpg", content, "image/jpeg"))])
    assert sentence in error_of(answer, 422)
    assert client.post("/predict", files=[good]).status_code == 200


def test_forms_that_make_no_sense(client: TestClient, data: GZSLData) -> None:
    file = ("x.png", photo(data.x_test_seen[0]), "image/png")
    assert "fields called photos" in error_of(client.post("/predict", files=[("other", file)]), 422)
    assert "Too many files" in error_of(client.post("/predict", files=[("photos", file)] * 5), 413)
    answer = client.post("/predict", content=b"garbage", headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.status_code in (400, 422)
    answer = client.post("/predict", content=b"garbage", headers={"Content-Type": "multipart/form-data"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "name"),
        ({"name": "x"}, "either a vector or a description"),
        ({"name": "x", "vector": [1]}, "must have the shape"),
        ({"name": "x", "vector": "long"}, "vector"),
        ({"name": "x", "vector": [1e39] * 30}, "must be finite"),
        ({"name": "x", "vector": [1] * 30, "colour": "red"}, "colour"),
    ],
)
def test_classes_that_make_no_sense(client: TestClient, content: Any, sentence: str) -> None:
    assert sentence in error_of(client.post("/classes", json=content), 422)
    assert client.get("/health").json()["revision"] == 0


# --- Limits.
def test_a_large_body_is_sent_away_before_it_is_read(client: TestClient) -> None:
    read = []

    def endless() -> Iterator[bytes]:
        for k in range(10_000):
            read.append(k)
            yield b" " * 10_000

    claimed = client.post("/predict", content=endless(), headers={**JSON, "Content-Length": str(10 << 30)})
    assert "A request may have 300,000 bytes." in error_of(claimed, 413)
    answer = client.post("/predict", content=b" " * 300_001, headers=JSON)
    assert "A request may have 300,000 bytes." in error_of(answer, 413)
    assert client.get("/health").status_code == 200


def test_a_request_that_takes_too_long_is_ended(
    engine: Engine, data: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(engine, "scores", lambda rows: release.wait(30))
    object.__setattr__(engine.limits, "seconds", 0.2)
    with TestClient(create_app(engine)) as client:
        assert "longer than 0.2 s" in error_of(sent(client, {"features": data.x_test_seen[:1].tolist()}), 503)
        release.set()


def test_too_many_at_once_are_sent_away(engine: Engine, data: GZSLData) -> None:
    object.__setattr__(engine.limits, "waiting", 0)
    with TestClient(create_app(engine)) as client:
        answer = sent(client, {"features": data.x_test_seen[:1].tolist()})
        assert "Too many requests at once" in error_of(answer, 503)
        assert answer.headers["Retry-After"] == "1"


def test_what_went_wrong_inside_stays_inside(engine: Engine, monkeypatch: pytest.MonkeyPatch, data: GZSLData) -> None:
    def broken(rows: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(engine, "scores", broken)
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        sentence = error_of(sent(client, {"features": data.x_test_seen[:1].tolist()}), 500)
        assert "secret" not in sentence
        assert client.get("/health").status_code == 200


# --- Who may ask.
def test_a_key_is_needed_where_there_is_one(engine: Engine) -> None:
    with TestClient(create_app(engine, api_key="a long enough key")) as client:
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}, {"X-API-Key": "ключ".encode()}):
            assert "wants its key" in error_of(client.get("/classes", headers=headers), 401)
            assert client.post("/classes", json={"name": "x"}, headers=headers).status_code == 401
        assert client.get("/classes", headers={"X-API-Key": "a long enough key"}).status_code == 200
        assert client.get("/classes", headers={"Authorization": "Bearer a long enough key"}).status_code == 200
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert client.get("/metrics").status_code == 401


def test_pages_of_strangers_are_kept_out(engine: Engine) -> None:
    with TestClient(create_app(engine, hosts=("localhost", "[::1]")), base_url="http://localhost:8000") as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health", headers={"Host": "[::1]:8000"}).status_code == 200
        assert "not called evil.example" in error_of(client.get("/health", headers={"Host": "evil.example"}), 403)
        assert client.get("/health", headers={"Origin": "http://localhost:8000"}).status_code == 200
        answer = client.post("/classes", json={"name": "x"}, headers={"Origin": "https://evil.example"})
        assert "Pages of https://evil.example may not" in error_of(answer, 403)


# --- For those who watch, and those who write programs.
def test_metrics_count_what_happened(client: TestClient, data: GZSLData) -> None:
    sent(client, {"features": data.x_test_seen[:6].tolist()})
    client.post("/predict", files=[("photos", ("x.png", photo(data.x_test_seen[0]), "image/png"))])
    client.get("/some/odd/path")
    text = client.get("/metrics").text
    assert 'dgz_requests_total{code="200",path="/predict"} 2.0' in text
    assert 'dgz_requests_total{code="404",path="other"} 1.0' in text
    assert 'dgz_samples_total{kind="vector"} 6.0' in text
    assert 'dgz_samples_total{kind="photo"} 1.0' in text
    assert "dgz_classes 100.0" in text
    assert 'dgz_request_seconds_count{path="/predict"} 2.0' in text


def test_the_interface_describes_itself(client: TestClient) -> None:
    api = client.get("/openapi.json").json()
    assert set(api["paths"]) == {"/predict", "/classes", "/classes/{name}", "/health", "/metrics"}
    assert set(api["paths"]["/predict"]["post"]["requestBody"]["content"]) == {
        "application/json",
        "application/x-npy",
        "multipart/form-data",
    }
    assert "$ref" not in json.dumps(api["paths"]["/predict"]["post"]["requestBody"])


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_load_nothing_from_elsewhere(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert "<script src" not in page.text
    assert "<link" not in page.text


def test_a_backbone_or_an_encoder_of_another_width_is_refused(model: DGZ, tmp_path: Path) -> None:
    from dgz.errors import DGZError

    with pytest.raises(DGZError, match="minilm makes vectors of 384 numbers, but the model's classes have 30"):
        Engine(model, encoder=open_encoder("minilm"))
