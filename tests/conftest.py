import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fuzz_harness

# Tests never access the hub.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if fuzz_harness.TIMES > 1 or fuzz_harness.ONLY:
        terminalreporter.section("fuzz")
        for line in fuzz_harness.summary():
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a browser (Debian's Chromium), for tests of HTML pages."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs Chromium (apt install chromium)")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()
