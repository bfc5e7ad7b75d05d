"""The lab page in a real browser, with real runs on the running stack."""

import json
import os
import re
import subprocess
import unittest
import urllib.error
import urllib.request

from playwright.sync_api import expect

from support import ADMIN_TOKEN, BASE, PHONE_SCREEN, BrowserTest

# How long a whole run may take, ms: sign-in, sale, check.
RUN_TIMEOUT_MS = 60_000


def lane(page, strategy):
    return page.locator(f".lane[data-strategy={strategy}]")


def count(page, strategy, invariant):
    return int(lane(page, strategy).locator(f"[data-invariant={invariant}] .invariant-count").inner_text())


class Lab(BrowserTest):
    def open_lab(self, **options):
        page = self.open(f"/lab#token={ADMIN_TOKEN}", **options)
        expect(page.locator("select[name=lane-0]")).to_have_value("process-lock")
        return page

    def run_lanes(self, page, spread=3, fault=None):
        page.locator("input[name=spreadSeconds]").fill(str(spread))
        page.locator("#start").click()
        if fault:
            page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
            page.locator(f"[data-fault={fault}]").click()
        page.locator("#run-section[data-state=done]").wait_for(timeout=RUN_TIMEOUT_MS)

    def test_process_lock_fails_on_two_nodes_where_reentrant_lock_holds(self):
        page = self.open_lab()
        self.assertNotIn(ADMIN_TOKEN, page.url)
        # The diagrams explain it before anything is run.
        expect(page.locator("#diagram")).to_contain_text("That is another lock: node 2 cannot see the memory of node 1.")
        expect(page.locator("select[name=lane-1]")).to_have_value("reentrant-lock")
        expect(page.locator("input[name=instances]:checked")).to_have_value("2")
        self.run_lanes(page, fault="pause-redis")
        expect(page.locator(".events")).to_contain_text("Redis was paused")

        self.assertGreater(count(page, "process-lock", "duplicates"), 0)
        self.assertEqual(count(page, "reentrant-lock", "duplicates"), 0)
        expect(lane(page, "process-lock").locator("[data-invariant=duplicates]")).to_have_class(re.compile("broken"))
        for invariant in ("oversold", "duplicates", "lost", "phantom"):
            expect(lane(page, "reentrant-lock").locator(f"[data-invariant={invariant}]")).to_have_class(re.compile("holds"))
        expect(lane(page, "process-lock").locator(".verdict")).to_have_attribute("data-conformance", "broken")
        expect(lane(page, "reentrant-lock").locator(".verdict")).to_have_attribute("data-conformance", "holds")

        story = page.locator(".story.two-orders")
        expect(story).to_contain_text("in its own memory")
        expect(story).to_contain_text("independent of the first")
        expect(story).to_contain_text("one buyer, two orders")
        expect(story.locator("svg")).to_have_attribute("aria-label", re.compile("Node .*Node "))
        expect(page.locator(".story.held")).to_contain_text("One buyer, one order.")
        page.get_by_role("button", name="中文").click()
        expect(story).to_contain_text("一位买家，两个订单")

        self.check_downloads(page)
        link = page.url
        self.assertRegex(link, r"#run=\w+&lanes=process-lock,reentrant-lock&buyers=300&.*seed=\d+")
        other = self.open(link)
        expect(other.locator(".story.two-orders")).to_be_visible()
        gone = self.open(re.sub("run=[^&]*", "run=gone", link).replace("buyers=300", "buyers=77"))
        expect(gone.locator("#said")).to_contain_text("no longer kept")
        expect(gone.locator("input[name=buyers]")).to_have_value("77")
        expect(gone.locator("input[name=seed]")).to_have_value(re.search(r"seed=(\d+)", link)[1])

    def check_downloads(self, page):
        with page.expect_download() as raw:
            page.locator("#raw").click()
        with open(raw.value.path()) as file:
            self.assertEqual([one["strategy"] for one in json.load(file)["lanes"]], ["process-lock", "reentrant-lock"])
        with page.expect_download() as report:
            page.locator("#report").click()
        file = os.path.join(os.environ["BROWSER_OUT"], "report.html")
        report.value.save_as(file)
        # Opened from a file: any request would be recorded as an error.
        alone = self.open(f"file://{file}")
        expect(alone.locator(".story.two-orders")).to_contain_text("independent of the first")
        expect(alone.locator(".lane .verdict")).to_have_count(2)

    def test_a_run_fits_a_phone_and_can_be_stopped(self):
        page = self.open_lab(viewport=PHONE_SCREEN, language="zh-CN")
        page.locator("select[name=lane-1]").select_option("group-commit")
        page.locator("input[name=spreadSeconds]").fill("20")
        page.locator("#start").click()
        page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
        expect(lane(page, "group-commit").locator("svg").first).to_be_visible()
        self.assert_fits(page)
        page.locator("#stop").click()
        page.locator("#run-section[data-state=stopped]").wait_for(timeout=RUN_TIMEOUT_MS)
        self.assert_fits(page)


