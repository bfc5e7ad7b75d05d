"""The lab page in a real browser, with real runs on the running stack."""

import functools
import json
import os
import re
import subprocess
import time
import unittest
import urllib.error
import urllib.request
from datetime import datetime

from playwright.sync_api import expect

from support import ADMIN_TOKEN, AWAY, BASE, PHONE_SCREEN, BrowserTest, browser, shown_away, until

# The link that ./dev up prints.
LAB = f"/lab#token={ADMIN_TOKEN}"

# How long a whole run may take, ms: sign-in, sale, check.
RUN_TIMEOUT_MS = 60_000


def lane(page, strategy):
    return page.locator(f".lane[data-strategy={strategy}]")


def count(page, strategy, invariant):
    return int(lane(page, strategy).locator(f"[data-invariant={invariant}] .invariant-count").inner_text())


class Lab(BrowserTest):
    def open_lab(self, **options):
        page = self.open(LAB, **options)
        expect(page.locator("select[name=lane-0]")).to_have_value("process-lock")
        return page

    def run_lanes(self, page, spread=3, fault=None):
        page.locator("input[name=spreadSeconds]").fill(str(spread))
        page.locator("#start").click()
        if fault:
            page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
            # A fault that the tests beside this one do not notice.
            page.locator(f"[data-fault={fault}]").click()
        page.locator("#run-section[data-state=done]").wait_for(timeout=RUN_TIMEOUT_MS)

    def test_process_lock_fails_on_two_nodes_where_reentrant_lock_holds(self):
        page = self.open_lab()
        self.assertNotIn(ADMIN_TOKEN, page.url)
        # The diagrams explain it before anything is run.
        expect(page.locator("#diagram")).to_contain_text("That is another lock: node 8082 cannot see the memory of node 8081.")
        expect(page.locator("select[name=lane-1]")).to_have_value("reentrant-lock")
        expect(page.locator("input[name=instances]:checked")).to_have_value("2")
        self.run_lanes(page, fault="cut-lease")
        expect(page.locator(".events")).to_contain_text("locks expired early")
        # One shaded span in each lane's plot, and how many got which reply.
        expect(page.locator(".lane .fault-span")).to_have_count(2)
        expect(lane(page, "reentrant-lock").locator(".replies")).to_contain_text("200 ordered")
        # It is a fault of locks in Redis, which process-lock does without.
        expect(page.locator(".story.two-orders")).to_be_visible()
        expect(page.locator(".story.two-orders .story-fault")).to_have_count(0)

        self.assertGreater(count(page, "process-lock", "duplicates"), 0)
        self.assertEqual(count(page, "reentrant-lock", "duplicates"), 0)
        expect(lane(page, "process-lock").locator("[data-invariant=duplicates]")).to_have_class(re.compile("broken"))
        for invariant in ("oversold", "duplicates", "lost", "phantom"):
            expect(lane(page, "reentrant-lock").locator(f"[data-invariant={invariant}]")).to_have_class(re.compile("holds"))
        expect(lane(page, "process-lock").locator("[data-conformance]")).to_have_attribute("data-conformance", "broken")
        expect(lane(page, "reentrant-lock").locator("[data-conformance]")).to_have_attribute("data-conformance", "holds")

        story = page.locator(".story.two-orders")
        expect(story).to_contain_text("in its own memory")
        expect(story).to_contain_text("sends 4 requests at the same moment")
        expect(story).to_contain_text("independent of the first")
        expect(story).to_contain_text("two locks for one buyer")
        expect(story.locator("figure svg")).to_have_attribute("aria-label", re.compile("Node .*Node "))
        # What the invariants mean is shown without opening anything.
        expect(page.locator(".terms")).to_contain_text("lost: the reply confirmed an order that does not exist")
        expect(page.locator(".story.held")).to_contain_text("One buyer, one order.")
        page.get_by_role("button", name="中文").click()
        expect(story).to_contain_text("同一买家便有两把锁")

        started = self.check_downloads(page)
        link = page.url
        self.assertRegex(link, r"#run=\w+&lanes=process-lock,reentrant-lock&buyers=300&.*seed=\d+")
        other = self.open(link, timezone_id=AWAY)
        expect(other.locator(".story.two-orders")).to_be_visible()
        expect(other.locator("#history .when", has_text=shown_away(started))).not_to_have_count(0)
        gone = self.open(re.sub("run=[^&]*", "run=gone", link).replace("buyers=300", "buyers=77"))
        expect(gone.locator("#said")).to_contain_text("no longer kept")
        expect(gone.locator("input[name=buyers]")).to_have_value("77")
        expect(gone.locator("input[name=seed]")).to_have_value(re.search(r"seed=(\d+)", link)[1])

    def test_the_first_minute(self):
        begun = time.monotonic()
        page = self.open(LAB)
        expect(page.locator("#token")).to_be_hidden()
        # Above the fold.
        self.assertLess(page.locator("#break").bounding_box()["y"], 600)
        page.locator("#break").click()
        expect(lane(page, "process-lock").locator("[data-invariant=duplicates]")).to_have_class(re.compile("broken"))
        took = time.monotonic() - begun
        print(f"from opening the lab to a red second order: {took:.1f} s")
        self.assertLess(took, 60)
        # The second click.
        page.locator("#how").click(timeout=RUN_TIMEOUT_MS)
        story = page.locator(".story.two-orders")
        expect(story).to_be_in_viewport()
        expect(story.locator(".conclusion")).to_contain_text("two locks for one buyer")
        caption = lane(page, "process-lock").locator(".people figcaption")
        orders, people, rest, repeated = (int(number) for number in re.fullmatch(
            r"(\d+) vouchers went to (\d+) people; (\d+) got none · (\d+) people got two or more", caption.inner_text()).groups())
        self.assertEqual((orders, people + rest), (140, 160))
        self.assertTrue(0 < repeated <= orders - people, caption.inner_text())
        dots = page.evaluate("[...document.querySelectorAll('.lane[data-strategy=process-lock] .dots')].map((path) => [path.classList[1], path.getAttribute('d').split('M').length - 1])")
        self.assertEqual(dots, [[kind, count] for kind, count in [("many", repeated), ("once", people - repeated), ("none", rest)] if count])
        self.step_through(page, story)

    def step_through(self, page, story):
        steps = story.locator("li.step")
        count = steps.count()
        place = lambda: (story.locator("li.step.now").count() and int(story.locator("li.step.now").get_attribute("data-number")), story.locator("li.step.future").count())
        # It plays by itself, from the first step on.
        expect(story.locator(".stepper-play")).to_have_text("Pause")
        expect(story.locator("li.step.now").first).to_be_visible()
        story.locator(".stepper-play").click()
        expect(story.locator(".stepper-play")).to_have_text("Play")
        story.locator("input[type=range]").fill("0")
        self.assertEqual(place(), (0, count))
        expect(story.locator(".scene")).to_contain_text("no orders")
        # The diagram is moved by the run's own requests: each is where its step happened.
        tokens = story.locator(".token")
        at = lambda: [token.get_attribute("data-place") for token in tokens.all()]
        self.assertEqual(set(at()), {"buyer"})
        nodes = set()
        for number in range(1, count + 1):
            story.locator(".stepper-next").click()
            self.assertEqual(place(), (number, count - number))
            name = story.locator(f"li.step[data-number='{number}'] .request-name").inner_text()
            expect(story.locator(".token.now")).to_have_attribute("data-name", name)
            expect(story.locator(".scene-said")).to_contain_text(story.locator(f"li.step[data-number='{number}'] .what").inner_text())
            nodes.update(at())
        self.assertEqual(set(at()), {"buyer"})
        self.assertEqual(len(nodes - {"buyer", "database"}), 2, nodes)
        # The list, the plot and the slider show the same position.
        story.locator(".numbered[data-number='3'] text").click()
        self.assertEqual(place(), (3, count - 3))
        expect(story.locator("input[type=range]")).to_have_value("3")
        expect(story.locator(".playhead.now")).to_have_attribute("data-number", "3")
        steps.nth(4).click()
        self.assertEqual(place(), (5, count - 5))
        # The sequence diagram has every step, and each request and reply on both sides of nginx.
        story.locator("details.sequence summary").click()
        messages = story.locator(".sequence .message")
        requests = story.locator(".token").count()
        self.assertEqual(messages.count(), steps.count() + 3 * requests)
        self.assertEqual(story.locator(".sequence .message .reply").count(), 2 * requests)
        expect(story.locator(".sequence svg")).to_contain_text("nginx")
        expect(messages.first).to_contain_text(re.compile("[A-F]: buy"))
        expect(story.locator(".sequence .message.future").first).to_be_attached()
        story.locator(".stepper-back").click()
        self.assertEqual(place(), (4, count - 4))
        story.locator("input[type=range]").press("End")
        self.assertEqual(place(), (count, 0))
        expect(story.locator(".scene")).to_contain_text("Two orders by one buyer")
        # The numbers stand in order from left to right.
        places = page.evaluate("[...document.querySelectorAll('.story.two-orders .numbered')].map((one) => [Number(one.dataset.number), Number(one.querySelector('circle').getAttribute('cx'))]).sort((a, b) => a[0] - b[0]).map(([, x]) => x)")
        self.assertEqual(places, sorted(places))

    def test_the_first_minute_on_a_phone(self):
        page = self.open(LAB, viewport=PHONE_SCREEN)
        expect(page.locator("#break")).to_be_in_viewport(ratio=1)
        page.locator("#break").click()
        page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
        both = [lane(page, strategy) for strategy in ("process-lock", "reentrant-lock")]
        for one in both:
            expect(one.locator(".people svg")).to_be_in_viewport(ratio=1)
            expect(one.locator(".lane-plot svg")).to_be_in_viewport(ratio=0.6)
        expect(page.locator("#stop")).to_be_in_viewport(ratio=1)
        expect(both[0].locator("[data-invariant=duplicates]")).to_have_class(re.compile("broken"))
        tops = lambda: [one.locator(".lane-live").evaluate("(lane) => Math.round(lane.getBoundingClientRect().top)") for one in both]
        before = tops()
        page.locator("#run-section[data-state=done]").wait_for(timeout=RUN_TIMEOUT_MS)
        for now, then in zip(tops(), before):
            self.assertAlmostEqual(now, then, delta=2, msg="both charts stay where they are when the run ends")
        self.assert_fits(page)
        page.locator("#how").click()
        expect(page.locator(".story.two-orders .stepper-controls")).to_be_in_viewport()
        self.assert_fits(page)
        # One story is open, its steps are not: 13,500 pixels were too long.
        height = page.evaluate("document.documentElement.scrollHeight")
        self.assertLess(height, 10_000)
        # The run's head, which stays at the top, wraps on a narrow screen, and does not cover the buttons that stay below it.
        page.set_viewport_size({"width": 320, "height": 700})
        page.locator(".story.two-orders .scene-said").evaluate("(one) => scrollBy(0, one.getBoundingClientRect().top - innerHeight / 2)")
        box = lambda selector: page.locator(selector).bounding_box()
        until(lambda: box(".story.two-orders .stepper-controls")["y"] >= box(".run-head")["y"] + box(".run-head")["height"] - 1)

    def run_mission(self, page, mission):
        """Runs it with the guess that the left breaks and the right holds; its outcome."""
        page.locator(f"[data-mission={mission}]").click()
        page.locator("input[name=guess-left][value=breaks]").check()
        page.locator("input[name=guess-right][value=holds]").check()
        page.locator("#mission-run").click()
        outcome = page.locator("#mission-outcome")
        expect(outcome).to_be_visible(timeout=RUN_TIMEOUT_MS)
        return outcome

    def test_a_mission_asks_for_guesses_and_shows_them_beside_what_happened(self):
        page = self.open(LAB)
        expect(page.locator("[data-mission]")).to_have_count(7)
        expect(page.locator("#mission-run")).to_be_disabled()
        page.locator("[data-mission=memory]").click()
        page.locator("input[name=guess-left][value=breaks]").check()
        expect(page.locator("#mission-run")).to_be_disabled()
        page.locator("input[name=guess-right][value=breaks]").check()
        page.locator("#mission-run").click()
        outcome = page.locator("#mission-outcome")
        expect(outcome).to_be_visible(timeout=RUN_TIMEOUT_MS)
        expect(outcome.locator("[data-ask=left]")).to_have_class("right")
        expect(outcome.locator("[data-ask=left]")).to_contain_text("what happened: it breaks")
        expect(outcome.locator("[data-ask=right]")).to_have_class("wrong")
        expect(outcome.locator("[data-ask=right]")).to_contain_text("your guess: it breakswhat happened: it holds (0 second orders, 0 oversold)")
        expect(outcome).to_contain_text("Two memories are two locks.")
        expect(page.locator("[data-mission=memory]")).to_contain_text("done")
        # The button works from everywhere on the page.
        page.evaluate("scrollTo(0, 0)")
        page.locator("#guesses").click()
        expect(outcome).to_be_in_viewport()
        page.locator("#mission-next").click()
        expect(page.locator("[data-mission=read]")).to_be_focused()
        expect(page.locator("[data-mission=read]")).to_have_attribute("aria-pressed", "true")

    def test_the_mission_of_foreign_deletes_tells_one(self):
        page = self.open(LAB)
        outcome = self.run_mission(page, "lease")
        expect(outcome.locator("[data-ask=left]")).to_have_class("right")
        expect(outcome.locator("[data-ask=right]")).to_have_class("right")
        deletes = lambda strategy: lane(page, strategy).locator(".foreign-deletes")
        expect(deletes("setnx-lock")).to_have_count(0)
        # Whether a later click acquires the lock before the lease of the deleted one could end depends on the machine. If one
        # did, the story shows it, and the mission is done.
        story = page.locator(".story.two-orders")
        if "A is for another voucher." not in story.locator(".story-sent").inner_text():
            expect(outcome.locator(".conclusion")).to_contain_text("This run did not show what the mission is about.")
            return
        expect(outcome.locator(".conclusion")).to_contain_text("its DEL deleted that one’s lock")
        expect(page.locator("[data-mission=lease]")).to_contain_text("done")
        print(f"the mission: {deletes('setnx-unowned').inner_text()}")
        expect(deletes("setnx-unowned")).to_have_text(re.compile(r"[1-9]\d* times? a request deleted the lock of another"))
        # A had no order, B's lock was deleted, C acquired it: B and C have one each.
        expect(story.locator("h3")).to_have_text("How setnx-unowned gave one buyer 2 orders")
        said = [(step.locator(".request-name").text_content(), step.locator(".what").text_content()) for step in story.locator("li.step").all()]
        moment = lambda name, text: next(number for number, (which, what) in enumerate(said) if which == name and text in what)
        self.assertLess(moment("A", "is rolled back"), moment("A", "it deletes the lock of B"))
        self.assertLess(moment("A", "it deletes the lock of B"), moment("C", "A has just deleted it"))
        for name in ("B", "C"):
            moment(name, "“You got it”")

    def test_the_burst_fills_the_commits(self):
        page = self.open(LAB)
        page.locator("[data-mission=batch]").click()
        expect(page.locator("#mission h3")).to_have_text("A burst")
        page.locator("input[name=guess-right][value=holds]").check()
        page.locator("input[name=guess-faster][value=group-commit]").check()
        page.locator("#mission-run").click()
        faster = page.locator("#mission-outcome [data-ask=faster]")
        expect(faster).to_contain_text("what happened: group-commit", timeout=RUN_TIMEOUT_MS)
        expect(page.locator("#mission-outcome .conclusion")).to_contain_text("Many orders, one wait for the disk.")
        orders, commits = (int(number) for number in re.search(r"group-commit: (\d+) orders in (\d+) commits", faster.inner_text()).groups())
        print(f"the burst: {orders} orders in {commits} commits")
        self.assertGreaterEqual(orders / commits, 5)

    def test_the_mission_of_a_killed_node_loses_confirmed_orders_of_the_queue_in_memory(self):
        page = self.open(LAB)
        outcome = self.run_mission(page, "kill")
        lost = re.compile(r"([1-9]\d*) confirmed orders? lost")
        expect(outcome.locator("[data-ask=left]")).to_contain_text(lost)
        print(f"the mission: {lost.search(outcome.inner_text())[0]}; {lane(page, 'stream').locator('.verdict').inner_text()}")
        for ask in ("left", "right"):
            expect(outcome.locator(f"[data-ask={ask}]")).to_have_class("right")
        expect(outcome.locator(".conclusion")).to_contain_text("What waited in the memory of the killed node is gone")
        expect(page.locator("[data-mission=kill]")).to_contain_text("done")
        expect(page.locator(".event-list")).to_contain_text(re.compile("was killed, and back after"))
        queue, stream = lane(page, "memory-queue"), lane(page, "stream")
        expect(queue.locator("[data-invariant=lost]")).to_have_class(re.compile("broken"))
        expect(queue.locator("[data-conformance=broken]")).to_contain_text("lost")
        expect(stream.locator("[data-invariant=lost]")).to_have_class(re.compile("holds"))
        expect(stream.locator("[data-conformance=holds]")).to_contain_text(re.compile("[1-9][0-9]* orders? for 200 vouchers"))
        # Told yes, then killed: that buyer has no order, and one of the other node has.
        story = page.locator(".story.lost")
        expect(story.locator("h3")).to_have_text("How memory-queue lost an order that it had confirmed")
        said = [step.locator(".what").text_content() for step in story.locator("li.step").all()]
        moment = lambda text: next(number for number, what in enumerate(said) if text in what)
        self.assertLess(moment("puts the order into a queue in its memory"), moment("“You got it”"))
        self.assertLess(moment("“You got it”"), moment("is killed, and the queue in its memory goes with it"))
        self.assertLess(moment("“You got it”"), moment("has written this order"))
        self.assert_accessible(page)
        page.get_by_role("button", name="中文").click()
        expect(outcome).to_contain_text(re.compile(r"丢失 [1-9]\d* 个已确认的订单"))
        expect(story.locator("h3")).to_have_text("memory-queue 如何弄丢了已确认的订单")

    def test_the_address_is_what_is_shown(self):
        page = self.open("/lab#mission=lease")
        expect(page.locator("#mission h3")).to_have_text("The lock of another, deleted")
        page.locator("[data-mission=read]").click()
        self.assertTrue(page.url.endswith("#mission=read"), page.url)
        page.go_back()
        expect(page.locator("#mission h3")).to_have_text("The lock of another, deleted")
        page.evaluate("location.hash = '#lanes=naive,stream&buyers=70&instances=1'")
        expect(page.locator("select[name=lane-0]")).to_have_value("naive")
        expect(page.locator("select[name=lane-1]")).to_have_value("stream")
        expect(page.locator("input[name=buyers]")).to_have_value("70")
        page.go_back()
        expect(page.locator("select[name=lane-0]")).to_have_value("process-lock")

    def test_a_session_in_one_nodes_memory(self):
        for screen in (self.screen, PHONE_SCREEN):
            page = self.open(LAB, viewport=screen)
            page.locator("#session-ask").click()
            asked = lambda kept_in: page.locator(f"#session-story [data-kept-in={kept_in}] [data-step=me]")
            expect(asked("redis")).to_have_count(2)
            for kept_in, first, second in (("memory", "200", "401"), ("redis", "200", "200")):
                expect(asked(kept_in).locator(".badge")).to_have_text([first, second])
                self.assertNotEqual(*(one.get_attribute("data-node") for one in asked(kept_in).all()))
            expect(page.locator("[data-kept-in=memory] .conclusion.bad")).to_contain_text("The same cookie, another node: 401.")
            expect(page.locator("[data-kept-in=redis] .conclusion.good")).to_contain_text("All nodes read the same Redis")
            self.assert_fits(page)
            self.assert_accessible(page)
            page.get_by_role("button", name="中文").click()
            expect(page.locator("[data-kept-in=memory] .conclusion")).to_contain_text("同一个 cookie")

    def test_a_run_that_was_left_by_back_is_found_again(self):
        page = self.open_lab()
        page.locator("#slow").check()
        page.locator("#start").click()
        page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
        page.go_back()
        expect(page.locator("#run-section")).to_be_hidden()
        page.locator("#start").click()
        expect(page.locator("#said")).to_contain_text("Another run is under way.")
        page.locator("#stop").click()
        page.locator("#run-section[data-state=stopped]").wait_for(timeout=RUN_TIMEOUT_MS)

    def check_downloads(self, page):
        """The raw data and the report; returns when the run began."""
        with page.expect_download() as raw:
            page.locator("#raw").click()
        with open(raw.value.path()) as file:
            run = json.load(file)
        self.assertEqual([one["strategy"] for one in run["lanes"]], ["process-lock", "reentrant-lock"])
        started = datetime.fromisoformat(run["startedAt"])
        with page.expect_download() as report:
            page.locator("#report").click()
        file = os.path.join(os.environ["BROWSER_OUT"], "report.html")
        report.value.save_as(file)
        # Opened from a file: any request would be recorded as an error.
        alone = self.open(f"file://{file}", timezone_id=AWAY)
        expect(alone.locator("#when")).to_contain_text(f"started {shown_away(started)}")
        expect(alone.locator(".story.two-orders")).to_contain_text("independent of the first")
        expect(alone.locator(".lane [data-conformance]")).to_have_count(2)
        return started

    def test_a_run_fits_a_phone_and_can_be_stopped(self):
        page = self.open_lab(viewport=PHONE_SCREEN, language="zh-CN")
        page.locator("select[name=lane-1]").select_option("group-commit")
        page.locator("#slow").check()
        expect(page.locator("input[name=spreadSeconds]")).to_have_value("20")
        page.locator("#start").click()
        page.locator("#run-section[data-state=running]").wait_for(timeout=RUN_TIMEOUT_MS)
        # What happens is in view, and so is the button that ends it.
        expect(lane(page, "process-lock").locator("svg").first).to_be_in_viewport()
        expect(page.locator("#stop")).to_be_in_viewport()
        shown = lane(page, "group-commit").locator(".lane-live")
        shown.scroll_into_view_if_needed()
        expect(page.locator("#stop")).to_be_in_viewport()
        expect(lane(page, "group-commit").locator("svg").first).to_be_visible()
        self.assert_fits(page)
        top = lambda: shown.evaluate("(lane) => Math.round(lane.getBoundingClientRect().top)")
        before = top()
        # Not by a mouse: before a click the browser's driver would scroll to where the head is when it does not stick.
        page.locator("#stop").evaluate("(button) => button.click()")
        page.locator("#run-section[data-state=stopped]").wait_for(timeout=RUN_TIMEOUT_MS)
        self.assertAlmostEqual(top(), before, delta=2, msg="the page does not jump when the run ends")
        self.assert_fits(page)


