"""The report page in a real headless Chromium."""

import pytest
from browser import browser, missing
from made_results import made_result, two_groups

from operations.report import write_report
from operations.results import parse_result

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

AR = [10.0, 10.4, 9.6]
TABLE = "document.querySelector('.sortable')"
COLUMN = f"[...{TABLE}.tBodies[0].rows].map(r => r.cells[%d].textContent)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "report.html"
    rates = {"ar": 1.0, "dflash": 0.8, "ddtree-8": 2.0, "ddtree-32": 10.5}
    document = made_result({arm: {1: [f * r for r in AR]} for arm, f in rates.items()})
    write_report([parse_result(document)], path)
    return path.as_uri()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("two") / "report.html"
    write_report([parse_result(document) for document in two_groups()], path)
    return path.as_uri()


@pytest.fixture(params=["one", "two"])
def page(request, chromium):
    chromium.console()
    chromium.open(request.getfixturevalue(request.param))
    return chromium


def column(page, name):
    head = page.run(f"[...{TABLE}.tHead.rows[0].cells].map(c => c.textContent.trim())")
    return head.index(name)


def click(page, name):
    button = f"{TABLE}.tHead.rows[0].cells[{column(page, name)}].querySelector('button')"
    page.run(f"{button}.click()")


def test_page_loads_without_a_console_message(page):
    assert page.run("document.readyState") == "complete"
    assert page.console() == []


def test_page_fetches_nothing(page):
    assert page.run("performance.getEntriesByType('resource').map(e => e.name)") == []


def test_console_of_a_broken_page_would_be_seen(chromium, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<script>undefinedFunction()</script>")
    chromium.open(broken.as_uri())
    assert any("undefinedFunction" in message for message in chromium.console())


def test_figures_are_drawn(page):
    sizes = page.run(
        "[...document.querySelectorAll('svg.figure')].map(s => s.getBoundingClientRect().width)"
    )
    assert len(sizes) >= 4
    assert min(sizes) > 200


def test_no_two_elements_share_an_id(page):
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_speed_sorts_by_number_up_then_down(chromium, one):
    chromium.open(one)
    click(chromium, "speed")
    cells = COLUMN % column(chromium, "speed")
    assert chromium.run(cells) == ["0.80x", "1.00x", "2.00x", "10.50x"]
    click(chromium, "speed")
    assert chromium.run(cells) == ["10.50x", "2.00x", "1.00x", "0.80x"]


def test_arms_sort_by_budget_not_by_letter(chromium, one):
    chromium.open(one)
    click(chromium, "arm")
    click(chromium, "arm")
    order = chromium.run(COLUMN % column(chromium, "arm"))
    assert order == ["ddtree-32", "ddtree-8", "dflash", "ar"]


def test_sorted_column_says_so_to_a_screen_reader(chromium, one):
    chromium.open(one)
    click(chromium, "verdict")
    states = chromium.run("[...document.querySelectorAll('th[aria-sort]')].map(h => h.ariaSort)")
    assert states == ["ascending"]


@pytest.mark.parametrize("width", [360, 390, 1280])
def test_page_does_not_scroll_sideways(page, width):
    page.look_like(width, 900, "light")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_dark_page_turns_the_figures_too(chromium, one):
    seen = {}
    for scheme in ("light", "dark"):
        chromium.look_like(1280, 900, scheme)
        chromium.open(one)
        seen[scheme] = [
            chromium.run("getComputedStyle(document.body).backgroundColor"),
            chromium.run("getComputedStyle(document.querySelector('svg.figure text')).fill"),
        ]
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, scheme):
    page.look_like(1280, 900, scheme)
    for place in ("body", ".tile span", "figcaption", ".data td", "td.best", ".data th button"):
        ratio = page.run(CONTRAST % place)
        assert ratio is None or ratio >= 4.5, (place, ratio)


# Contrast of WCAG 2: (lighter + 0.05) / (darker + 0.05) of the relative luminances.
CONTRAST = """((place) => {
  const element = document.querySelector(place);
  if (!element) return null;
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  let ground = element;
  while (rgb(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const both = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor]
    .map((text) => light(rgb(text))).sort((a, b) => b - a);
  return (both[0] + 0.05) / (both[1] + 0.05);
})('%s')"""