class Charts(BrowserTest):
    def test_a_chart_of_few_points_or_none_is_valid(self):
        page = self.open("/lab")
        drawn = page.evaluate('''[[], [[0, 0]], [[0, 0], [0.5, 1e7]]].flatMap((points) => {
          const series = [{ name: '<b>', kind: 'one', points, from: 0.4 }], all = { width: 300, name: 'x', unit: 's' };
          return [Plots.lines({ ...all, series }), Plots.percentiles({ ...all, series }), Plots.spark({ ...all, points }),
            Plots.bars({ ...all, bars: points.map(([x, y]) => [String(x), y]) })];
        }).map((svg) => new XMLSerializer().serializeToString(svg))''')
        self.assertEqual(len(drawn), 12)
        for svg in drawn:
            self.assertNotRegex(svg, "NaN|Infinity|undefined|<b>")


def request(node, steps, reply="ORDERED", user="17"):
    """A recorded request: steps as (name, begin, duration, fields)."""
    steps = [{"step": name, "at": at, "took": took, **fields} for name, at, took, fields in steps]
    return {"attempt": 0, "userId": user, "node": f"127.0.0.1:{node}", "sent": 0, "answered": 9, "reply": reply, "steps": steps}


class Explanations(BrowserTest):
    """The sentence of a step depends on what its node could see at that moment."""

    def explain(self, strategy, kind, *requests):
        page = self.open("/lab")
        story = {"kind": kind, "requests": requests}
        parts = page.evaluate("([strategy, story]) => Story.explain(strategy, story)", [strategy, story])
        return [(step["name"], step["step"], step["strong"], step["text"]) for step in parts["steps"]], parts["conclusion"]

    def test_locks_in_two_processes_are_two_locks(self):
        steps = lambda at: [("locked", at, 0, {"place": "memory"}), ("placed", at + 0.1, 2, {"outcome": "taken"}),
                            ("committed", at + 3, 2, {}), ("unlocked", at + 6, 0, {"place": "memory"})]
        steps, conclusion = self.explain("process-lock", "two-orders", request(8081, steps(0)), request(8082, steps(1)))
        decisive = [(name, step) for name, step, strong, _ in steps if strong]
        self.assertEqual(decisive, [("B", "locked"), ("B", "placed")])
        self.assertIn("Two locks", conclusion)

    def test_a_released_lock_acquired_again_is_not_a_second_lock(self):
        first = [("locked", 0, 0, {"place": "memory"}), ("committed", 1, 1, {}), ("unlocked", 2.5, 0, {"place": "memory"})]
        second = [("locked", 1, 2, {"place": "memory"}), ("placed", 3.1, 1, {"outcome": "ordered-before"}), ("unlocked", 5, 0, {"place": "memory"})]
        steps, conclusion = self.explain("process-lock", "held", request(8081, first), request(8081, second, "ALREADY_ORDERED"))
        self.assertIn("which is free again", next(text for name, step, _, text in steps if (name, step) == ("B", "locked")))
        self.assertNotIn("Two locks", conclusion)

    def test_a_commit_comes_before_the_reads_that_saw_it(self):
        first = [("row-locked", 0, 1, {"stock": 1, "order": False}), ("committed", 2, 3, {})]
        second = [("row-locked", 1, 3, {"stock": 0, "order": True})] # replied before the first node received its commit's reply
        steps, _ = self.explain("row-lock", "held", request(8081, first), request(8082, second, "ALREADY_ORDERED"))
        self.assertEqual([(name, step) for name, step, *_ in steps][:3], [("A", "row-locked"), ("A", "committed"), ("B", "row-locked")])

    def test_only_an_equal_stock_is_called_the_same(self):
        look = lambda at, stock: [("looked", at, 0.1, {"stock": stock, "order": False}), ("decremented", at + 2, 1, {"outcome": "done"}), ("committed", at + 4, 1, {})]
        for second, same in ((1, True), (2, False)):
            steps, _ = self.explain("naive", "oversold", request(8081, look(0, 1)), request(8081, look(0.5, second), user="18"))
            self.assertEqual("as well" in steps[1][3], same, steps)


class Refused(BrowserTest):
    allowed_statuses = frozenset({403})

    def test_a_wrong_token_is_reported(self):
        page = self.open("/lab#token=wrong")
        page.locator("#start").click()
        expect(page.locator("#said")).to_contain_text("The admin token is missing or wrong.")
        expect(page.locator("#run-section")).to_be_hidden()


class WithoutLab(BrowserTest):
    """An instance without `--lab`, on the same servers."""

    allowed_statuses = frozenset({404})

    def test_the_lab_does_not_exist(self):
        env = {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL", "ADMIN_TOKEN")}
        command = [os.environ["SECKILL"], "serve", "--bind", "127.0.0.1:0"]
        instance = subprocess.Popen(command, env={**env, "RUST_LOG": "info"}, stderr=subprocess.PIPE, text=True)
        for end in (instance.stderr.close, instance.wait, instance.terminate):
            self.addCleanup(end)
        line = next(line for line in instance.stderr if "serving" in line)
        url = "http://" + re.search(r"127\.0\.0\.1:\d+", line)[0]
        for path in ("/lab", "/lab/about", "/lab/code/13800138000"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path)
            self.assertEqual(refused.exception.code, 404)
            refused.exception.close()
        self.assertEqual(urllib.request.urlopen(BASE + "/lab").status, 200)
        page = self.browser.new_page()
        self.addCleanup(page.close)
        page.goto(url)
        expect(page.locator("nav a[href='/']")).to_be_visible()
        expect(page.locator("nav a[href='/lab']")).to_be_hidden()


if __name__ == "__main__":
    unittest.main()
