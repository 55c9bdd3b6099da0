"""The README keeps its promises: its blocks run, its commands exist, its file map is complete."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from dgz import DGZ
from dgz.report import update_readme

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quick_start_is_short_and_runs(tmp_path: Path) -> None:
    (script,) = blocks("python")
    assert len(script.strip().splitlines()) <= 15
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"U \d+\.\d  S \d+\.\d  H \d+\.\d  T1 \d+\.\d", answer.stdout)


def test_the_way_to_ones_own_data_works_as_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = ["zebra", "horse", "okapi"]
    np.savez(tmp_path / "photos.npz", X=rng.random((60, 8)), y=np.repeat(names[:2], 30))
    (table,) = blocks("csv")
    (tmp_path / "classes.csv").write_text(table)
    (session,) = blocks("console")
    commands = [line.removeprefix("$ ") for line in session.splitlines() if line.startswith("$ ")]
    (tmp_path / "new.csv").write_text("name,stripes,hooves,long_neck\ngiraffe,0,1,1\n")
    verbs = ["data import", "data check", "train", "predict", "add-class"]
    for command, verb in zip(commands, verbs, strict=True):
        assert command.startswith(f"dgz {verb} ")
    for command in commands:
        answer = subprocess.run(
            [sys.executable, "-m", *command.split()], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert answer.returncode == 0, answer.stderr + answer.stdout
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 61
    assert DGZ.load(tmp_path / "more-animals").classes_.tolist() == ["giraffe", "horse", "okapi", "zebra"]


def test_the_two_commands_are_makes_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "make demo" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_file_map_names_every_file_and_no_other() -> None:
    (listing,) = blocks("text")
    named = set()
    folders: list[str] = []
    for line in listing.splitlines():
        name, _, purpose = line.strip().partition("  ")
        assert purpose.strip(), f"no word on {name}"
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[:depth], name]
        if not name.endswith("/"):
            named |= {str(path.relative_to(ROOT)) for path in ROOT.glob("".join(folders))} or {name}
    kinds = (".py", ".j2", ".js", ".toml", ".html")
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "src" / "dgz").rglob("*") if path.suffix in kinds}
    assert named == source


def test_the_table_of_results_is_made_of_the_records(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    copy.write_text(README)
    assert not update_readme(copy, ROOT / "results"), "run: dgz report results --readme README.md"
    copy.write_text(README.replace("| DGZ | CUB", "| Another | CUB"))
    assert update_readme(copy, ROOT / "results")
    assert copy.read_text() == README


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"])
)
def test_links_between_documents_lead_somewhere(page: str) -> None:
    for document in ("README.md", page):
        path = ROOT / document
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / link).exists(), f"{document} links to {link}"
    assert page in README
