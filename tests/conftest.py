"""What all tests share: where real data is, and that nothing is skipped silently where it must not be."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: threads of their own would only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for the processes tests start

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from dgz.data import GZSLData

# The same cases every time, so that a check that passed keeps passing; --hypothesis-profile=explore draws new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("DGZ_DATA", ROOT.parent / "shared" / "data"))


def _missing(need: str) -> str | None:
    """Why a test with the marker ``need`` cannot run here; None where it can."""
    parts = (DATA / "CUB" / "res50.mat", DATA / "CUB-photos" / "images")
    if need == "data" and not all(part.exists() for part in parts):
        return f"no real data at {DATA} (set DGZ_DATA)"
    if need == "browser" and not (shutil.which("chromium") and shutil.which("chromedriver")):
        return "no chromium or chromedriver (see apt.txt)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("DGZ_REQUIRE", "").split(",")
    for need in ("data", "browser"):
        reason = _missing(need) if item.get_closest_marker(need) else None
        if reason and need in required:
            pytest.fail(f"required by DGZ_REQUIRE: {reason}")
        if reason:
            pytest.skip(reason)


@pytest.fixture(scope="session")
def data_root() -> Path:
    return DATA


@pytest.fixture
def browser(chromium: Any) -> Any:
    """A browser without a window, for tests marked so; its log has nothing of earlier tests in it."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    return chromium


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The process of it, which a file's tests share."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (
            "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
            "disable-component-update", "disable-sync", "disable-dev-shm-usage", f"user-data-dir={profile}",
        ):  # fmt: skip
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
        yield driver
        driver.quit()


def damage(path: Path, draw: Any, within: int | None = None) -> None:
    """Cut a file short or flip one of its bytes (of the first ``within``), as hypothesis' ``draw`` decides."""
    content = bytearray(path.read_bytes())
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content) - 1)) :]
    else:
        content[draw(st.integers(0, min(len(content), within or len(content)) - 1))] ^= draw(st.integers(1, 255))
    path.write_bytes(content)


def tiny_parts(n_seen: int = 4, n_unseen: int = 2, per_class: int = 6, d_x: int = 5, d_a: int = 3) -> dict[str, object]:
    """Arguments of a small valid GZSLData; tests break one of them at a time."""
    rng = np.random.default_rng(0)
    n_classes = n_seen + n_unseen
    y = {
        "train": np.repeat(np.arange(n_seen), per_class),
        "test_seen": np.repeat(np.arange(n_seen), 2),
        "test_unseen": np.repeat(np.arange(n_seen, n_classes), 3),
    }
    parts: dict[str, object] = {f"y_{split}": labels for split, labels in y.items()}
    parts |= {f"x_{split}": rng.random((len(labels), d_x), dtype=np.float32) for split, labels in y.items()}
    return parts | {"attributes": rng.random((n_classes, d_a)), "class_names": [f"c{i}" for i in range(n_classes)]}


@pytest.fixture
def tiny() -> GZSLData:
    return GZSLData(**tiny_parts())
