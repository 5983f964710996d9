"""The page in a real browser: headless Chromium, driven through its own driver."""

import shutil
import tempfile

import pytest
from invented import made_up

from fedkeel.report.page import write_report

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
PATIENCE = 60  # seconds: a page of sixty methods is drawn while other tests have the cores
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER or not DRIVER, reason="chromium and chromedriver are not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        yield driver
        driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    def open_page(folders, width=1280, height=900):
        file = tmp_path / "report.html"
        write_report(folders, file)
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        browser.get(file.as_uri())
        ready = "return document.documentElement.dataset.ready === 'yes'"
        WebDriverWait(browser, PATIENCE).until(lambda page: page.execute_script(ready))
        return Page(browser)

    yield open_page
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


class Page:
    """What a reader does with the page."""

    def __init__(self, browser):
        self.browser = browser

    def count(self, selector):
        return self.browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector)

    def texts(self, selector):
        return self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())", selector
        )

    def click(self, selector):
        self.browser.execute_script("document.querySelector(arguments[0]).click()", selector)

    def lines(self, title):
        """How many methods are to be seen in a chart."""
        return self.shown(f"figure[data-title='{title}'] [data-group]:not(.band) > path")

    def shown(self, selector):
        return self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].filter((e) => e.getClientRects().length).length",
            selector,
        )

    def sideways(self):
        return self.browser.execute_script("return document.documentElement.scrollWidth - innerWidth")


def folders_of(root):
    return sorted(path.parent for path in root.rglob("experiment.toml"))


def test_everything_is_drawn(opened, real_runs):
    page = opened(folders_of(real_runs))
    titles = page.texts("figure h3")
    for title in (
        "Test accuracy",
        "Client drift ‖wᵢ − wₜ‖",
        "Distance between clients by band",
        "Labels of 20 clients",
        "Update cosines",
        "Bands over rounds",
        "Bands by layer, updates",
        "Loss surfaces in one frame",
        "CKA of clients by layer",
        "Accuracy on each client's own samples",
    ):
        assert title in titles
    assert page.shown("figure") == page.count("figure")
    assert page.count("figure .chart:empty") == 0
    assert page.lines("Test accuracy") == 2
    assert page.count("[d*=nan], [x*=nan], [y*=nan]") == 0
    assert len(page.texts("#summary tbody tr")) == 2
    assert len(page.texts("#numbers tbody tr")) == 2


def test_methods_can_be_switched_off_and_on(opened, real_runs):
    page = opened(folders_of(real_runs))
    chip, panels = "#chips .chip:nth-child(1)", "figure[data-title='Update cosines'] g[data-group]"
    assert (page.lines("Test accuracy"), page.shown(panels)) == (2, 2)
    page.click(chip)
    assert (page.lines("Test accuracy"), page.shown(panels)) == (1, 1)
    assert page.shown("#curves [data-group='g0-1']") > 0
    assert page.count("#summary tr.off") == 1
    page.click(chip)
    assert (page.lines("Test accuracy"), page.shown(panels)) == (2, 2)


def test_bands_can_be_hidden(opened, real_runs):
    page = opened(folders_of(real_runs))
    assert page.shown("figure[data-title='Test accuracy'] .band") == 2
    page.click("#bands")
    assert page.shown(".band") == 0


def test_pointing_at_a_chart_tells_its_numbers(opened, real_runs):
    from selenium.webdriver import ActionChains

    page = opened(folders_of(real_runs))
    chart = page.browser.find_element("css selector", "figure[data-title='Test accuracy'] svg")
    ActionChains(page.browser).move_to_element(chart).perform()
    (tip,) = page.texts("#tip")
    assert tip.startswith("round 2")
    assert "fedavg" in tip
    assert "fedfft" in tip
    assert "%" in tip


