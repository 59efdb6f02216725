"""A real browser on real pages: chromium driven by selenium, and results whose right answer is known."""

import io
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kit.images import things
from unpose.data import posed
from unpose.files import write_text
from unpose.images import warp
from unpose.report import Rejected, Reproduction
from unpose.report import page as of_cluster

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--force-device-scale-factor=1", "--disable-extensions", "--disable-background-networking", "--no-first-run",
         "--disable-component-update", "--disable-sync", "--window-size=1200,900", "--lang=en-GB"]  # fmt: skip


LIMIT_SECONDS = 600
"""Ends a hang: longer than a page takes on a machine that is busy with other tests."""


@dataclass
class Browser:
    """A browser with what the tests need. Pages open with reduced motion, so that nothing needs to be waited for."""

    driver: object
    downloads: Path

    def open(self, path, *, motion="reduce", theme="light", width=1200, height=900, keep=False):
        """Open a page; what earlier tests left in the browser is removed unless ``keep``."""
        features = {"prefers-reduced-motion": motion, "prefers-color-scheme": theme}
        emulated = [{"name": name, "value": value} for name, value in features.items()]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": emulated})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        if not keep and self.driver.current_url.startswith("file:"):
            self.js("window.addEventListener('pagehide', () => localStorage.clear())")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(path.as_uri())
        ready = "return !document.scripts.length || document.documentElement.dataset.ready === ''"  # one has no script
        self.until(lambda: self.js(ready), f"{path.name} to be ready")
        return self

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.until(lambda: self.all(selector), f"an element {selector}")[0]

    def click(self, target):
        """Press an element, given or by its selector, in the middle of the window, clear of the bar on top."""
        element = self.one(target) if isinstance(target, str) else target
        self.js("arguments[0].scrollIntoView({ block: 'center' })", element)
        element.click()

    def press(self, *keys, holding=None):
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver, duration=0)
        chain = chain.key_down(holding).send_keys(*keys).key_up(holding) if holding else chain.send_keys(*keys)
        chain.perform()

    def screen(self):
        """What the window shows, in grey: (h, w)."""
        return np.asarray(Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("L"), dtype=float)

    def seen(self, selector):
        """What the window shows of each element."""
        boxes = self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect())"
            ".map(b => [b.top, b.bottom, b.left, b.right])",
            selector,
        )
        screen = self.screen()
        return [screen[round(top) : round(bottom), round(left) : round(right)] for top, bottom, left, right in boxes]

    def until(self, condition, what):
        """Wait for a condition; ``what`` says in an error what was waited for."""
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, LIMIT_SECONDS, 0.02).until(
            lambda _: condition(), f"waited {LIMIT_SECONDS} s for {what}"
        )

    def group(self, number):
        return self.one(f'.card[data-group="{number}"]')

    def within(self, number, selector):
        return self.group(number).find_element("css selector", selector)

    def order(self):
        return [int(card.get_attribute("data-group")) for card in self.all(".card")]

    def download(self, button):
        for old in self.downloads.iterdir():
            old.unlink()
        self.click(button)
        finished = lambda: [  # noqa: E731
            # The browser keeps the name by an empty file until it moves the whole download there.
            path for path in self.downloads.iterdir() if path.suffix in (".csv", ".json") and path.stat().st_size
        ]  # fmt: skip
        return self.until(finished, f"the download of {button}")[0].read_bytes().decode("utf-8")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser to test with")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_path = shutil.which("chromedriver")
    if not binary or not driver_path:
        pytest.skip("chromium and chromedriver are not installed: no browser to test with")
    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver_path))
    driver.set_page_load_timeout(LIMIT_SECONDS)
    driver.set_script_timeout(LIMIT_SECONDS)
    yield Browser(driver, downloads)
    driver.quit()


def drawings():
    """Three shapes without symmetry, small enough to turn freely on their canvas: (3, 37, 43)."""
    return np.pad(things(37, 5)[[0, 2, 4]], ((0, 0), (0, 0), (3, 3)))


def shapes(sizes=(17, 11, 5), outsiders=2, seed=0):
    """Posed and mirrored copies of the drawings, clustered without error, with the poses that bring them back."""
    labels = np.append(np.repeat(np.arange(3), sizes), np.full(outsiders, -1))
    rng = np.random.default_rng(seed)
    originals = drawings()[np.where(labels < 0, 0, labels)]
    copies = posed(originals, "se2+mirror", random_state=seed, max_shift=2.0)
    back = np.linalg.inv(copies.poses)
    aligned = warp(torch.as_tensor(copies.images), torch.as_tensor(back).to(torch.as_tensor(copies.images))).numpy()
    confidences = np.round(0.5 + 0.5 * rng.random(len(labels)), 3)
    clusters = []
    for c, symmetry in enumerate(("", "mirror", "")):
        mine = np.flatnonzero(labels == c)
        error = aligned[mine].std(0) / np.sqrt(len(mine))
        clusters.append(of_cluster.Cluster(aligned[mine].mean(0), (0.7, 0.9, 0.8)[c], int(mine[0]), error, symmetry))
    weights = (labels[:, None] == labels[None]) + 0.1 * rng.random((len(labels), len(labels)))
    return of_cluster.Results(
        question="Which shapes are here?",
        images=copies.images,
        names=[f"shapes/no {i}.png" for i in range(len(labels))],
        labels=labels,
        confidences=confidences,
        poses=back,
        layout=np.stack([labels + 0.3 * rng.random(len(labels)), rng.random(len(labels))], axis=1),
        clusters=clusters,
        reproduction=Reproduction("unpose cluster shapes/ -o run --seed 3", 3, "9.8.7", {"group": "se2+mirror"}),
        attention=weights,
        rounds=[
            of_cluster.Round(copies.images[:7]),
            of_cluster.Round(copies.images[:7] * 0.5, "half as bright"),
            of_cluster.Round(copies.images[:7] * 0),
        ],
        rejected=[Rejected("shapes/broken.png", "truncated")],
        stability=0.91,
        distances=np.where(labels < 0, np.nan, rng.random(len(labels))),
    )


@pytest.fixture(scope="session")
def found():
    return shapes()


@pytest.fixture(scope="session")
def page(found, tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("page") / "report.html", of_cluster.render(found))


@pytest.fixture
def page_of(found, tmp_path):
    """A page of the same results with some of them changed."""
    return lambda limits=None, **changes: write_text(
        tmp_path / "report.html", of_cluster.render(replace(found, **changes), limits=limits)
    )