@functools.cache
def pure_page():
    """A page whose pure functions are called. All tests share it, because an error of a function fails the call itself."""
    page = browser().new_page(locale="en-US")
    page.goto(f"{BASE}/lab")
    return page


class Charts(BrowserTest):
    def test_a_chart_of_few_points_or_none_is_valid(self):
        page = pure_page()
        drawn = page.evaluate('''[[], [[0, 0]], [[0, 0], [0.5, 1e7]]].flatMap((points) => {
          const series = [{ name: '<b>', kind: 'one', points, from: 0.4 }], all = { width: 300, name: 'x', unit: 's' };
          return [Plots.lines({ ...all, series }), Plots.percentiles({ ...all, series }), Plots.spark({ ...all, points }),
            Plots.bars({ ...all, bars: points.map(([x, y]) => [String(x), y]) }), Plots.dots({ ...all, count: points.length, kinds: [['many', 0], ['once', 9]] })];
        }).map((svg) => new XMLSerializer().serializeToString(svg))''')
        self.assertEqual(len(drawn), 15)
        for svg in drawn:
            self.assertNotRegex(svg, "NaN|Infinity|undefined|<b>")


def request(node, steps, reply="ORDERED", user="17"):
    """A recorded request: steps as (name, begin, duration, fields)."""
    steps = [{"step": name, "at": at, "took": took, **fields} for name, at, took, fields in steps]
    return {"attempt": 0, "userId": user, "node": f"127.0.0.1:{node}", "sent": 0, "answered": 9, "reply": reply, "steps": steps}


