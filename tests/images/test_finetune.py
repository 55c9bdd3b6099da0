"""Fine-tuning: the network learns the seen classes, from training photos alone, and becomes a backbone that says so."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dgz.cli import main
from dgz.data import ClassTable, load_bundle
from dgz.errors import DataError, DGZError
from dgz.images import (
    Backbone,
    FineTuning,
    PhotoError,
    backbone_of,
    fine_tune,
    finetune,
    import_images,
    networks,
    open_backbone,
    save_images,
)
from dgz.images.networks import Network, open_network
from dgz.training import random_stream
from images.making import IMAGENET, save_photo, stand_in_for_timm, tiny_backbone, tiny_onnx

CPU = torch.device("cpu")
TABLE = ClassTable(("ant", "bee", "cat", "dodo"), np.eye(4, dtype=np.float32), ("seen", "seen", "seen", "unseen"))
SHORT = FineTuning(n_epochs=2, learning_rate=0.01, batch_size=8)


class Small(torch.nn.Module):
    """A network with what must be treated with care: normalisation, dropout, and a layer that features do not use."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.stem = torch.nn.Conv2d(3, 6, 3)
            self.norm = torch.nn.BatchNorm2d(6)
            self.dropout = torch.nn.Dropout(0.5)
            self.classifier = torch.nn.Linear(6, 10)
        self.pretrained_cfg: dict[str, Any] = {"license": "apache-2.0"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.norm(self.stem(x))).mean((2, 3)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DGZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    stand_in_for_timm(monkeypatch, lambda _: Small())
    return tmp_path / "cache"


@pytest.fixture
def network(cache: Path) -> Network:
    found = open_network("timm:small")
    assert found is not None
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten photos of each class: noise, a little redder, greener or bluer, the last one plain."""
    rng = np.random.default_rng(0)
    for c, name in enumerate(TABLE.names):
        for i in range(10):
            values = rng.integers(0, 156, (24, 30, 3)) + 99 * (np.arange(3) == c)
            path = tmp_path / "photos" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values.astype(np.uint8)).save(path)
    return tmp_path / "photos"


def seen_photos(folder: Path) -> tuple[list[Path], list[str]]:
    paths = [path for name in TABLE.names[:3] for path in sorted((folder / name).iterdir())]
    return paths, [path.parent.name for path in paths]


def made(folder: Path, **options: Any) -> Any:
    return import_images(folder, TABLE, **{"backbone": "timm:small", "finetune": SHORT, "device": "cpu", **options})


def trained(network: Network, folder: Path, settings: FineTuning = SHORT) -> tuple[torch.nn.Module, list[float]]:
    paths, labels = seen_photos(folder)
    y = np.unique(labels, return_inverse=True)[1]
    with finetune.decoded(paths, list(map(str, paths)), network.preparation, 10**6) as photos:
        return finetune.train(network, photos, y, settings, random_stream(0, "fine-tuning"), CPU)


# --- Training.
def test_the_loss_falls_and_the_network_moves(network: Network, folder: Path) -> None:
    module, losses = trained(network, folder, FineTuning(n_epochs=20, learning_rate=0.01, head_learning_rate=0.1))
    assert len(losses) == 20
    assert losses[0] == pytest.approx(np.log(3), abs=0.1)  # a layer of zeros knows nothing
    assert losses[-1] < 0.75 * losses[0]
    before, after = network.load(), module
    for name, values in before.named_parameters():
        is_same = torch.equal(values, after.get_parameter(name))
        assert is_same == name.startswith("classifier"), name
    # What is measured of photos, and not learned, stays: a few of them would spoil it.
    for name, values in before.named_buffers():
        assert torch.equal(values, after.get_buffer(name)), name


def test_a_network_becomes_a_backbone_that_computes_the_same(network: Network, folder: Path) -> None:
    paths, labels = seen_photos(folder)
    original = network.backbone()
    tuned = fine_tune("timm:small", paths, labels, SHORT, device="cpu")
    assert (tuned.name, tuned.licence, tuned.is_fine_tuned) == ("small-finetuned", "apache-2.0", True)
    assert tuned.source == "timm:small; trained further on 30 photos of 3 classes, 2 epoch(s)"
    assert tuned.preparation == original.preparation
    module, _ = trained(network, folder)
    x = np.random.default_rng(0).normal(size=(3, 3, 16, 20)).astype(np.float32)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x)).numpy()
    assert abs(tuned.run(x) - expected).max() < 1e-5
    assert abs(tuned.run(x) - original.run(x)).max() > 1e-3
    assert open_backbone("timm:small").digest == original.digest  # it was a copy that learned


def test_the_same_seed_gives_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths, labels = seen_photos(folder)
    digests = []
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("DGZ_CACHE", str(tmp_path / place))
        torch.manual_seed(len(digests))  # the program around has a stream of its own, and keeps it
        state = torch.get_rng_state()
        digests.append(fine_tune("timm:small", paths, labels, SHORT, random_state=seed, device="cpu").digest)
        assert torch.equal(torch.get_rng_state(), state)
    assert digests[0] == digests[1] != digests[2]


def test_what_was_trained_before_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings: list[torch.nn.Module] = []

    def training(network: Network) -> bytes:
        trainings.append(network.load())
        return tiny_onnx(("n", 3, 16, 20))

    monkeypatch.setattr(networks, "_as_onnx", training)
    paths, labels = seen_photos(folder)

    def is_trained(**changes: Any) -> bool:
        n_before = len(trainings)
        given = {"paths": paths, "labels": labels, "settings": SHORT, "device": "cpu", **changes}
        assert fine_tune("timm:small", **given).is_fine_tuned
        return len(trainings) > n_before

    assert is_trained()
    assert not is_trained()
    assert not is_trained(random_state=np.int64(0))
    assert not is_trained(labels=[f"my {label}" for label in labels])  # what classes are called does not matter
    for change in (
        {"random_state": 1},
        {"settings": replace(SHORT, n_epochs=1)},
        {"labels": ["bee", *labels[1:]]},
        {"paths": paths[::-1], "labels": labels[::-1]},
    ):
        assert is_trained(**change), change
        assert not is_trained(**change), change
    save_photo(paths[0], (1, 2, 3))
    assert is_trained()


def test_a_model_of_hugging_face_is_trained_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm", "timm.data"):  # transformers would use it
        monkeypatch.delitem(sys.modules, name)
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    told = {"size": {"height": 16, "width": 16}, "image_mean": IMAGENET[0], "image_std": IMAGENET[1]}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(told))
    tuned = fine_tune(f"hf:{tmp_path / 'vit'}", *seen_photos(folder), SHORT, device="cpu")
    assert (tuned.name, tuned.d_x, tuned.is_fine_tuned) == ("vit-finetuned", 16, True)
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    assert abs(tuned.run(x) - open_backbone(f"hf:{tmp_path / 'vit'}").run(x)).max() > 1e-4


@pytest.mark.slow
def test_lite0_is_trained_too(folder: Path) -> None:
    paths, labels = seen_photos(folder)
    tuned = fine_tune("lite0", paths[8:12], labels[8:12], FineTuning(n_epochs=1), device="cpu")
    assert (tuned.name, tuned.licence, tuned.d_x) == ("lite0-finetuned", "Apache-2.0", 1280)


@pytest.mark.parametrize("chosen", [slice(0, 10), slice(0, 30, 10), slice(0, 1)])
def test_one_class_or_one_photo_each_is_enough(chosen: slice, folder: Path) -> None:
    paths, labels = seen_photos(folder)
    tuned = fine_tune("timm:small", paths[chosen], labels[chosen], SHORT, device="cpu")
    assert np.isfinite(tuned.run(np.zeros((1, 3, 16, 20), dtype=np.float32))).all()


def test_numbers_that_cease_to_be_finite_leave_nothing_behind(folder: Path, cache: Path) -> None:
    paths, labels = seen_photos(folder)
    settings = FineTuning(n_epochs=3, learning_rate=1e30)
    with pytest.raises(DGZError, match=r"^Fine-tuning timm:small failed: numbers ceased to be finite in epoch \d; a l"):
        fine_tune("timm:small", paths, labels, settings, device="cpu")
    assert [path for path in cache.rglob("*") if not path.name.endswith(".lock")] == [cache / "backbones"]


def test_settings_and_photos_that_make_no_sense_are_refused(folder: Path) -> None:
    for wrong, sentence in (
        ({"n_epochs": 0}, "n_epochs must be a whole number from 1 up, found 0"),
        ({"n_epochs": 1.5}, "n_epochs must be a whole number"),
        ({"batch_size": -1}, "batch_size must be a whole number"),
        ({"learning_rate": -1}, "learning_rate must be a number from 0 up"),
        ({"head_learning_rate": float("nan")}, "head_learning_rate must be a number"),
        ({"label_smoothing": 1.0}, "label_smoothing must lie below 1, found 1"),
    ):
        with pytest.raises(DGZError, match=sentence):
            FineTuning(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="momentum"):
        FineTuning(momentum=0.9)  # type: ignore[call-arg]
    paths, labels = seen_photos(folder)
    with pytest.raises(DataError, match="needs photos and a label for each, found 30 and 29"):
        fine_tune("timm:small", paths, labels[1:], device="cpu")
    with pytest.raises(DataError, match="found 0 and 0"):
        fine_tune("timm:small", [], [], device="cpu")
    with pytest.raises(DGZError, match="device 'nowhere' cannot be used here"):
        fine_tune("timm:small", paths, labels, device="nowhere")
    paths[3].write_text("Dear reader,")
    with pytest.raises(PhotoError, match=r"^mine is no photo"):
        fine_tune("timm:small", paths, labels, names=["mine"] * 30, device="cpu")


# --- Views.
def test_views_are_parts_of_the_photo_some_of_them_mirrored(network: Network) -> None:
    preparation = replace(network.preparation, mean=(10.0, 10.0, 10.0), std=(2.0, 2.0, 2.0))
    ramp = np.tile(np.arange(0, 250, 10, dtype=np.uint8), (1, 3, 20, 1))  # dark on the left
    views = finetune._Views(np.repeat(ramp, 200, axis=0), preparation, random_stream(0, "views"), CPU)
    found = views.draw(np.arange(200)).numpy() * 2 + 10
    assert found.shape == (200, 3, 16, 20)
    assert 0 <= found.min() < 5 < 235 < found.max() <= 240
    is_mirrored = found[:, 0, 0, 0] > found[:, 0, 0, -1]
    assert 70 < is_mirrored.sum() < 130
    shown = (found.max(axis=(1, 2, 3)) - found.min(axis=(1, 2, 3))) / 240
    assert 0.6 < shown.min() < 0.75
    assert shown.max() > 0.93
    again = finetune._Views(np.repeat(ramp, 200, axis=0), preparation, random_stream(0, "views"), CPU)
    assert (again.draw(np.arange(200)).numpy() * 2 + 10 == found).all()


def test_photos_are_decoded_as_the_network_would_see_all_of_them(folder: Path, network: Network, cache: Path) -> None:
    paths, _ = seen_photos(folder)
    save_photo(paths[1], (10, 20, 30))
    with finetune.decoded(paths, list(map(str, paths)), network.preparation, 10**6) as photos:
        assert (photos.dtype, photos.shape) == (np.uint8, (30, 3, 20, 25))
        assert (photos[1] == np.array([10, 20, 30])[:, None, None]).all()
        assert photos[0].std() > 20
        assert list(cache.iterdir()) == []  # a file without a name: nobody need clear up after a crash


# --- As part of an import.
def test_the_split_is_the_same_and_the_features_are_others(folder: Path) -> None:
    before, _ = made(folder, finetune=False)
    after, report = made(folder)
    assert after.hashes["split"] == before.hashes["split"]
    for split in ("train", "test_seen", "test_unseen"):
        assert (getattr(after, f"{split}_index") == getattr(before, f"{split}_index")).all()
        assert not np.allclose(getattr(after, f"x_{split}"), getattr(before, f"x_{split}"), atol=1e-3)
    assert (before.features, after.features) == ("small", "small-finetuned")
    assert report.photos == tuple(f"{name}/{i}.png" for name in TABLE.names for i in range(10))
    assert "fine-tuned" in json.dumps(report.facts())


def test_no_test_photo_is_read_by_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    read: list[str] = []
    real = finetune.read_photo

    def watching(source: Path, **options: Any) -> Image.Image:
        read.append(source.relative_to(folder).as_posix())
        return real(source, **options)

    monkeypatch.setattr(finetune, "read_photo", watching)
    data, report = made(folder)
    training = {report.photos[row] for row in data.train_index}
    assert len(read) == len(data.y_train) == 24
    assert set(read) == training
    for name in set(report.photos) - training:
        save_photo(folder / name, (0, 0, 0))
    monkeypatch.setenv("DGZ_CACHE", str(tmp_path / "another"))  # trained anew, not found again
    other, report_of_other = made(folder)
    assert len(read) == 48
    assert report_of_other.backbone.onnx == report.backbone.onnx
    assert (other.x_train == data.x_train).all()
    assert not np.allclose(other.x_test_seen, data.x_test_seen)


def test_bad_photos_are_left_out_of_training_too(folder: Path) -> None:
    for name in ("ant/3.png", "dodo/2.png"):
        (folder / name).write_text("Dear reader,")
    with pytest.raises(PhotoError, match=r"^ant/3\.png is no photo"):
        made(folder)
    data, report = made(folder, bad="skip")
    assert list(report.refused) == ["ant/3.png", "dodo/2.png"]
    assert len(report.photos) == 38
    assert len(data.y_test_unseen) == 9
    assert data.hashes["split"] == made(folder, bad="skip", finetune=False)[0].hashes["split"]


def test_seed_and_settings_reach_the_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def watching(*given: Any, **options: Any) -> Backbone:
        asked.append({"settings": given[3], **options})
        return Backbone(tiny_onnx(("n", 3, 16, 20)), given[0].preparation, "tiny")

    monkeypatch.setattr(finetune, "fine_tune", watching)
    made(folder, random_state=5)
    made(folder, finetune=True)
    assert [(one["settings"], one["random_state"], one["device"]) for one in asked] == [
        (SHORT, 5, "cpu"),
        (FineTuning(), 0, "cpu"),
    ]


def test_what_holds_an_onnx_file_is_refused_before_any_work(folder: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(tiny_onnx())
    tiny_backbone().save(tmp_path / "saved")
    for backbone, name in ((tmp_path / "mine.onnx", "mine"), (tmp_path / "saved", "tiny"), (tiny_backbone(), "tiny")):
        with pytest.raises(
            DGZError, match=rf"^The backbone {name} is an ONNX file, which cannot be trained further; n"
        ):
            made(folder, backbone=backbone)
    with pytest.raises(DGZError, match="A backbone is lite0, "):
        made(folder, backbone="magic")
    with pytest.raises(DGZError, match="device 'nowhere' cannot be used here"):
        made(folder, device="nowhere")
    with pytest.raises(DGZError, match=r"finetune must be true, false or settings \(FineTuning\), found 'gently'"):
        made(folder, finetune="gently")
    assert not cache.exists()


def test_a_bundle_says_that_its_features_are_fine_tuned(folder: Path, tmp_path: Path) -> None:
    data, report = made(folder)
    save_images(data, report, tmp_path / "b")
    assert load_bundle(tmp_path / "b").features == "small-finetuned"
    assert json.loads((tmp_path / "b" / "backbone" / "backbone.json").read_text())["is_fine_tuned"] is True
    backbone = backbone_of(tmp_path / "b")
    assert backbone is not None
    assert backbone.is_fine_tuned
    assert report.facts()["backbone"]["fine-tuned"] == "yes"
    # A user's own network may be one too; what it is called need not say so.
    for own, called in ((tiny_backbone(is_fine_tuned=True), "tiny-finetuned"), (tiny_backbone(), "tiny")):
        assert import_images(folder, TABLE, backbone=own)[0].features == called


# --- On the command line.
def test_the_command_fine_tunes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classes.csv").write_text("name,split,a,b\nant,seen,1,0\nbee,seen,0,1\ncat,seen,1,1\ndodo,unseen,1,2\n")
    (tmp_path / "tiny.onnx").write_bytes(tiny_onnx())

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        common = ("data", "from-images", "photos", "--classes", "classes.csv", "--backbone")
        monkeypatch.setattr(sys, "argv", ["dgz", *common, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        return subprocess.CompletedProcess(sys.argv, code if isinstance(code, int) else 0, *capsys.readouterr())

    answer = run("timm:small", "--out", "b", "--finetune", "--finetune-epochs", 1, "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    lines = {line.split("  ")[0]: line for line in answer.stdout.splitlines()}
    assert "small-finetuned, 6 wide, licence apache-2.0" in lines["backbone"]
    assert lines["backbone"].rstrip().endswith("fine-tuned yes")
    assert load_bundle("b").features == "small-finetuned"
    for wrong, sentence in (
        (("tiny.onnx", "--finetune"), "The backbone tiny is an ONNX file, which cannot be trained further; "),
        (("timm:small", "--finetune-epochs", 3), "--finetune-epochs is about fine-tuning: pass --finetune too."),
        (("timm:small", "--finetune", "--finetune-epochs", 0), "n_epochs must be a whole number from 1 up, found 0."),
        (("timm:small", "--finetune", "--device", "nowhere"), "device 'nowhere' cannot be used here: "),
    ):
        refused = run(*wrong, "--out", "b2")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert sentence in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "b2").exists()
