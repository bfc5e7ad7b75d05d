"""axe on every page: on a desktop in the light scheme and in English, on a phone in the dark one and in Chinese."""

import os
import re
import unittest
from pathlib import Path

from playwright.sync_api import expect

from support import BASE, PHONE_SCREEN, BrowserTest, Sale, api, phone, sign_in, until


class Accessible(BrowserTest):
    options = {}

    def open(self, path, **options):
        return super().open(path, **{**self.options, **options})

    def test_the_shop(self):
        sale = Sale()
        Sale(title="Another", at=(10, sale.shop))
        page = self.open(sale.path)
        expect(page.locator("#sale-title")).to_be_visible()
        self.assert_accessible(page)
        page.locator("input[name=phone]").fill(phone())
        page.locator(".sign-in button[type=submit]").click()
        expect(page.locator("input[name=code]")).to_be_visible()
        self.assert_accessible(page)
        page.locator(".sign-in button[type=submit]").click()
        page.locator("#sign-out").wait_for()
        page.locator("#buy").click()
        expect(page.locator("#orders .status-1")).to_be_visible()
        self.assert_accessible(page)

    def test_a_sold_out_sale_and_a_shop_without_one(self):
        sale = Sale(stock=1)
        sale.buy(sign_in(phone()))
        page = self.open(sale.path)
        expect(page.locator("#stock")).to_have_text("0")
        self.assert_accessible(page)
        page.goto("about:blank")
        page.goto(f"/#type=10&shop={Sale.new_shop('Without a sale')}")
        expect(page.locator("#sale .notice")).to_have_text(re.compile("no flash sale|没有秒杀"))
        self.assert_accessible(page)

    def test_the_model_and_the_lab_before_a_run(self):
        for path, shown in (("/learn", "main h1"), ("/lab", "select[name=lane-0]")):
            page = self.open(path)
            expect(page.locator(shown)).to_have_count(1)
            self.assert_accessible(page)

    def test_the_lab_with_a_run_and_its_report(self):
        run = finished_run()
        page = self.open(f"/lab#run={run}")
        page.locator("#run-section[data-state=done]").wait_for()
        expect(page.locator(".story").first).to_be_visible()
        page.locator("details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        self.assert_accessible(page)
        file = Path(os.environ["BROWSER_OUT"], "accessible.html")
        file.write_bytes(page.request.get(f"{BASE}/lab/runs/{run}/report").body())
        report = self.open(file.as_uri())
        expect(report.locator(".story").first).to_be_visible()
        self.assert_accessible(report)


class AccessibleOnAPhone(Accessible):
    screen = PHONE_SCREEN
    options = {"color_scheme": "dark", "language": "zh-CN"}


def finished_run():
    """The id of a run that has found a second order; one run serves all tests."""
    global RUN
    if RUN is None:
        run = {"lanes": ["process-lock", "group-commit"], "buyers": 100, "tries": 4, "stock": 50, "instances": 2, "spreadSeconds": 1}
        RUN = api("POST", "/lab/runs", run, admin=True)["data"]["id"]
        until(lambda: api("GET", f"/lab/runs/{RUN}?from=0")["data"]["state"] in ("done", "failed"))
    return RUN


RUN = None

if __name__ == "__main__":
    unittest.main()