class Explanations(BrowserTest):
    """The sentence of a step depends on what its node could see at that moment."""

    def explain(self, strategy, kind, *requests, **more):
        page = pure_page()
        story = {"kind": kind, "requests": requests, **more}
        parts = page.evaluate("([strategy, story]) => Story.explain(strategy, story)", [strategy, story])
        return [(step["name"], step["step"], step["strong"], step["text"]) for step in parts["steps"]], parts["conclusion"]

    def test_locks_in_two_processes_are_two_locks(self):
        steps = lambda at: [("locked", at, 0, {"place": "memory"}), ("placed", at + 0.1, 2, {"outcome": "taken"}),
                            ("committed", at + 3, 2, {}), ("unlocked", at + 6, 0, {"place": "memory"})]
        steps, _ = self.explain("process-lock", "two-orders", request(8081, steps(0)), request(8082, steps(1)))
        decisive = [(name, step) for name, step, strong, _ in steps if strong]
        self.assertEqual(decisive, [("B", "locked"), ("B", "placed")])

    def test_a_released_lock_acquired_again_is_not_a_second_lock(self):
        first = [("locked", 0, 0, {"place": "memory"}), ("committed", 1, 1, {}), ("unlocked", 2.5, 0, {"place": "memory"})]
        second = [("locked", 1, 2, {"place": "memory"}), ("placed", 3.1, 1, {"outcome": "ordered-before"}), ("unlocked", 5, 0, {"place": "memory"})]
        steps, _ = self.explain("process-lock", "held", request(8081, first), request(8081, second, "ALREADY_ORDERED"))
        self.assertIn("which is free again", next(text for name, step, _, text in steps if (name, step) == ("B", "locked")))

    def test_a_lock_that_is_released_before_the_commit_is_no_missing_lock(self):
        steps = lambda at: [("locked", at, 0, {"place": "memory"}), ("placed", at + 0.1, 1, {"outcome": "taken"}),
                            ("unlocked", at + 1.2, 0, {"place": "memory"}), ("committed", at + 1.3, 3, {})]
        both = request(8081, steps(0)), request(8081, steps(1.2))
        steps, conclusion = self.explain("lock-in-transaction", "two-orders", *both, why=["Released too early.", "释放得太早。"])
        self.assertIn(("A", "unlocked", True), [step[:3] for step in steps])
        self.assertEqual(conclusion, "Released too early.")

    def test_where_it_held_the_reason_ends_with_what_came_of_it(self):
        steps = [("locked", 0, 0, {"place": "redis"}), ("placed", 1, 2, {"outcome": "taken"}), ("committed", 4, 1, {})]
        busy = request(8082, [("lock-busy", 2, 0, {"place": "redis"})], "LOCK_BUSY")
        _, conclusion = self.explain("reentrant-lock", "held", request(8081, steps), busy, why=["All nodes share one lock.", "所有节点共用一把锁。"])
        self.assertEqual(conclusion, "All nodes share one lock. One buyer, one order.")

    def test_a_lock_that_is_tried_again_is_no_refusal(self):
        first = [("locked", 0, 0, {"place": "redis"}), ("placed", 1, 5, {"outcome": "taken"}), ("committed", 8, 1, {})]
        second = [("lock-busy", 2, 0, {"place": "redis"}), ("locked", 4, 0, {"place": "redis"})]
        steps, _ = self.explain("setnx-unowned", "two-orders", request(8081, first), request(8082, second))
        said = {(name, step): text for name, step, _, text in steps}
        self.assertIn("tries again later", said["B", "lock-busy"])
        self.assertIn("the lease of its lock has ended", said["B", "locked"])

    def test_a_foreign_delete_is_told_with_whose_lock_it_was(self):
        # B's lock and its DEL are answered at once: the DEL came later all the same.
        work = lambda at, *ending: [("locked", at, 1, {"place": "redis"}), ("placed", at + 1, 1, {"outcome": "taken"}), *ending]
        first = work(0, ("committed", 4, 1, {"outcome": "failed"}), ("unlocked", 5, 2, {"place": "redis", "outcome": "foreign", "owner": "71"}))
        second, third = ([*work(at, ("committed", 9, 1, {}), ("unlocked", 11, 1, {"place": "redis", "outcome": "lost"}))] for at in (4.5, 6))
        requests = [request(8081, first, "SOLD_OUT"), {**request(8082, second), "orderId": "71"}, {**request(8082, third), "orderId": "72"}]
        requests[0]["elsewhere"] = True
        steps, _ = self.explain("setnx-unowned", "two-orders", *requests)
        order = [(name, step) for name, step, *_ in steps if step in ("locked", "unlocked")]
        self.assertEqual(order[:4], [("A", "locked"), ("B", "locked"), ("A", "unlocked"), ("C", "locked")])
        said = {(name, step): text for name, step, _, text in steps}
        self.assertIn("is rolled back", said["A", "committed"])
        self.assertIn("it deletes the lock of B", said["A", "unlocked"])
        self.assertIn("A has just deleted it", said["C", "locked"])
        self.assertIn("it is gone already", said["B", "unlocked"])
        locks = pure_page().evaluate("""(story) => {
            const { steps } = Story.explain('setnx-unowned', story);
            return steps.map((step) => Scene.stateAt(steps, step.number).locks.map((lock) => lock.name).join());
        }""", {"kind": "two-orders", "requests": requests})
        self.assertEqual(list(dict.fromkeys(locks)), ["A", "A,B", "", "C"])

    def test_a_commit_comes_before_the_reads_that_saw_it(self):
        first = [("row-locked", 0, 1, {"stock": 1, "order": False}), ("committed", 2, 3, {})]
        second = [("row-locked", 1, 3, {"stock": 0, "order": True})] # replied before the first node received its commit's reply
        steps, _ = self.explain("row-lock", "held", request(8081, first), request(8082, second, "ALREADY_ORDERED"))
        self.assertEqual([(name, step) for name, step, *_ in steps][:3], [("A", "row-locked"), ("A", "committed"), ("B", "row-locked")])

    def test_a_second_order_that_only_the_index_refused_is_said_to_be(self):
        first = [("locked", 0, 0, {"place": "redis"}), ("placed", 1, 3, {"outcome": "taken"}), ("committed", 4, 1, {}), ("unlocked", 6, 0, {"place": "redis"})]
        second = [("locked", 2, 0, {"place": "redis"}), ("placed", 3, 3, {"outcome": "index-refused"})]
        steps, conclusion = self.explain("setnx-lock", "held", request(8081, first), request(8082, second, "ALREADY_ORDERED"))
        self.assertIn("the unique index refuses the insert", next(text for name, step, _, text in steps if (name, step) == ("B", "placed")))
        self.assertIn("the database’s unique index did", conclusion)

    def test_the_servers_hold_at_each_step_what_the_record_says(self):
        page = pure_page()
        steps = [("locked", 0, 0, {"place": "redis"}), ("placed", 1, 2, {"outcome": "taken"}), ("committed", 4, 1, {}), ("unlocked", 6, 0, {"place": "redis"})]
        busy = request(8082, [("lock-busy", 2, 0.5, {"place": "redis"})], "LOCK_BUSY")
        states = page.evaluate('''(story) => {
            const { steps } = Story.explain('reentrant-lock', story);
            return [0, ...steps.map((step) => step.number)].map((at) => Scene.stateAt(steps, at))
              .map(({ requests, locks, orders }) => [requests.map((one) => one.doing).join(), locks.map((one) => one.name).join(), orders.map((one) => `${one.name}:${one.state}`).join()]);
        }''', {"kind": "held", "requests": [request(8081, steps), busy]})
        self.assertEqual(states, [
            ["sent,sent", "", ""], ["locked,sent", "A", ""], ["wrote,sent", "A", "A:open"], ["wrote,refused", "A", "A:open"],
            ["committed,refused", "A", "A:committed"], ["committed,refused", "", "A:committed"],
            ["answered,refused", "", "A:committed"], ["answered,refused", "", "A:committed"]])

    def test_a_request_never_crosses_the_box_of_another_node(self):
        page = pure_page()
        work = [("looked", 1, 1, {"stock": 5, "order": False}), ("locked", 3, 0, {"place": "redis"}), ("placed", 4, 1, {"outcome": "taken"}), ("committed", 6, 1, {})]
        story = {"kind": "two-orders", "requests": [request(node, work) for node in (8081, 8082, 8081, 8082)]}
        crossings = page.evaluate("""(story) => {
            const { steps } = Story.explain('setnx-lock', story), found = [];
            for (const width of [260, 640]) {
              const scene = Scene.create(steps, width);
              for (const { number, name, request } of steps) {
                scene.show(number);
                const line = scene.element.querySelector('.scene-path').getAttribute('d').match(/[\\d.]+/g);
                if (!line) continue;
                const [x1, y1, x2, y2] = line.map(Number);
                for (const box of scene.element.querySelectorAll('[data-box*=":"]')) {
                  if (box.dataset.box === request.node) continue;
                  const [x, y, wide, high] = ['x', 'y', 'width', 'height'].map((one) => Number(box.getAttribute(one)));
                  const inside = (at) => { const [px, py] = [x1 + at * (x2 - x1), y1 + at * (y2 - y1)]; return px >= x && px <= x + wide && py >= y && py <= y + high; };
                  if (Array.from({ length: 101 }, (_, at) => inside(at / 100)).some(Boolean)) found.push(`${width}: ${number} ${name}`);
                }
              }
            }
            return [steps.length, found];
        }""", story)
        self.assertEqual(crossings, [20, []])

    def test_a_group_commit_says_how_many_orders_it_held(self):
        for orders, said in ((1, "commits it alone"), (2, "together with 1 other order."), (9, "together with 8 other orders.")):
            held = request(8081, [("batch-committed", 0, 2, {"orders": orders})])
            late = request(8082, [("batch-committed", 1, 2, {"orders": orders, "outcome": "failed"})], "SOLD_OUT", "18")
            steps, _ = self.explain("group-commit", "held", held, late)
            texts = [text for _, step, _, text in steps if step == "batch-committed"]
            self.assertIn(said, texts[0])
            self.assertIn("finds no stock left", texts[1])

    def test_only_an_equal_stock_is_called_the_same(self):
        look = lambda at, stock: [("looked", at, 0.1, {"stock": stock, "order": False}), ("decremented", at + 2, 1, {"outcome": "done"}), ("committed", at + 4, 1, {})]
        for second, same in ((1, True), (2, False)):
            steps, _ = self.explain("naive", "oversold", request(8081, look(0, 1)), request(8081, look(0.5, second), user="18"))
            self.assertEqual("as well" in steps[1][3], same, steps)


