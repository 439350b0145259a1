"""Pages of schedules show the kernels that the schedules make."""

from __future__ import annotations

import kernel_pages
import pytest


@pytest.mark.parametrize("shown", kernel_pages.KERNELS, ids=lambda shown: shown.folder)
def test_a_page_shows_its_kernel(shown: kernel_pages.Shown) -> None:
    for path, text in kernel_pages.renewed(shown).items():
        assert path.read_text() == text, "python docs/tools/kernel_pages.py --write"


def test_a_page_for_each_folder_with_schedules() -> None:
    shown = {kernel_pages.SCHEDULES / one.folder for one in kernel_pages.KERNELS}
    families = {path.parent for path in kernel_pages.SCHEDULES.glob("*/*/kernel.py")}
    assert families | {kernel_pages.SCHEDULES / "backward"} == shown
