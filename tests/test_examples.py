"""The walk-through of examples/, followed step by step as a newcomer would."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from dgz.peers import load_model
from dgz.records import read_record

PAGE = (ROOT / "examples" / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```shell\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.slow
def test_the_walk_through_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMMANDS[0].startswith("pip install")
    assert COMMANDS[-1].startswith("dgz serve")  # which would not end; tests/serve start it on the like
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("DGZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside this one
    programs = {"python": [sys.executable], "dgz": [sys.executable, "-m", "dgz"]}
    for command in COMMANDS[1:-1]:
        first, *rest = shlex.split(command)
        answer = subprocess.run([*programs[first], *rest], cwd=tmp_path, capture_output=True, text=True)
        assert answer.returncode == 0, f"{command}\n{answer.stdout}{answer.stderr}"
    badges = tmp_path / "badges"
    for name, least in (("run", 0.6), ("run-words", 0.4)):
        scores = read_record(badges / name).scores
        assert scores["acc_zsl"] > least, (name, scores)  # one in six by chance
        assert scores["h"] > 0.3
    more = load_model(badges / "more")
    assert (len(more.classes_), "yellow plain circle" in more.classes_) == (25, True)
    assert json.loads((badges / "run" / "backbone" / "backbone.json").read_text())["name"] == "lite0"
    assert (badges / "run" / "pictures.onnx").is_file()
    table = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    assert set(table) <= set((badges / "classes.csv").read_text().splitlines())
