"""Every page in a real browser: hostile names do nothing, nothing is asked for, and no other script or style runs."""

import json

import pytest

from kit.pages import HOSTILE_TEXTS, PAGES
from unpose.files import write_text

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", PAGES)
def test_hostile_names_do_nothing_and_nothing_is_asked_for(browser, tmp_path, name):
    browser.open(write_text(tmp_path / "plain.html", PAGES[name]("plain")))
    scripts = len(browser.all("script"))
    for text in HOSTILE_TEXTS[:5]:
        browser.open(write_text(tmp_path / "page.html", PAGES[name](text)))
        assert browser.driver.title != "hit"
        assert len(browser.all("script")) == scripts
        assert not browser.all("main iframe, svg[onload], [onerror], [onfocus]")
        events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
        requests = [event["params"]["request"] for event in events if event["method"] == "Network.requestWillBeSent"]
        assert {request["url"].split(":")[0] for request in requests} <= {"file", "blob", "data"}
        assert browser.driver.get_log("browser") == []


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_stops_a_script_and_a_style_that_get_in(browser, tmp_path, name):
    browser.open(write_text(tmp_path / "page.html", PAGES[name]("plain")))
    browser.js(
        "const s = document.createElement('style'); s.textContent = 'h1 { display: none }'; document.head.append(s);"
        "new Image().src = 'http://127.0.0.1:9/x.png';"
        "document.querySelector('h1').setAttribute('style', 'display:none')"
    )
    assert browser.one("h1").is_displayed()
    refused = [
        entry["message"] for entry in browser.until(lambda: browser.driver.get_log("browser"), "refusals of the policy")
    ]
    assert all("Content Security Policy" in message for message in refused)
    assert browser.js("try { document.body.innerHTML = '<b>'; return 'in' } catch (e) { return e.name }") == "TypeError"
    got_in = "const s = document.createElement('script'); s.text = 'window.hit = 1'; document.head.append(s);"
    assert browser.js(f"try {{ {got_in} }} catch {{}} return window.hit ?? 'stopped'") == "stopped"
