"""Does a GPU give the same answers? ``python benchmarks/check_gpu.py [--quick]``; needs nothing but the core.

Each check compares the fast path (captured graphs, fused kernels, lower precision) with the plain one on the same
random draws, prints what it found beside what is allowed, and counts. The exit status is 1 if any failed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgz import DGZ, fit_many, gzsl_scores, kernels, load_numbers, nets
from dgz import classifier as classifiers
from dgz.bench import SHAPES, _rows, _test_rows
from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.generators import VAEGAN, WGANGP, ContrastiveWGANGP, CounterfactualVAEGAN, contrastive, wgan
from dgz.metrics import TestRows
from dgz.training import Precision, multiplying, random_stream, train

GPU = torch.device("cuda")
# How far the slopes of a fused step may be from those of the plain one, relative to their norm: rounding, a few times.
TOLERANCE: dict[Precision, float] = {"float32": 1e-3, "tf32": 3e-2, "bf16": 1e-1}
found: list[tuple[str, float, float]] = []


def check(name: str, value: float, most: float) -> None:
    """Note and print one comparison."""
    found.append((name, value, most))
    print(f"{'ok  ' if value <= most else 'FAIL'} {name}: {value:.2e}, allowed {most:.0e}", flush=True)


@contextmanager
def plain() -> Iterator[None]:
    """Without fused kernels."""
    rooms = (classifiers, wgan, contrastive)
    before = [room.has_kernels for room in rooms]
    for room in rooms:
        room.has_kernels = lambda device: False
    try:
        yield
    finally:
        for room, has_kernels in zip(rooms, before, strict=True):
            room.has_kernels = has_kernels


def apart(a: Tensor, b: Tensor) -> float:
    """Distance relative to the second."""
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30))


def both(make: Callable[[], Any], work: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What some work gives with and without fused kernels."""
    fused = work(make())
    with plain():
        return fused, work(make())


def check_classifier(shape: str, precision: Precision, n_members: int, loss: str) -> None:
    """Three steps of the same members on the same rows."""
    x, y, attributes, seen = _rows(SHAPES[shape], GPU)
    y = torch.where(torch.arange(len(y), device=GPU) % 7 == 0, len(attributes) - 1, y)  # rows of an unseen class
    gates = ("argmax_all", "above_true", "always")

    def make() -> ClassifierTraining:
        members = [
            CosineClassifier(lambda_1=0.5 + k, lambda_2=0.7, gate=gates[k % 3], loss=loss) for k in range(n_members)
        ]
        rows = [torch.arange(len(x) - 600 * k, device=GPU) for k in range(n_members)]
        return ClassifierTraining(
            members, x, y, attributes, seen, rows=rows, seeds=range(n_members), precision=precision
        )

    def work(training: ClassifierTraining) -> tuple[Tensor, list[Tensor]]:
        training.shuffle()
        with multiplying(precision, GPU):
            losses = torch.stack([training.step()["loss"] for _ in range(3)])
        return losses, [mean for _, mean, _ in training.moving]

    (losses, slopes), (plain_losses, plain_slopes) = both(make, work)
    name = f"classifier, {shape}, {precision}, {loss}, {n_members} at once"
    check(f"{name}: loss", apart(losses, plain_losses), TOLERANCE[precision] / 10)
    check(f"{name}: slopes", max(map(apart, slopes, plain_slopes)), TOLERANCE[precision])


def check_critic(shape: str, precision: Precision) -> None:
    """Two steps of a GAN on the same draws."""
    x, y, attributes, _ = _rows(SHAPES[shape], GPU)

    def make() -> Any:
        gan = WGANGP()
        gan.noise_ = 0.08
        gan.build(attributes.shape[1], x.shape[1], random_stream(0, "start")).net_.to(GPU)
        return gan._trainee(x, y, attributes, 0, precision)

    def work(training: Any) -> tuple[Tensor, list[Tensor]]:
        with multiplying(precision, GPU):
            losses = [torch.stack(list(training.step().values())) for _ in range(2)]
        state = training.optimizers["critic"].state
        used = [values for name, values in training.critic.named_parameters() if name != "last.bias"]
        return torch.stack(losses), [state[values]["exp_avg"] for values in used]

    (losses, slopes), (plain_losses, plain_slopes) = both(make, work)
    check(f"critic, {shape}, {precision}: losses", apart(losses, plain_losses), TOLERANCE[precision] / 10)
    check(f"critic, {shape}, {precision}: slopes", max(map(apart, slopes, plain_slopes)), TOLERANCE[precision])


