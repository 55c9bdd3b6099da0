"""Nothing is skipped silently where it must not be: DGZ_REQUIRE turns a skip into a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

TESTS = {
    "data": "tests/data/test_xlsa.py::test_the_clean_apy_file_is_not_accused",
    "browser": "tests/report/test_page.py::test_a_browser_shows_table_and_figures_without_complaint",
}


@pytest.mark.parametrize("need", TESTS)
@pytest.mark.parametrize(("required", "outcome"), [("", "skipped"), ("data,browser", "error")])
def test_a_missing_need_is_a_skip_or_where_required_a_failure(
    need: str, required: str, outcome: str, tmp_path: Path
) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS[need]],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "DGZ_DATA": str(tmp_path), "PATH": str(tmp_path), "DGZ_REQUIRE": required},
    )  # fmt: skip
    assert (answer.returncode == 0) == (outcome == "skipped"), answer.stdout
    assert outcome in answer.stdout.splitlines()[-1]
    assert "passed" not in answer.stdout.splitlines()[-1]
