"""The shape of the house: who may import whom, what must stay light, and what must never appear."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

SOURCE = ROOT / "src" / "dgz"
# Left to right, as data flows; a room imports only from rooms to its left. docs/architecture.md explains it.
ROOMS = [
    "errors",
    "files",
    "progress",
    "engines",
    "data",
    "words",
    "nets",
    "losses",
    "metrics",
    "kernels",
    "training",
    "images",
    "generators",
    "instances",
    "classifier",
    "task",
    "estimator",
    "trained",
    "frame",
    "many",
    "composed",
    "settings",
    "model",
    "peers",
    "observations",
    "records",
    "tracking",
    "paper",
    "experiments",
    "tuning",
    "reproduce",
    "report",
    "export",
    "serve",
    "bench",
    "console",
    "cli_data",
    "cli_train",
    "cli",
]
FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem not in ("__init__", "__main__")
)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            modules |= {node.module or ""}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module.split(".")[1] for module in modules if module.startswith("dgz.")}


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in FILES} == set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_data_only_moves_to_the_right(path: Path) -> None:
    allowed = set(ROOMS[: ROOMS.index(room_of(path)) + 1])
    assert imported_rooms(path) <= allowed


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("dgz.cli", ("torch", "sklearn", "scipy", "matplotlib", "h5py")),
        ("dgz.data", ("torch", "matplotlib")),
        ("dgz.words", ("torch", "tokenizers", "transformers", "sentence_transformers")),
        ("dgz.data, dgz.cli, dgz.model", ("PIL.JpegImagePlugin", "onnxruntime", "onnx", "dgz.images")),
        ("dgz.images", ("torch", "onnx", "transformers", "timm", "torchvision")),
        ("dgz.records", ("torch", "sklearn")),
        ("dgz.paper", ("torch", "sklearn", "scipy")),
        ("dgz.report", ("torch", "sklearn")),
        ("dgz.classifier, dgz.generators, dgz.model", ("triton", "dgz.kernels")),
    ],
)
def test_light_rooms_import_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    script = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    assert answer.stdout.split() == []


def test_the_public_names_are_there_and_typed() -> None:
    import dgz

    assert {"DGZ", "GZSLData", "load_xlsa", "load_bundle", "load_numbers", "gzsl_scores"} <= set(dgz.__all__)
    assert dir(dgz) == sorted(dgz.__all__)
    for name in dgz.__all__:
        assert getattr(dgz, name) is not None
    typed = ast.parse((SOURCE / "__init__.py").read_text())
    declared = {alias.asname for node in ast.walk(typed) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert declared - {None} == set(dgz.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dgz.nothing  # noqa: B018
    assert (SOURCE / "py.typed").is_file()


def test_no_source_file_uses_pickle_or_torchvision() -> None:
    for path in FILES:
        text = path.read_text()
        assert not re.search(
            r"^\s*(?:import|from)\s+(?:c?pickle|joblib|torchvision|dill|shelve)\b", text, re.MULTILINE
        ), path
        assert "weights_only=False" not in text
        assert "allow_pickle=True" not in text


def test_every_module_says_what_it_is_for() -> None:
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
