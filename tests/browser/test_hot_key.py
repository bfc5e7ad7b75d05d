"""The lab's mission that counts the database's queries. Tests of other pages load shops, too: none runs beside it."""

import re
import time

from playwright.sync_api import expect

from support import PHONE_SCREEN, BrowserTest, api
from test_lab import LAB, RUN_TIMEOUT_MS


class HotKey(BrowserTest):
    def test_the_mission_of_a_hot_key_plots_the_queries_of_both_strategies(self):
        for screen in (self.screen, PHONE_SCREEN):
            page = self.open(LAB, viewport=screen)
            page.locator("[data-mission=hotkey]").click()
            page.locator("input[name=guess-leftQueries][value=many]").check()
            page.locator("input[name=guess-rightQueries][value=many]").check()
            page.locator("#mission-run").click()
            expect(page.locator("#mission-run")).to_be_disabled()
            # Another visitor's reads, which would refresh a key that soon expires.
            for _ in range(30):
                self.assertTrue(api("GET", "/shop/1")["success"])
                time.sleep(0.1)
            outcome = page.locator("#reads-outcome")
            expect(outcome).to_be_visible(timeout=RUN_TIMEOUT_MS)
            queries = re.compile(r"([\d,]+) quer")
            left, right = (int(queries.search(outcome.locator(f"[data-ask={ask}]").inner_text())[1]) for ask in ("leftQueries", "rightQueries"))
            print(f"the mission: {left} queries, and {right}")
            self.assertGreaterEqual(left, 20)
            self.assertEqual(right, 1)
            expect(outcome.locator("[data-ask=leftQueries]")).to_have_class("right")
            expect(outcome.locator("[data-ask=rightQueries]")).to_have_class("wrong")
            expect(outcome.locator(".conclusion")).to_contain_text("With the mutex one reader rebuilds it")
            expect(page.locator("[data-mission=hotkey]")).to_contain_text("done")
            # The legend names the most in a second.
            for strategy, most in (("cache-aside", r"\d\d+"), ("mutex", "1$")):
                plot = outcome.locator(f"[data-strategy={strategy}] svg")
                expect(plot.locator("text", has_text=re.compile(f"queries for the shop, at most {most}"))).to_have_count(1)
                expect(plot).to_contain_text("the key expires")
                expect(plot.locator("path.line")).to_have_count(2)
            self.assert_fits(page)
            self.assert_accessible(page)
            page.get_by_role("button", name="中文").click()
            expect(outcome.locator("[data-strategy=mutex] svg")).to_contain_text("查询这家商铺，最多 1")
            self.assertTrue(page.url.endswith("#mission=hotkey"), page.url)
