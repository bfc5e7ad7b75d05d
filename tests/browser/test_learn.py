"""The page where the visitor is the scheduler, served and opened as a file, on a desktop's and on a phone's screen."""

import re
import threading
import unittest
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import expect

from support import PHONE_SCREEN, BrowserTest

ROOT = Path(__file__).parents[2]
FILE = f"file://{ROOT / 'web' / 'learn.html'}"
SMALLEST_SCREEN = {"width": 320, "height": 640}
DESKTOP = {"width": 1280, "height": 900}


def end(page, how):
    return page.locator(f".result[data-end={how}]")


def show_all(page):
    """Presses "Next step" to the last one."""
    page.locator("[data-key='board.play']").wait_for()
    page.evaluate("""() => { for (let next; (next = document.querySelector('[data-key="board.play"]'));) next.click(); }""")


def move(page, name):
    return page.locator(f"[data-move='{name}']")


def play_to_the_end(page):
    """Plays one request after the other, which breaks nothing. A proof can be asked for once a schedule is complete."""
    page.evaluate("""() => { for (let step; (step = document.querySelector('.columns [data-move]'));) step.click(); }""")


def prove(page):
    play_to_the_end(page)
    page.locator("[data-key='board.prove']").click()


class Learn(BrowserTest):
    def everywhere(self, level):
        """The page at a level, from a server on a phone, and from a file on a desktop."""
        for path, screen in (("/learn", PHONE_SCREEN), (FILE, DESKTOP)):
            with self.subTest(path=path, screen=screen):
                page = self.open(f"{path}#{level}", viewport=screen)
                expect(page.locator("#level-title")).not_to_be_empty()
                yield page
                self.assert_fits(page)

    def assert_accessible_where_served(self, page):
        # In a file the checker may not load the style sheets.
        if page.url.startswith("http"):
            self.assert_accessible(page)

    def test_a_level_is_won_by_a_violation(self):
        for page in self.everywhere("conditional"):
            expect(move(page, "A")).to_have_count(0)  # the prediction comes first
            page.locator("[data-guess=second-order]").click()
            # Both look and insert before either commits; the second decrement waits for the first commit.
            for name in "ABABA":
                move(page, name).click()
            expect(move(page, "B")).to_have_count(0)
            expect(page.locator("[data-actor=B] .waits")).to_contain_text("waits: A has locked the row")
            for name in "ABB":
                move(page, name).click()
            expect(end(page, "violation")).to_contain_text("you broke it in 8 steps")
            expect(end(page, "violation")).to_contain_text(re.compile(r"Of [\d,]+ interleavings, [\d,]+ break it"))
            expect(page.locator("#result-title")).to_be_focused()
            expect(page.locator("[data-invariant=second-order]")).to_contain_text("Ann has 2 orders")
            expect(page.locator(".guess-was")).to_contain_text("That was right.")
            expect(page.locator("[data-level=conditional]")).to_have_class(re.compile("won"))

    def test_a_level_is_won_by_the_proof(self):
        for page in self.everywhere("row-lock"):
            page.locator("[data-guess=oversold]").click()
            move(page, "A").click()
            expect(page.locator("[data-key='board.prove']")).to_be_disabled()
            prove(page)
            expect(end(page, "proof")).to_contain_text("None breaks it.")
            expect(page.locator(".guess-was")).to_contain_text("That was wrong.")
            page.locator("[data-key='level.next']").click()
            expect(page.locator("#level-title")).not_to_have_text("row-lock")
            expect(page.locator("[data-guess=holds]")).to_be_visible()

    def test_a_level_is_lost_and_shows_how_and_what_the_lab_recorded(self):
        for page in self.everywhere("process-lock-2"):
            self.assert_accessible_where_served(page)
            page.locator("[data-guess=holds]").click()
            board = page.locator(".columns").bounding_box()["y"] + page.evaluate("scrollY")
            prove(page)
            lost = end(page, "lost")
            expect(lost).to_be_visible()
            # The result comes below the board.
            self.assertLess(page.locator(".columns").bounding_box()["y"] + page.evaluate("scrollY"), board + 80)
            steps = int(re.search(r"shortest needs (\d+) steps", lost.inner_text())[1])
            page.locator("[data-key='end.show']").click()
            for _ in range(steps):
                page.locator("[data-key='board.play']").click()
            expect(page.locator("[data-invariant=second-order]")).to_have_class(re.compile("bad"))
            expect(page.locator(".log li")).to_have_count(steps)
            self.assert_accessible_where_served(page)
            expect(lost.locator(".record")).to_contain_text("Recorded by the lab in a run on 2 nodes")
            page.locator("[data-key='record.play']").click()
            show_all(page)
            expect(page.locator("[data-invariant=second-order]")).to_contain_text("Ann has 2 orders")

    def test_the_address_is_the_level_that_is_played(self):
        page = self.open("/learn#process-lock-2")
        expect(page.locator("#level-title")).to_have_text("process-lock")
        page.evaluate("location.hash = '#row-lock'")
        expect(page.locator("#level-title")).to_have_text("row-lock")
        page.locator("[data-level=stream]").click()
        self.assertTrue(page.url.endswith("#stream"), page.url)
        page.go_back()
        expect(page.locator("#level-title")).to_have_text("row-lock")
        page.go_back()
        expect(page.locator("#level-title")).to_have_text("process-lock")
        for nonsense in ["nonsense", ":ABA", "%"]:
            page.evaluate("location.hash = '#row-lock'")
            expect(page.locator("#level")).not_to_contain_text("There is no such level.")
            page.evaluate("hash => { location.hash = hash }", nonsense)
            expect(page.locator("#level")).to_contain_text("There is no such level.")

    def test_the_levels_chip_is_in_view_on_a_phone(self):
        page = self.open("/learn#logical-expiry", viewport=PHONE_SCREEN)
        expect(page.locator("[data-level=logical-expiry]")).to_be_in_viewport(ratio=1)
        page.evaluate("location.hash = '#naive'")
        expect(page.locator("[data-level=naive]")).to_be_in_viewport(ratio=1)

    def test_a_link_carries_a_schedule(self):
        page = self.open(f"{FILE}#naive:ABAAABBB")
        show_all(page)
        expect(page.locator("[data-invariant=oversold]")).to_contain_text("oversold: 2 of 1")
        page.locator("[data-key='board.play-yourself']").click()
        page.locator("[data-guess=oversold]").click()
        page.keyboard.type("abaaabbb")
        # Up to the first move that is not possible.
        page.evaluate("location.hash = '#setnx-lock-lease:AAlease:ABBBBBBBBB'")
        show_all(page)
        expect(page.locator(".log")).to_contain_text("The lease of A’s lock ends")
        expect(page.locator("#level")).to_contain_text("Only the first steps of this link are possible")

    def test_the_link_to_any_point_of_play_is_passed_on(self):
        page = self.open("/learn#conditional", permissions=["clipboard-read", "clipboard-write"])
        link = page.locator("[data-key='share.link']")
        clipboard = lambda: page.evaluate("navigator.clipboard.readText()")
        link.click()
        expect(page.locator(".share")).to_contain_text("Copied.")
        self.assertEqual(clipboard(), f"{self.base}/learn#conditional")
        page.locator("[data-guess=second-order]").click()
        move(page, "A").click()
        expect(page.locator(".share")).not_to_contain_text("Copied.")
        expect(page.locator("[data-key='share.result']")).to_have_count(0)
        move(page, "B").click()
        expect(page).to_have_title("conditional:AB · Flash sale: you are the scheduler")
        link.click()
        expect(page.locator(".share")).to_contain_text("Copied.")
        self.assertEqual(clipboard(), f"{self.base}/learn#conditional:AB")
        # The result, in a line of text.
        page.keyboard.type("abaabb")
        line = "conditional · ABABAABB · Ann has 2 orders"
        expect(page.locator(".result-line")).to_have_text(line)
        page.locator("[data-key='share.result']").click()
        expect(page.locator("#announcement")).to_have_text("Copied.")
        self.assertEqual(clipboard(), line)
        # What was copied leads to the same point.
        other = self.open("/learn#conditional:ABABAABB", language="zh-CN")
        show_all(other)
        expect(other.locator(".result-line")).to_have_text("conditional · ABABAABB · 小安 有 2 个订单")
        expect(other).to_have_title("conditional:ABABAABB · 秒杀：你来当调度器")

    def test_the_link_is_passed_on_without_a_clipboard_too(self):
        page = self.open("/learn#row-lock", viewport=SMALLEST_SCREEN)
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.locator("[data-key='share.link']").click()
        field = page.locator("#share-field")
        expect(field).to_be_focused()
        expect(field).to_have_value(f"{self.base}/learn#row-lock")
        self.assertEqual(field.evaluate("(one) => one.value.slice(one.selectionStart, one.selectionEnd)"), f"{self.base}/learn#row-lock")
        self.assert_fits(page)
        self.assert_accessible(page)
        # The dialog of a device that has one; it may be closed without a choice.
        page.evaluate("() => { navigator.share = async (data) => { shared = data; throw new DOMException('', 'AbortError'); }; }")
        page.locator("[data-guess=holds]").click()
        expect(field).to_be_visible()
        prove(page)
        line = page.locator(".result-line")
        expect(line).to_have_text("row-lock · none of 6 interleavings breaks it")
        page.locator("[data-key='share.result']").click()
        self.assertEqual(page.evaluate("shared"), {"text": line.inner_text(), "url": f"{self.base}/learn#row-lock"})
        expect(field).to_have_count(0)

    def test_each_step_is_announced_in_a_sentence(self):
        page = self.open("/learn#conditional")
        announced = page.locator("#announcement")
        page.locator("[data-guess=second-order]").click()
        for key, sentence in [
            ("a", "A: read stock and orders: stock 2, no order by this buyer"),
            ("b", "B: read stock and orders: stock 2, no order by this buyer"),
            ("u", "The last step is undone."),
            ("b", "B: read stock and orders: stock 2, no order by this buyer"),
        ]:
            page.keyboard.press(key)
            expect(announced).to_have_text(sentence)
        page.keyboard.type("abaabb")
        expect(announced).to_have_text("B: commit: everybody sees it now; reply: ordered; Ann has 2 orders")
        page = self.open("/learn#setnx-lock-lease:AAlease:A", language="zh-CN")
        show_all(page)
        expect(page.locator("#announcement")).to_have_text("A 的锁租期到了: A 的锁没了，而 A 不知道")

    def test_a_damaged_link_is_read_as_far_as_it_goes_and_says_so(self):
        page = self.open("/learn#row-lock")
        for hash, level, said, steps in [
            ("conditional%3AABABAABB", "conditional", None, 8),
            ("setnx-lock-lease:AAlease%3AA", "setnx-lock-lease", None, 3),
            ("conditional:ABABA.", "conditional", "Only the first steps", 5),
            ("conditional:ABxBA", "conditional", "Only the first steps", 2),
            ("conditional:XYZ", "conditional", "steps of this link are not possible", 0),
        ]:
            with self.subTest(hash):
                page.evaluate("hash => { location.hash = hash }", hash)
                expect(page.locator(f"[data-level={level}]")).to_have_attribute("aria-current", "step")
                expect(page.locator("#level > .bad")).to_have_count(1 if said else 0)
                if said:
                    expect(page.locator("#level > .bad")).to_contain_text(said)
                if steps:
                    show_all(page)
                    expect(page.locator(".log li")).to_have_count(steps)
                else:
                    expect(page.locator("[data-guess=holds]")).to_be_visible()
                    expect(page.locator("#level")).not_to_contain_text("That was the last step.")

    def test_each_step_has_its_statement_and_a_line_of_java(self):
        for page in self.everywhere("setnx-unowned"):
            page.locator("[data-guess=second-order]").click()
            first = page.locator("[data-actor=A] li").nth(0)
            lock = "SET lock:setnx-unowned:order:1 101 NX PX 3"
            # On a phone there is no room for it in the columns.
            if page.viewport_size == PHONE_SCREEN:
                expect(first.locator(".statement")).to_be_hidden()
            else:
                expect(first.locator(".statement")).to_have_text(lock)
            move(page, "A").click()
            move(page, "A").click()
            expect(page.locator("[data-actor=B] .statement").nth(0)).to_have_text(lock.replace("101", "102"))
            logged = page.locator(".log .statement")
            expect(logged.nth(0)).to_have_text(lock)
            expect(logged.nth(1)).to_contain_text("START TRANSACTION; INSERT INTO tb_voucher_order (id, user_id, voucher_id) SELECT 101, 1, 7")
            row = page.locator(".lines [data-step=decrement-where] td")
            expect(row.nth(0)).to_have_text("UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id IN (7) AND stock >= 1")
            expect(row.nth(1)).to_contain_text('.gt("stock", 0).update();')
            expect(page.locator(".lines [data-step=commit]")).to_contain_text("COMMIT")
            self.assert_accessible_where_served(page)

    def test_a_phone_of_the_smallest_width_shows_statements_and_chapters(self):
        page = self.open("/learn#stream", viewport=SMALLEST_SCREEN, language="zh-CN")
        page.locator("[data-guess=holds]").click()
        for name in ("A", "N1", "N1"):
            move(page, name).click()
        expect(page.locator(".log")).to_contain_text("VALUES (101, 1, 7)")
        java = page.locator(".lines [data-step=acknowledge] td").nth(1)
        expect(java).to_contain_text("opsForStream().acknowledge(")
        box = java.bounding_box()
        self.assertLess(box["x"] + box["width"], SMALLEST_SCREEN["width"])
        self.assert_fits(page)
        self.assert_accessible(page)

    def test_the_levels_are_in_the_chapters_of_the_course(self):
        page = self.open("/learn", language="zh-CN")
        chapters = page.locator("[data-chapter]")
        expect(chapters).to_have_count(7)
        for chapter, levels in [
            ("误删", ["setnx-unowned", "setnx-unowned-compare", "setnx-lock"]),
            ("看门狗", ["setnx-lock-lease", "reentrant-lock"]),
        ]:
            chips = page.get_by_role("list", name=chapter, exact=True).locator("[data-level]")
            self.assertEqual(chips.evaluate_all("(all) => all.map((one) => one.dataset.level)"), levels)
        self.assertEqual(chapters.locator("[data-level]").count(), page.locator("[data-level]").count())

    def test_what_may_happen_is_named_only_while_it_may(self):
        page = self.open(f"{FILE}#setnx-lock-lease")
        page.locator("[data-guess=holds]").click()
        expect(page.locator("#level")).not_to_contain_text("What may happen")
        move(page, "A").click()
        move(page, "A").click()
        expect(page.locator(".happenings")).to_contain_text("The lease of A’s lock ends")

    def test_it_is_played_by_keyboard_alone_in_chinese_and_remembered(self):
        page = self.open("/learn", language="zh-CN")
        expect(page.locator("#learn-heading")).to_have_text("你来当调度器")
        page.locator("[data-guess=oversold]").focus()
        page.keyboard.press("Enter")
        expect(move(page, "A")).to_be_focused()
        page.keyboard.press("a")
        page.keyboard.press("u")
        expect(page.locator(".log li")).to_have_count(0)
        page.keyboard.type("abaaabbb")
        expect(end(page, "violation")).to_contain_text("通过")
        page.reload()
        expect(page.locator("[data-level=naive]")).to_have_class(re.compile("won"))
        page.locator("[data-language=en]").click()
        expect(page.locator("#learn-heading")).to_have_text("You are the scheduler")

    def test_every_level_is_finished_and_has_its_texts(self):
        page = self.open(FILE)
        count = page.locator("[data-level]").count()
        for at in range(count):
            page.locator("[data-level]").nth(at).click()
            page.locator("[data-guess=holds]").click()
            prove(page)
            result = page.locator(".result")
            result.wait_for()
            if page.locator("[data-key='end.show']").count():
                page.locator("[data-key='end.show']").click()
                show_all(page)
            # Each level of the sale ends with what real servers did.
            if page.locator("[data-invariant=oversold]").count():
                expect(page.locator(".record tbody tr").first).to_be_visible()
            # A text that is missing shows its key.
            self.assertNotRegex(page.locator("#level").inner_text(), r"\b(move|said|waits|event|given|note|trace|answer|table|helper|guess|end|invariant|cached|lines|share|buyer)\.[a-z]")
        expect(page.locator(".result")).to_contain_text(f"of {count} levels won")

    def test_a_level_about_the_cache_is_won(self):
        for page in self.everywhere("delete-then-update"):
            expect(page.locator(".given")).to_contain_text("at first the cache has v1, the database v1")
            page.locator("[data-guess=stale]").click()
            # The reader loads between the deletion and the change, and stores after both.
            page.keyboard.type("baaba")
            expect(end(page, "violation")).to_contain_text("you broke it in 5 steps")
            expect(page.locator("[data-invariant=stale]")).to_have_text("✗ the cache keeps v1, the database has v2")
            expect(page.locator(".guess-was")).to_contain_text("That was right.")
            expect(page.locator(".log .statement").nth(3)).to_have_text("UPDATE tb_shop SET name = 'v2' WHERE id = 1")
            expect(page.locator(".result-line")).to_contain_text("delete-then-update · BAABA · ")
            self.assert_accessible_where_served(page)

    def test_a_request_that_finds_the_mutex_held_sleeps_and_reads_the_cache_again(self):
        page = self.open(f"{FILE}#mutex-1", language="zh-CN")
        page.locator("[data-guess=loads]").click()
        page.keyboard.type("aabb")
        expect(page.locator("[data-actor=B] .waits")).to_contain_text("等待：A 持有锁")
        # C misses before A has stored, and gets the lock after A: the second load.
        page.keyboard.type("caaacc")
        expect(end(page, "violation")).to_contain_text("通过")
        expect(page.locator("[data-invariant=loads]")).to_contain_text("查库 2 次：最多 1 次")
        # Under the lock, it has to read the cache again.
        page.locator("[data-key='level.next']").click()
        page.locator("[data-guess=holds]").click()
        prove(page)
        expect(end(page, "proof")).to_be_visible()

    def test_a_confirmed_order_is_lost_with_its_node(self):
        for page in self.everywhere("memory-queue"):
            page.locator("[data-guess=lost]").click()
            move(page, "A").click()
            expect(page.locator(".happenings")).to_have_count(0)
            move(page, "A").click()
            expect(page.locator("[data-actor=A] [data-reply=ORDERED]")).to_have_text("ordered")
            expect(page.locator("[data-invariant=lost]")).to_contain_text("no confirmed order lost")
            move(page, "kill:N1").click()
            expect(end(page, "violation")).to_contain_text("you broke it in 3 steps")
            expect(page.locator("[data-invariant=lost]")).to_contain_text("lost: 1 confirmed order")
            expect(page.locator("[data-actor=A] [data-reply=ORDERED]")).to_have_text("told “ordered”, and lost")
            expect(page.locator(".guess-was")).to_contain_text("That was right.")
            record = page.locator(".record")
            expect(record).to_contain_text("both buyers were told “ordered” before anything was written")
            for one in ("queued in memory", "its node is killed: the order is gone", "written by the worker"):
                expect(record.locator("tbody")).to_contain_text(one)
            page.locator("[data-key='record.play']").click()
            show_all(page)
            expect(page.locator(".log")).to_contain_text("is killed with its node")
            expect(page.locator("[data-invariant=lost]")).to_have_class(re.compile("bad"))

    def test_a_level_of_a_foreign_delete_ends_with_a_recording_of_one(self):
        for level in ("setnx-unowned", "setnx-unowned-compare"):
            page = self.open(f"{FILE}#{level}")
            page.locator("[data-guess=second-order]").click()
            prove(page)
            record = page.locator(".record")
            for one in ("on 2 nodes", "its finally deletes B’s lock"):
                expect(record).to_contain_text(one)
            # In the columns of A, B and C: A has no order, B and C have one each, and only A's DEL came between their locks.
            rows = [row.locator("td").all_inner_texts() for row in record.locator("tbody tr").all()]
            column = lambda at: [row[at] for row in rows if row[at]]
            self.assertEqual(column(0)[-1], "reply: failed")
            self.assertIn("rolled back", column(0))
            self.assertEqual([column(at)[-1] for at in (1, 2)], ["reply: ordered"] * 2)
            moment = lambda at, text: next(number for number, row in enumerate(rows) if row[at] == text)
            self.assertLess(moment(1, "locked"), moment(0, "deletes the lock of another"))
            self.assertLess(moment(0, "deletes the lock of another"), moment(2, "locked"))
            self.assertLess(moment(2, "locked"), moment(1, "committed"))
            page.locator("[data-key='record.play']").click()
            show_all(page)
            log = page.locator(".log")
            for one in ("its order is gone", "deletes the lock of B!"):
                expect(log).to_contain_text(one)
            expect(page.locator("[data-invariant=second-order]")).to_contain_text("Ann has 2 orders")

    def test_a_recording_says_what_each_step_came_to(self):
        page = self.open(FILE)
        for level, *said in [
            ("row-lock", "row locked · stock", "has an order"),
            ("process-lock-1", "has an order: nothing inserted"),
            ("setnx-lock-lease", "unique index refuses the insert", "while locks expired early"),
            ("reentrant-lock", "unique index refuses the insert"),
            ("stream", "admitted by the script", "refused by the script", "written by the consumer"),
            ("group-commit", "in a commit, not inserted", re.compile("committed, [0-9]+ orders at once|committed alone")),
            ("unit-rows", "inserted, unit claimed", "has an order: nothing inserted"),
        ]:
            page.locator(f"[data-level={level}]").click()
            page.locator("[data-guess=holds]").click()
            prove(page)
            for one in said:
                expect(page.locator(".record")).to_contain_text(one)


class StaticHost(BrowserTest):
    """The folder web/ as it is, below a path of a server that knows nothing of it."""

    def setUp(self):
        super().setUp()
        handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=ROOT))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.base = f"http://127.0.0.1:{server.server_port}"

    def test_a_level_is_played(self):
        page = self.open("/web/learn.html#naive")
        page.locator("[data-guess=oversold]").click()
        page.keyboard.type("abaaabbb")
        expect(end(page, "violation")).to_be_visible()
        expect(page.locator(".record")).to_contain_text("Recorded by the lab")
        # Nothing leads to pages that are not there.
        expect(page.locator("nav.served-only")).to_be_hidden()
        self.assertEqual(page.locator("a[href^='/']:visible").count(), 0)


if __name__ == "__main__":
    unittest.main()
