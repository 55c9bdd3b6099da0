"""The page, in a real browser: photos are dropped, classes compete, the balance moves, by mouse and by keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dgz import DGZ, GZSLData
from dgz.data import save_bundle
from dgz.experiments import run as train
from dgz.images import Backbone

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(data: GZSLData, backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose classes are known by words, with photos beside it."""
    from dgz.words import encode_classes

    folder = tmp_path_factory.mktemp("page")
    words = {name: f"the number {name}" for name in data.class_names}
    parts = {name: getattr(data, name) for name in data.__dataclass_fields__}
    spoken = GZSLData(**{**parts, "attributes": encode_classes(words, "minilm").table.vectors, "semantics": "minilm"})
    save_bundle(spoken, folder / "bundle")
    train(DGZ.without_generator(n_epochs=2, generator__n_epochs=2), spoken, folder / "run")
    backbone.save(folder / "run" / "backbone")
    for k, row in enumerate(data.x_test_seen[:2]):
        pixels = np.clip(row.reshape(8, 16) * 15.9375, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"photo {k}.png")
    (folder / "none.jpg").write_text("no photo")
    return folder


@pytest.fixture
def page(browser: Any, server: Any, folder: Path) -> Iterator[Any]:
    (folder / "run" / "served_classes.json").unlink(missing_ok=True)
    with server(folder / "run") as port:
        browser.get(f"http://127.0.0.1:{port}/")
        wait(browser, lambda: "100 classes" in text(browser, "#about"))
        yield browser
        browser.get("about:blank")  # asks the server for nothing more


def wait(page: Any, is_true: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 20, poll_frequency=0.05).until(lambda _: is_true())


def find(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def all_of(page: Any, selector: str) -> list[Any]:
    return page.find_elements("css selector", selector)


def text(page: Any, selector: str) -> str:
    return find(page, selector).text


def give(page: Any, *photos: Path) -> None:
    find(page, "#files").send_keys("\n".join(str(photo) for photo in photos))
    n = len(photos)
    wait(page, lambda: len(all_of(page, "#photos > li")) >= n and "…" not in text(page, "#status"))


def guesses(page: Any) -> list[str]:
    """The first photo's guesses: name, kind and share."""
    # In one go: the page may draw them anew at any moment.
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText.replaceAll('\\n', ' '))"
    found: list[str] = page.execute_script(script, "#photos > li:first-child .guesses li")
    return found


def test_photos_are_ranked_with_words_for_seen_and_unseen(page: Any, folder: Path) -> None:
    give(page, folder / "photo 0.png", folder / "photo 1.png")
    assert len(all_of(page, "#photos > li")) == 2
    found = guesses(page)
    assert len(found) == 5
    shares = [float(one.split()[-2]) for one in found]
    assert shares == sorted(shares, reverse=True)
    model = DGZ.load(folder / "run" / "model")
    kinds = dict(zip(model.classes_, np.where(model.seen_, "seen", "unseen"), strict=True))
    for one in found:
        name, kind = one.split()[0].removesuffix("seen").removesuffix("un"), one.split()[-3]
        assert kind.endswith(kinds[name])
    # Told apart by colour, too.
    colours = {one.text: one.value_of_css_property("color") for one in all_of(page, "#classes .kind")}
    assert set(colours) == {"seen", "unseen"}
    assert colours["seen"] != colours["unseen"]
    assert page.get_log("browser") == []


def test_a_file_that_is_no_photo_is_named_and_the_others_are_ranked(page: Any, folder: Path) -> None:
    give(page, folder / "photo 0.png", folder / "none.jpg")
    wait(page, lambda: all_of(page, "#photos .wrong"))
    assert "none.jpg is no photo" in text(page, "#photos .wrong")
    assert len(guesses(page)) == 5
    assert text(page, "#wrong") == ""


def test_a_new_class_competes_at_once_and_can_go_again(page: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    give(page, folder / "photo 0.png")
    before = guesses(page)
    top = before[0].split()[0].removesuffix("unseen").removesuffix("seen")
    # By keyboard alone: name, tab, description, tab, button.
    find(page, "#new-name").send_keys("my own", Keys.TAB)
    page.switch_to.active_element.send_keys(f"the number {top}", Keys.TAB)
    assert page.switch_to.active_element == find(page, "#new-button")
    page.switch_to.active_element.send_keys(Keys.ENTER)
    wait(page, lambda: "competes now" in text(page, "#new-status") and len(guesses(page)) == 5)
    wait(page, lambda: any(one.startswith("my own") for one in guesses(page)))
    assert "101 classes" in text(page, "#about")
    assert "1 added since" in text(page, "#about")
    # A second one of that name is refused, in a sentence.
    find(page, "#new-name").send_keys("my own")
    find(page, "#new-words").send_keys("x")
    find(page, "#new-button").click()
    wait(page, lambda: "There is a class called 'my own' already." in text(page, "#wrong"))
    find(page, "button[aria-label='Remove the class my own']").click()
    wait(page, lambda: "100 classes" in text(page, "#about") and guesses(page) == before)


def test_the_balance_moves_between_seen_and_unseen(page: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    give(page, folder / "photo 0.png")
    slider = find(page, "#balance")
    slider.send_keys(Keys.END)
    assert "100 % towards unseen" in text(page, "#balance-now")
    assert "unseen" in guesses(page)[0]
    slider.send_keys(Keys.HOME)
    assert "100 % towards seen" in text(page, "#balance-now")
    assert "unseen" not in guesses(page)[0]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_fits_a_phone_and_the_dark(page: Any, folder: Path, width: int, dark: bool) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    try:
        give(page, folder / "photo 0.png", folder / "photo 1.png")
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")) / 3
        assert (brightness < 60) == dark
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_key_is_asked_for_where_there_is_one(browser: Any, server: Any, folder: Path) -> None:
    with server(folder / "run", "--api-key", "a long enough key") as port:
        browser.get(f"http://127.0.0.1:{port}/")
        wait(browser, lambda: find(browser, "#gate").is_displayed())
        assert "wants its key" in text(browser, "#wrong")
        find(browser, "#key").send_keys("a long enough key")
        find(browser, "#key-form button").click()
        wait(browser, lambda: "100 classes" in text(browser, "#about"))
        assert not find(browser, "#gate").is_displayed()


def test_the_interfaces_page_lists_what_there_is(page: Any) -> None:
    page.get(page.current_url + "docs")
    wait(page, lambda: "POST /predict" in text(page, "main"))
    assert "seen_penalty" in text(page, "main")
    assert page.get_log("browser") == []