def judged(strategy="setnx-lock", idea="", count=9, replies=None, conformance="holds", duplicates=0, index_refused=0, stories=()):
    """A judged lane: `count` buyers, each with an order."""
    verdict = {"orders": count, "issued": count, "oversold": duplicates, "duplicates": duplicates, "lost": 0, "phantom": 0}
    report = {"requests_per_s": 1, "orders_per_s": 1, "latency": {"p50_ms": 1, "p99_ms": 2}, "replies": replies or {"ORDERED": count}, "verdict": verdict}
    sample = {"at": 1, "rows": count, "stock": 0, "people": count, "repeated": duplicates, "duplicates": duplicates, "oversold": 0}
    return {"strategy": strategy, "idea": [idea, ""], "safe": True, "samples": [sample], "replies": {}, "stories": list(stories),
            "result": {"conformance": {"kind": conformance}, "report": report, "curve": [], "indexRefused": index_refused}}


def draw_run(page, *lanes, count=9, events=()):
    """Draws a judged run of these lanes below the page's content; returns it."""
    setting = {"lanes": [lane["strategy"] for lane in lanes], "buyers": count, "tries": count, "stock": count, "instances": count, "spreadSeconds": 0, "seed": 7}
    page.evaluate('''(run) => {
        document.getElementById('drawn')?.remove();
        const root = document.querySelector('main').appendChild(make('div', { id: 'drawn' }));
        RunView(root).draw(run);
    }''', {"id": "x", "state": "done", "events": list(events), "setting": setting, "lanes": list(lanes)})
    return page.locator("#drawn")


