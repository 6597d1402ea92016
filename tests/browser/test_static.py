"""The page without JavaScript, in a real browser."""

from typing import Any

from random_models import TEXT, checkpoint, excerpt

from minigpt.viewer.page import build_page


def test_without_javascript_the_page_can_be_read(opened: Any) -> None:
    loaded = checkpoint(layers=2, heads=3, width=48, name="<i>mine")
    shown = opened(build_page(loaded, excerpt(loaded)), wait="noscript", java_script_enabled=False)
    assert shown.tab.inner_text("h1") == "<i>mine, step 100"
    assert shown.tab.inner_text("pre").strip() == TEXT.strip()
    assert len(shown.tab.inner_text("mark")) == 1
    assert "with a probability of" in shown.tab.inner_text("main")
    box = shown.tab.locator("img").bounding_box()
    assert box is not None
    assert box["width"] > box["height"] > 100
    shown.assert_quiet()