def check_adaptive_penalty() -> None:
    """A step of a VAE-GAN, whose critic's penalty has a weight that the step itself changes."""
    x, y, attributes, _ = _rows(SHAPES["CUB"], GPU)
    x = x / x.max()

    def make() -> Any:
        gan = VAEGAN()
        gan.noise_ = 0.0
        gan.build(attributes.shape[1], x.shape[1], random_stream(0, "start")).net_.to(GPU)
        return gan._trainee(x, y, attributes, 0, "float32")

    def work(training: Any) -> tuple[Tensor, Tensor]:
        with multiplying("float32", GPU):
            for _ in range(2):
                losses = torch.stack(list(training.step().values()))
        return losses, training.last_penalty

    (losses, penalty), (plain_losses, plain_penalty) = both(make, work)
    check("VAE-GAN: losses and the penalty's weight", apart(losses, plain_losses), TOLERANCE["float32"])
    check("VAE-GAN: the penalty", apart(penalty, plain_penalty), TOLERANCE["float32"])


def check_contrast() -> None:
    """The contrastive loss of GCM-CF, whose rows are made in float16, with feedback and without it."""
    x, y, attributes, _ = _rows(SHAPES["CUB"], GPU)
    x, attributes = x / x.max(), torch.nn.functional.normalize(attributes)

    def make() -> Any:
        gan = CounterfactualVAEGAN()
        gan.noise_ = 0.0
        gan.build(attributes.shape[1], x.shape[1], random_stream(0, "start")).net_.to(GPU)
        return gan._trainee(x, y, attributes, 0, "tf32")

    def work(training: Any) -> list[tuple[Tensor, ...]]:
        vae, answers = training.generator, []
        moved = [*training.encoder.parameters(), *vae.net_.parameters()]
        with multiplying("tf32", GPU):
            for remake in (vae.net_, partial(vae.decode, strength=1.0)):
                training.remake = remake
                ((loss, scale),) = training.further_losses(*training.draw())
                answers.append((loss.detach(), *torch.autograd.grad(scale * loss, moved)))
        return answers

    for name, half, plainly in zip(("without", "with"), *both(make, work), strict=True):
        check(f"contrast, {name} feedback: loss", apart(half[0], plainly[0]), TOLERANCE["tf32"] / 10)
        check(f"contrast, {name} feedback: slopes", max(map(apart, half[1:], plainly[1:])), TOLERANCE["tf32"])


def check_pairs() -> None:
    """Scores of all pairs of rows and classes, and their slopes, fused and plain; then whole steps of CE-GZSL."""
    rng = random_stream(0, "pairs", GPU)
    parts = [torch.randn(shape, generator=rng, device=GPU) for shape in ((500, 2048), (150, 2048), (2048,))]
    g = torch.randn(500, 150, generator=rng, device=GPU)
    answers = []
    for scores in (kernels.pair_scores, nets.pair_scores):
        leaves = [part.clone().requires_grad_() for part in parts]
        out = scores(*leaves)
        answers.append([out, *torch.autograd.grad(out, leaves, g)])
    for name, fused, plainly in zip(("scores", "of rows", "of classes", "of weights"), *answers, strict=True):
        check(f"pairs: {name}", apart(fused, plainly), 1e-5)
    x, y, attributes, _ = _rows(SHAPES["CUB"], GPU)

    def make() -> Any:
        # One update of the embedding: Adam's first are nearly signs, so that rounding alone tells later ones apart.
        gan = ContrastiveWGANGP(batch_size=512, n_critic=1)
        gan.noise_ = 0.0
        gan.build(attributes.shape[1], x.shape[1], random_stream(0, "start")).net_.to(GPU)
        return gan._trainee(x, y, attributes, 0, "tf32")

    def work(training: Any) -> tuple[Tensor, list[Tensor]]:
        with multiplying("tf32", GPU):
            losses = torch.stack(list(training.step().values()))
        return losses, [s["exp_avg"] for s in training.optimizers["embedding"].state.values()]

    (losses, slopes), (plain_losses, plain_slopes) = both(make, work)
    check("CE-GZSL: losses", apart(losses, plain_losses), TOLERANCE["tf32"] / 10)
    check("CE-GZSL: slopes", max(map(apart, slopes, plain_slopes)), TOLERANCE["tf32"] / 10)


def check_capture() -> None:
    """An epoch that is replayed against one that is run directly; and both twice, to the last bit."""
    x, y, attributes, seen = _rows(SHAPES["CUB"], GPU)

    def run(is_captured: bool) -> tuple[list[Any], Tensor]:
        training = ClassifierTraining(
            [CosineClassifier(n_epochs=4)], x, y, attributes, seen, seeds=[0], precision="tf32"
        )
        history = []
        for _ in range(4):
            if not is_captured:
                training._is_warm = False
            history += train("classifier", training, 1)
        return history, training.class_weights()

    runs = [run(is_captured) for is_captured in (True, True, False)]
    check("captured epochs, twice: weights", apart(runs[0][1], runs[1][1]), 0.0)
    losses = [torch.tensor([row["loss"] for row in history]) for history, _ in runs]
    check("captured epochs against direct ones: losses", apart(losses[0], losses[2]), 1e-6)