class Views(BrowserTest):
    """The view of a run that nobody had to run."""

    def test_a_run_says_what_the_index_alone_refused(self):
        page = pure_page()
        lanes = draw_run(page, judged(index_refused=3), judged()).locator(".lane")
        expect(lanes.nth(0).locator(".index-refused")).to_have_text("The locks let 3 second orders through; the database’s unique index did not.")
        expect(lanes.nth(1).locator(".index-refused")).to_have_count(0)

    def test_one_is_not_several(self):
        page = pure_page()
        cut = {"at": 1, "what": "cut-lease", "seconds": 2, "cut": 1}
        one = judged("setnx-unowned", count=1, duplicates=1, conformance="broken", index_refused=1), judged(count=1)
        text = draw_run(page, *one, count=1, events=[cut]).inner_text()
        for said in ["1 buyer × 1 try · 1 voucher · 1 node ·", "1 order for 1 voucher,", "1 voucher went to 1 person;", "1 person got two",
                     "let 1 second order through", "1 order more than", "1 duplicate order", "(1 lock)"]:
            self.assertIn(said, text)
        text = draw_run(page, judged(), judged(), count=9).inner_text()
        for said in ["9 buyers × 9 tries · 9 vouchers · 9 nodes ·", "9 orders for 9 vouchers,"]:
            self.assertIn(said, text)
        page.get_by_role("button", name="中文").click()
        expect(page.locator("#drawn")).to_contain_text("9 份优惠券共 9 个订单")
        page.get_by_role("button", name="English").click()

    def test_try_again_is_explained_where_a_buyer_was_told_so(self):
        lanes = draw_run(pure_page(), judged(replies={"ORDERED": 400, "UNAVAILABLE": 100}), judged()).locator(".lane")
        expect(lanes.nth(0)).to_contain_text("100 try again: unavailable")
        expect(lanes.nth(0).locator(".try-again")).to_contain_text("It ordered nothing")
        expect(lanes.nth(1).locator(".try-again")).to_have_count(0)

    def test_a_fault_is_named_only_where_the_requests_could_meet_it(self):
        page = pure_page()
        for place, fault, named in [("memory", "empty-redis", False), ("memory", "cut-lease", False), ("memory", "kill-instance", True),
                                    ("redis", "empty-redis", True), ("redis", "cut-lease", True)]:
            steps = [("locked", 0, 0, {"place": place}), ("placed", 1, 2, {"outcome": "taken"}), ("committed", 4, 1, {})]
            story = {"kind": "two-orders", "fault": fault, "requests": [request(8081, steps), request(8082, steps)]}
            root = draw_run(page, judged(stories=[story]), judged())
            expect(root.locator(".story")).to_have_count(1)
            self.assertEqual(root.locator(".story-fault").count(), int(named), (place, fault))

    def test_the_plots_of_both_lanes_align(self):
        lanes = draw_run(pure_page(), judged(idea="A sentence that takes several lines. " * 8), judged(idea="A line.")).locator(".lane")
        for part in [".invariants", ".people", ".lane-plot", ".tiles"]:
            # Both in one call: the page draws the lanes anew when its width changes.
            left, right = lanes.evaluate_all("(lanes, part) => lanes.map((lane) => lane.querySelector(part).getBoundingClientRect().toJSON())", part)
            self.assertAlmostEqual(left["y"], right["y"], delta=1, msg=part)
            self.assertGreater(right["x"], left["x"])


