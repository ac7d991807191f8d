"""The how-to page on notebooks: its code blocks run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.ranks
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).resolve().parents[2] / "docs/how-to/notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "notebook.md", "exec"), names)
    assert names["run"].status == "completed"
    assert names["slowest"].height == 5
    assert names["memory_bytes"] > 0
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert list((tmp_path / "figures").glob("*.png"))