def check_scores() -> None:
    """Test scores on the GPU against those on the CPU."""
    on_gpu = _test_rows(SHAPES["CUB"], GPU)
    high, low, _ = on_gpu.x.double().chunk(3, dim=1)
    x, labels, n = ((high + low) / 64).float().cpu(), on_gpu.order[on_gpu.y].cpu(), on_gpu.n_seen_rows
    on_cpu = TestRows(x[:n], labels[:n], x[n:], labels[n:], torch.arange(200) < 150)
    weights = torch.nn.functional.normalize(torch.rand(3, 200, 2048, generator=torch.Generator().manual_seed(0)), dim=2)
    fast, slow = on_gpu.scores(weights.to(GPU)), on_cpu.scores(weights)
    for name, value in slow.items():
        check(f"test scores: {name}", float((fast[name].cpu() - value).abs().max()), 1e-3)


def check_models() -> None:
    """Models on the embedded numbers: scores of each precision, several at once, resumed, saved and loaded."""
    data = load_numbers(0)
    rows = (data.x_train, data.y_train, data.attributes)
    scores = {}
    for precision in ("float32", "tf32", "bf16"):
        model = DGZ.without_generator(device="cuda", precision=precision).fit(*rows, test=data)
        scores[precision] = gzsl_scores(model, data).h
        check(f"numbers, {precision}: 0.85 less H", 0.85 - scores[precision], 0.0)
        check(f"numbers, {precision}: H of the curve", abs(model.history_[-1]["h"] - scores[precision]), 2e-3)
    on_cpu = gzsl_scores(DGZ.without_generator(device="cpu").fit(*rows), data).h
    check("numbers: H on the CPU and with tf32", abs(on_cpu - scores["tf32"]), 0.02)
    settings = [{"lambda_1": 0.3}, {"lambda_1": 1.0, "random_state": 1}, {"gate": "always"}, {"n_per_class": 20}]
    together = fit_many([DGZ.without_generator(device="cuda", **one) for one in settings], *rows, test=data)
    for one, model in zip(settings, together, strict=True):
        alone = DGZ.without_generator(device="cuda", **one).fit(*rows)
        check(f"at once and alone, {one}: H", abs(gzsl_scores(model, data).h - gzsl_scores(alone, data).h), 0.01)
    with tempfile.TemporaryDirectory() as folder:
        together[0].save(Path(folder) / "model")
        loaded = DGZ.load(Path(folder) / "model")
        differing = (loaded.predict(data.x_test_unseen) != together[0].predict(data.x_test_unseen)).mean()
        check("saved on a GPU, loaded: other answers", float(differing), 0.0)
        gan = {"generator": WGANGP(n_epochs=6, hidden=(64, 32)), "n_epochs": 6, "device": "cuda"}
        whole = DGZ(**gan).fit(*rows, checkpoint_folder=Path(folder) / "whole", checkpoint_seconds=0)
        stop = {"at": 3}

        def break_off(row: Any) -> Any:
            stop["at"] -= 1
            if stop["at"] < 0:
                raise InterruptedError
            return {}

        broken = DGZ(**gan)
        fit = WGANGP.fit
        try:
            WGANGP.fit = lambda self, *args, **kw: fit(self, *args, **(kw | {"after_epoch": break_off}))
            broken.fit(*rows, checkpoint_folder=Path(folder) / "parts", checkpoint_seconds=0)
        except InterruptedError:
            pass
        finally:
            WGANGP.fit = fit
        kept = Path(folder) / "parts" / "generator.safetensors"
        check("broken off: no state kept", float(not kept.exists()), 0.0)
        resumed = DGZ(**gan).fit(*rows, checkpoint_folder=Path(folder) / "parts", checkpoint_seconds=0)
        losses = [
            torch.tensor([row["critic loss"] for row in m.history_ if "critic loss" in row]) for m in (whole, resumed)
        ]
        check("broken off and resumed: critic losses", apart(losses[1], losses[0]), 1e-2)


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one shape only")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        sys.exit("There is no CUDA device here.")
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for precision in TOLERANCE:
        check_classifier("CUB", precision, 2, "revised")
        check_critic("CUB", precision)
    if not quick:
        check_classifier("CUB", "float32", 2, "plain")
        check_classifier("CUB", "float32", 2, "incremental")
        check_classifier("AWA2", "float32", 1, "revised")
        check_classifier("SUN", "tf32", 6, "revised")
        check_critic("AWA2", "tf32")
    check_pairs()
    check_adaptive_penalty()
    check_contrast()
    check_capture()
    check_scores()
    check_models()
    failed = [name for name, value, most in found if not value <= most]
    print(f"{len(found)} checks, {len(failed)} failed" + (": " + "; ".join(failed) if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
