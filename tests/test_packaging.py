"""What a stranger installs: the wheel, in a fresh environment, used from another folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT


def run(*command: object, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    answer = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=environment, timeout=900
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


@pytest.mark.slow
def test_the_wheel_works_in_a_fresh_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("dgz-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("dgz/")}
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "dgz").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert packed == source

    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    programs = tmp_path / "env" / "bin"
    run(programs / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run(programs / "dgz", "--version", cwd=elsewhere).startswith("dgz 0.")
    assert "Report: runs/demo/index.html" in run(programs / "dgz", "demo", cwd=elsewhere)
    assert (elsewhere / "runs" / "demo" / "index.html").stat().st_size > 10_000
    missing = run(
        programs / "python", "-c",
        "import importlib.util as u; print(*[m for m in ('pandas', 'pyarrow', 'torchvision', 'pytest') if u.find_spec(m)])",
        cwd=elsewhere,
    )  # fmt: skip
    assert missing.split() == []
