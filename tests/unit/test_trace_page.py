"""`python -m zipage_sglang show`: the page in a real browser, the picture, and what is said when something is wrong."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import chromium
from trace_cases import BLOCK, HEADS, KEEP, LAYERS, random_trace

import zipage_sglang.trace
from zipage_sglang.__main__ import main
from zipage_sglang.trace.file import SUFFIX
from zipage_sglang.trace.show import run

START = 5
HOSTILE = "</script><script>document.title='taken over'</script><b>&"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    """(browser with the page open, trace, kept, importance)."""
    folder = tmp_path_factory.mktemp("trace")
    trace, kept, importance = random_trace(START, rid=HOSTILE)
    trace.save(folder / ("t" + SUFFIX))
    assert run([str(folder / ("t" + SUFFIX))], None, None) == 0
    open_page(browser, folder / "t.html")
    yield browser, trace, kept, importance
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def open_page(browser, path):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(path.as_uri())
    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return document.body.dataset.ready") == "true")


def choose(browser, **values):
    """Set the slider or a filter as a user does: by keys, and by picking an option."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    for name, value in values.items():
        element = browser.find_element("id", name)
        if name == "step":
            element.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * value)
            assert element.get_attribute("value") == str(value)
        else:
            Select(element).select_by_visible_text(str(value))


def tip(browser, position):
    """What hovering over the token shows."""
    from selenium.webdriver.common.action_chains import ActionChains

    cell = browser.find_element("css selector", f'[data-p="{position}"]')
    ActionChains(browser).move_to_element(cell).perform()
    box = browser.find_element("id", "tip")
    assert box.is_displayed()
    return box.text


def lightness(browser):
    """Of every cell's background; 100 is held by none, 55 by all, None not there yet."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#tokens .t')].map(c => c.style.backgroundColor)")


def test_a_cell_for_every_token_in_order(shown):
    browser, trace, _, _ = shown
    cells = browser.find_elements("css selector", "#tokens .t")
    assert [cell.text for cell in cells] == [str(i) for i in trace.token_ids]
    assert browser.title == HOSTILE and browser.find_element("id", "title").text == HOSTILE


@pytest.mark.parametrize("n", [4, 1, 3])
def test_hover_says_position_age_holders_and_score(shown, n):
    browser, trace, kept, importance = shown
    choose(browser, step=n, layer="all", head="all")
    true_len = START + KEEP + n * BLOCK
    for position in range(START, true_len, 3):
        text = tip(browser, position)
        holders = [(l, h) for l in range(LAYERS) for h in range(HEADS) if position in kept[n - 1][l][h]]
        assert f"position {position}, token {100 + position}" in text
        assert f"age {true_len - 1 - position}" in text.splitlines()
        assert f"held by {len(holders)} of {LAYERS * HEADS}" in text
        score = re.search(r"score (\S+)", text)
        assert bool(score) == bool(holders)
        if score:
            mean = np.mean([importance[n - 1][l, h, position] for l, h in holders])
            assert float(score[1]) == pytest.approx(mean, rel=1e-2)
    assert "not there yet" in tip(browser, len(trace.token_ids) - 1)
    assert "prompt" in tip(browser, 2) and "never evicted" in tip(browser, 2)


def test_the_slider_and_the_filters_change_the_heat_map(shown):
    browser, trace, kept, _ = shown
    choose(browser, layer="all", head="all", step=0)
    everything = lightness(browser)
    assert len(set(everything[: START + KEEP + BLOCK])) == 1, "before the first compression all are held"
    for layer, head, n in ((1, 0, 2), (2, 1, 4)):
        choose(browser, layer=layer, head=head, step=n)
        true_len = START + KEEP + n * BLOCK
        held = [p for p, colour in enumerate(lightness(browser)) if colour == everything[0]]
        assert held == [*range(START), *kept[n - 1][layer][head]]
        assert [bool(colour) for colour in lightness(browser)] == [p < true_len for p in range(len(trace.token_ids))]
        assert f"held by {int(held[-1] in held)} of 1" in tip(browser, held[-1])
        assert browser.find_element("id", "where").text == f"{n} of 4, at {true_len} tokens"


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'zipage-sglang[bench]')")
    from matplotlib import image

    path = tmp_path / ("t" + SUFFIX)
    random_trace()[0].save(path)
    assert run([str(path)], [str(tmp_path / "t.png")], None) == 0
    pixels = image.imread(tmp_path / "t.png")
    assert pixels.shape[0] > 400 and len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


def test_errors_are_one_line(tmp_path, capsys, monkeypatch):
    path = tmp_path / ("t" + SUFFIX)
    random_trace()[0].save(path)
    for arguments, words in (
        ([["none.npz"], None, None], "none.npz: not a trace"),
        ([[str(path)], ["x.pdf"], None], "x.pdf: write a page (.html) or a picture (.png)"),
        ([[str(path)], None, str(tmp_path / "no-model")], "no-model"),
    ):
        assert run(*arguments) == 1 and words in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.delitem(sys.modules, "zipage_sglang.trace.picture", raising=False)
    monkeypatch.delattr(zipage_sglang.trace, "picture", raising=False)
    assert run([str(path)], [str(tmp_path / "t.png")], None) == 1
    assert "pip install 'zipage-sglang[bench]'" in capsys.readouterr().err


def test_command_line_and_tokenizer(tmp_path, capsys):
    model = Path(__file__).parents[2] / "benchmarks" / "reasoner" / "model"
    trace = random_trace()[0]
    path = tmp_path / ("t" + SUFFIX)
    trace.save(path)
    assert main(["show", str(path), "-o", str(tmp_path / "page.html"), "--tokenizer", str(model)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    from transformers import AutoTokenizer

    text = AutoTokenizer.from_pretrained(str(model)).decode([int(trace.token_ids[-1])])
    assert text and f'"{text}"' in (tmp_path / "page.html").read_text()