class Missions(BrowserTest):
    def test_what_happened_is_read_from_the_judged_run(self):
        page = pure_page()
        lane = lambda safe, orders, per_s, duplicates=0, oversold=0, lost=0: {"safe": safe, "result": {"report": {
            "orders_per_s": per_s, "verdict": {"orders": orders, "duplicates": duplicates, "oversold": oversold, "lost": lost}}}}
        read = lambda ask, *lanes: page.evaluate("([run, ask]) => Missions.outcomeOf(run, ask)", [{"setting": {"lanes": ["a", "b"]}, "lanes": lanes}, ask])
        outcome = lambda *asked: read(*asked)["option"]
        safe, broken = lane(True, 100, 500), lane(False, 90, 700, duplicates=2)
        self.assertEqual([outcome(ask, broken, safe) for ask in ("left", "right", "faster", "more")], ["breaks", "holds", "a", "b"])
        self.assertEqual(outcome("more", safe, safe), "equal")
        self.assertEqual(outcome("left", lane(False, 9, 1, oversold=1), safe), "breaks")
        self.assertEqual(read("left", lane(False, 9, 1, lost=1), safe), {"option": "breaks", "figures": "0 second orders, 0 oversold; 1 confirmed order lost"})
        broken["result"]["foreignDeletes"] = 3
        self.assertEqual(read("left", broken, safe)["figures"], "2 second orders, 0 oversold; 3 locks of others deleted")
        safe["result"]["indexRefused"] = 7
        self.assertEqual(read("right", broken, safe)["figures"], "0 second orders, 0 oversold; the unique index refused 7 second orders")
        safe.update(strategy="b")
        safe["result"]["batches"] = [[1, 2], [16, 3]]
        self.assertEqual(read("faster", broken, safe)["figures"], "a: 700 orders a second, b: 500; b: 100 orders in 5 commits")

    def test_a_mission_is_done_only_by_a_run_that_shows_its_point(self):
        page = pure_page()
        lane = lambda elsewhere=False, **more: {"stories": [{"requests": [{"elsewhere": elsewhere}]}], "result": {"report": {
            "orders_per_s": more.pop("per_s", 1), "verdict": {"orders": 5, "duplicates": 0, "oversold": 0, "lost": 0, **more}}}}
        shown = lambda mission, *lanes: page.evaluate("([id, run]) => Missions.isShown(Missions.LIST.find((one) => one.id === id), run)", [mission, {"lanes": lanes}])
        for mission, pair in (("memory", [lane(duplicates=1), lane()]), ("read", [lane(oversold=1), lane()]), ("retry", [lane(orders=3), lane()]),
                              ("lease", [lane(duplicates=1, elsewhere=True), lane()]), ("batch", [lane(), lane(per_s=2)]), ("kill", [lane(lost=1), lane()])):
            self.assertEqual((shown(mission, *pair), shown(mission, lane(), lane())), (True, False), mission)


    def test_a_mission_of_reads_counts_queries(self):
        page = pure_page()
        lanes = lambda *counts: {"lanes": [{"samples": [{"queries": 0}, {"queries": count}]} for count in counts]}
        shown = lambda *counts: page.evaluate("(run) => Missions.isShown(Missions.LIST.find((one) => one.id === 'hotkey'), run)", lanes(*counts))
        self.assertEqual([shown(20, 1), shown(19, 1), shown(20, 2), shown(20, 0)], [True, False, False, False])
        read = lambda ask: page.evaluate("([run, ask]) => Missions.outcomeOf(run, ask)", [lanes(200, 1), ask])
        self.assertEqual([read("leftQueries"), read("rightQueries")], [{"option": "many", "figures": "200 queries"}, {"option": "one", "figures": "1 query"}])
        # A sample is compared with that of a second before, or with the first.
        samples = [{"at": at, "queries": queries} for at, queries in ((0, 0), (0.6, 1), (1.0, 3), (1.7, 8), (2.9, 8))]
        self.assertEqual(page.evaluate("(samples) => HotKey.perSecond(samples, 'queries')", samples), [[0, 0], [0.6, 1], [1, 3], [1.7, 7], [2.9, 0]])