def test_scales_can_be_logarithmic_and_count_bytes(opened, tmp_path):
    page = opened([made_up(tmp_path / "a", level=0.9, tracked=False)])

    def drawn():
        path, texts = "figure[data-title='Training loss'] [data-group] path", "figure[data-title='Training loss'] text"
        line = page.browser.find_element("css selector", path).get_attribute("d").split()
        return float(line[2]), float(line[5]), page.texts(texts)

    high, second, words = drawn()
    page.click("#log")
    assert {"0.05", "0.1", "0.2", "0.5"} <= {*drawn()[2]}  # ticks at round numbers
    assert drawn()[1] < second - 20  # 1 / 2 of 1, 1 / 2 … 1 / 20 lies higher on a logarithmic scale
    page.browser.execute_script(
        "const s = document.getElementById('axis'); s.value = 'bytes'; s.dispatchEvent(new Event('change'))"
    )
    assert {"sent both ways (kB)", "0", "10", "20", "30"} <= {*drawn()[2]}
    page.browser.execute_script("document.getElementById('axis').value = 'rounds'")
    page.click("#log")
    assert drawn() == (pytest.approx(high, abs=0.01), pytest.approx(second, abs=0.01), words)


def test_the_table_is_sorted_by_a_click(opened, tmp_path):
    levels = {"fedavg": 0.6, "fedsam": 0.9, "scaffold": 0.7}
    page = opened([made_up(tmp_path / name, method=name, level=level) for name, level in levels.items()])
    page.click("#summary thead th:nth-child(3) button")
    assert page.texts("#summary tbody td:first-child") == ["fedsam", "scaffold", "fedavg"]
    page.click("#summary thead th:nth-child(3) button")
    assert page.texts("#summary tbody td:first-child") == ["fedavg", "scaffold", "fedsam"]


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_no_width_scrolls_sideways(opened, real_runs, width):
    assert opened(folders_of(real_runs), width=width).sideways() <= 0


def test_one_plain_run_has_no_empty_parts(opened, tmp_path):
    page = opened([made_up(tmp_path / "only", tracked=False)])
    assert page.texts("h1") == ["fedavg on digits"]
    assert page.shown("#spectrum, #landscape, #numbers, #kept") == 0
    assert page.shown("#curves, #drift, #clients, #methods, #reproduce") == 5
    assert page.shown("#bands") == 0


def test_settings_are_shown_one_at_a_time(opened, tmp_path):
    page = opened([made_up(tmp_path / str(size), batch_size=8, model=size) for size in ("mlp", "logistic")])
    assert page.shown("#summary table") == 1
    page.browser.execute_script(
        "const s = document.getElementById('setting'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    assert page.shown("#summary table") == 1
    assert page.shown("figure[data-title='Test accuracy']") == 1


def test_sixty_methods(opened, tmp_path):
    """More than can be told apart: the best are on, and all of them can be."""
    rates = [0.01 * n for n in range(1, 61)]
    page = opened(
        [made_up(tmp_path / f"{rate}", lr=rate, level=0.2 + rate, tracked=False) for rate in rates], width=390
    )
    assert page.count("#chips .chip") == 60
    assert page.lines("Test accuracy") == 8
    assert page.shown("#curves [data-group='g0-59']") > 0  # the best
    assert page.sideways() <= 0
    best, every = "#chips .plain:nth-child(1)", "#chips .plain:nth-child(2)"
    assert page.texts("#chips .plain") == ["best 8 of 60", "all", "none"]
    page.click(every)
    assert page.lines("Test accuracy") == 60
    page.click(best)
    assert page.lines("Test accuracy") == 8


def test_what_methods_adapt_is_drawn_when_a_run_has_it(opened, tmp_path):
    radius = {"radius/mean": 0.02, "radius/least": 0.01, "radius/most": 0.05}
    marks = {"critical/conv1.weight": 1.0, "critical/a.very.long.name.of.a.layer.weight": 0.25}
    page = opened(
        [
            made_up(tmp_path / "a", method="fedwmsam", extra={"alpha": 0.1}),
            made_up(tmp_path / "b", method="fedscam", extra=radius),
            made_up(tmp_path / "c", method="fedfsa", extra=marks),
        ]
    )
    titles = page.texts("#kept figure h3")
    weight, critical = "Weight α of the fresh gradient", "Critical layers"
    assert titles == [weight, "Smallest radius ρ", "Mean radius ρ", "Largest radius ρ", critical]
    assert page.lines(weight) == page.lines("Largest radius ρ") == 1
    labels = page.texts(f"figure[data-title='{critical}'] text")
    assert "conv1.weight" in labels
    assert any(label.startswith("…") and label.endswith("layer.weight") for label in labels)


def test_it_prints(opened, real_runs):
    page = opened(folders_of(real_runs))
    import base64

    pdf = base64.b64decode(page.browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert page.count("#reproduce details[open]") == 0  # as it was on the screen
