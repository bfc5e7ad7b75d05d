"""Screenshots for the README: the shop page, the model of the strategies, the lab after a run, and the run's report. Made
only on request, so that a run of the tests leaves the checkout as it is. usage: screenshots.py FOLDER"""

import os
import re
import sys

from playwright.sync_api import expect, sync_playwright

from support import ADMIN_TOKEN, BASE, FLAGS, Sale


def page_of(browser, width, height, **options):
    context = browser.new_context(viewport={"width": width, "height": height}, base_url=BASE, locale="en-US", reduced_motion="reduce", **options)
    return context.new_page()


def shop(browser, folder):
    page = page_of(browser, 1200, 600)
    # In the seed's first shop.
    page.goto(Sale(stock=100, title="100 元秒杀代金券", at=(1, 1)).path)
    page.get_by_role("button", name="Use a random number").click()
    page.locator(".sign-in button[type=submit]").click()
    expect(page.locator("input[name=code]")).to_have_value(re.compile(r"^\d{6}$"))
    page.locator(".sign-in button[type=submit]").click()
    page.locator("#sign-out").wait_for()
    page.locator("#buy").click()
    expect(page.locator("#orders .badge")).to_have_text("unpaid")
    expect(page.locator("#stock")).to_have_text("99")
    page.screenshot(path=os.path.join(folder, "shop.png"))


def learn(browser, folder):
    page = page_of(browser, 1200, 1240)
    page.goto("/learn#process-lock-2")
    page.locator("[data-guess=second-order]").click()
    for name in "ABABABA":
        page.locator(f"[data-move={name}]").click()
    page.locator(".board-title").evaluate("(title) => scrollTo(0, document.getElementById('level').offsetTop - 12)")
    page.screenshot(path=os.path.join(folder, "learn.png"))


def lab(browser, folder):
    page = page_of(browser, 1200, 1400)
    page.goto(f"/lab#token={ADMIN_TOKEN}")
    page.locator("#break").click()
    page.locator("#run-section[data-state=done]").wait_for(timeout=90_000)
    # The picture shows the people, the verdicts, and the explanation of the broken one.
    page.evaluate("for (const part of document.querySelectorAll('.compare, .faults, .tiles, .replies')) part.style.display = 'none'")
    page.locator("#run-section").evaluate("(section) => scrollTo(0, section.offsetTop - 12)")
    bottom = page.locator(".story").first.evaluate("(story) => story.getBoundingClientRect().bottom")
    page.screenshot(path=os.path.join(folder, "lab.png"), clip={"x": 0, "y": 0, "width": 1200, "height": min(1400, bottom + 16)})
    with page.expect_download() as report:
        page.locator("#report").click()
    file = os.path.join(os.environ["BROWSER_OUT"], "report.html")
    report.value.save_as(file)
    page = page_of(browser, 1200, 1100)
    page.goto(f"file://{file}")
    expect(page.locator(".story").first).to_be_visible()
    page.screenshot(path=os.path.join(folder, "report.png"))


def main(folder):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=FLAGS)
        shop(browser, folder)
        learn(browser, folder)
        lab(browser, folder)
        browser.close()
    for name in ("shop.png", "learn.png", "lab.png", "report.png"):
        size = os.path.getsize(os.path.join(folder, name))
        assert size < 300_000, f"{name} has {size} bytes"
        print(f"docs/{name}: {size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1])