class Refused(BrowserTest):
    allowed_statuses = frozenset({403})

    def test_a_wrong_token_is_reported(self):
        page = self.open("/lab#token=wrong")
        page.locator("#start").click()
        expect(page.locator("#said")).to_contain_text("The admin token is missing or wrong.")
        expect(page.locator("#run-section")).to_be_hidden()

    def test_without_a_token_the_field_for_it_is_below_the_message_of_the_button(self):
        for screen in (self.screen, PHONE_SCREEN):
            page = self.open("/lab", viewport=screen)
            for side in ("left", "right"):
                page.locator(f"input[name=guess-{side}][value=holds]").check()
            for button, message in (("#break", "#break-said"), ("#mission-run", "#mission-said"),
                                    ("#session-ask", "#session-story .said"), ("#start", "#said")):
                page.locator(button).click()
                expect(page.locator(message)).to_have_text("The admin token is missing or wrong.")
                expect(page.locator(message)).to_be_in_viewport(ratio=1)
                expect(page.locator("#token")).to_be_focused()
                # The browser scrolls it into view by whole pixels.
                expect(page.locator("#token")).to_be_in_viewport(ratio=0.9)


class RestartedLab(BrowserTest):
    """A lab of the test's own, whose runs are lost when it is killed."""

    loses_requests = True

    def start_lab(self, port=0):
        command = [os.environ["LOADTEST"], "lab", "--bind", f"127.0.0.1:{port}"]
        lab = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for end in (lab.stdout.close, lab.wait, lab.kill):
            self.addCleanup(end)
        return lab, int(re.search(r"127\.0\.0\.1:(\d+)", lab.stdout.readline())[1])

    def test_a_run_that_was_lost_is_started_again(self):
        lab, port = self.start_lab()
        self.base = f"http://127.0.0.1:{port}"
        page = self.open(LAB)
        page.locator("#slow").check()
        page.locator("#start").click()
        running = page.locator("#run-section[data-state=running]")
        running.wait_for(timeout=RUN_TIMEOUT_MS)
        lab.kill()
        expect(page.locator("#doing")).to_contain_text("does not answer")
        lab.wait()
        self.start_lab(port)
        expect(page.locator("#said")).to_contain_text("no longer kept")
        page.locator("#start").click()
        running.wait_for(timeout=RUN_TIMEOUT_MS)
        page.locator("#stop").click()
        page.locator("#run-section[data-state=stopped]").wait_for(timeout=RUN_TIMEOUT_MS)


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
        page = browser().new_page()
        self.addCleanup(page.close)
        page.goto(url)
        expect(page.locator("nav a[href='/']")).to_be_visible()
        expect(page.locator("nav a[href='/lab']")).to_be_hidden()


if __name__ == "__main__":
    unittest.main()
