"""The shop page in a real browser."""

import os
import re
import unittest
import urllib.error
import urllib.request
from datetime import datetime, timedelta
from time import sleep, time

from playwright.sync_api import expect

from support import AWAY, PHONE_SCREEN, ZONE, BrowserTest, Sale, api, local, phone, shown_away, sign_in, until


class Shop(BrowserTest):
    def test_signs_in_buys_and_sees_the_order(self):
        sale = Sale(stock=10)
        page = self.open(sale.path)
        expect(page.locator("#sale-title")).to_have_text("100 for 80")
        expect(page.locator("#buy")).to_have_text("Sign in to buy")
        token = self.sign_in(page)
        expect(page.locator("#stock")).to_have_text("10")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")
        order = api("GET", "/voucher-order/of/me", token=token)["data"][0]
        # Above 2^53, where a JavaScript number is not exact.
        self.assertGreater(int(order["orderId"]), 2**53)
        expect(page.locator("#outcome .order-id")).to_have_text(f"Order {order['orderId']}")
        expect(page.locator("#orders .order-id")).to_have_text(order["orderId"])
        expect(page.locator("#stock")).to_have_text("9")
        page.get_by_role("button", name="Pay").click()
        expect(page.locator("#orders .badge")).to_have_text("paid")

    def hold(self, page, path):
        """Holds back the requests whose path matches; returns the list of them, to be continued by the test."""
        requests = []
        page.route(re.compile(path), lambda route: requests.append(route))
        return requests

    def press_twice(self, page, button, requests, says):
        """Presses a button again before its request is answered: that sends no other."""
        button.dblclick()
        expect(page.locator("main")).to_contain_text(says)
        page.keyboard.press("Enter")
        self.assertEqual(len(requests), 1)
        requests[0].continue_()

    def test_two_clicks_are_one_request(self):
        sale = Sale()
        page = self.open(sale.path)
        paths = ("/user/code", "/user/login", "/voucher-order/seckill/", "/cancel")
        held = {path: self.hold(page, path) for path in paths}
        page.locator("input[name=phone]").fill(phone())
        submit = page.locator(".sign-in button[type=submit]")
        self.press_twice(page, submit, held["/user/code"], "Sending…")
        expect(page.locator("input[name=code]")).to_have_value(re.compile(r"^\d{6}$"))
        self.press_twice(page, submit, held["/user/login"], "Signing in…")
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        self.press_twice(page, page.locator("#buy"), held["/voucher-order/seckill/"], "Buying…")
        expect(page.locator("#buy")).to_have_text("You got it")
        page.get_by_role("button", name="Cancel").click()
        self.press_twice(page, page.get_by_role("button", name="Yes, cancel it"), held["/cancel"], "Cancelling…")
        expect(page.locator("#orders .badge")).to_have_text("cancelled")
        # None came later, either.
        for path, requests in held.items():
            self.assertEqual(len(requests), 1, path)

    def test_a_cancelled_order_can_be_bought_again(self):
        page = self.open(Sale(stock=1).path)
        self.sign_in(page)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Yes, cancel it").click()
        expect(page.locator("#orders .badge")).to_have_text("cancelled")
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")

    def test_sold_out_is_shown(self):
        sale = Sale(stock=1)
        page = self.open(sale.path)
        self.sign_in(page)
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        # From here on the page gets no new stock, so the button stays enabled.
        old = page.request.get(f"/voucher/list/{sale.shop}").body()
        page.route("**/voucher/list/*", lambda route: route.fulfill(body=old, content_type="application/json"))
        self.assertTrue(sale.buy(sign_in(phone()))["success"])
        page.locator("#buy").click()
        expect(page.locator("#outcome")).to_contain_text("Sold out.")
        page.unroute("**/voucher/list/*")
        expect(page.locator("#buy")).to_have_text("Sold out")
        expect(page.locator("#stock")).to_have_text("0")

    def test_a_second_order_is_refused_with_the_id_of_the_first(self):
        sale = Sale()
        page = self.open(sale.path)
        token = self.sign_in(page)
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        first = sale.buy(token)["orderId"]
        page.locator("#buy").click()
        # The refusal is followed by the order that it names.
        expect(page.locator("#buy")).to_have_text("You got it")
        expect(page.locator("#outcome")).to_contain_text(first)

    def test_a_pending_order_is_followed_up(self):
        page = self.open(Sale(strategy="stream").path)
        self.sign_in(page)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")
        expect(page.locator("#orders .badge")).to_have_text("unpaid")

    def test_a_sale_begins_by_the_services_clock_when_the_browsers_is_wrong(self):
        page = self.open("/")
        self.sign_in(page)
        page.clock.install(time=datetime.now() - timedelta(hours=3))
        page.goto("about:blank") # the fake clock applies to the next page
        sale = Sale(begins_in=12) # by when the page is open, also on a busy machine
        # A reply tells the service's clock in whole seconds. If the page took it for the middle of that second, and the reply
        # came as the second began, the sale would open half a second too early.
        sleep((0.95 - time()) % 1)
        page.goto(sale.path)
        expect(page.locator("#buy")).to_have_text("Not started yet")
        expect(page.locator(".countdown")).to_contain_text("00:00:0")
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")

    def test_chinese_and_english(self):
        page = self.open(Sale().path, language="zh-CN")
        expect(page.locator("#buy")).to_have_text("登录后抢购")
        page.get_by_role("button", name="English").click()
        expect(page.locator("#buy")).to_have_text("Sign in to buy")
        self.assertEqual(page.evaluate("document.documentElement.lang"), "en")
        page.reload()
        expect(page.locator("#buy")).to_have_text("Sign in to buy")

    def test_fits_a_phone(self):
        page = self.open(Sale().path, viewport=PHONE_SCREEN)
        self.sign_in(page)
        # After signing in, the buyer is where they wanted to go.
        expect(page.locator("#buy")).to_be_focused()
        expect(page.locator("#buy")).to_be_in_viewport(ratio=1)
        # The button is not enabled while the page looks for the buyer's orders.
        expect(page.locator("#buy")).to_be_enabled()
        page.keyboard.press("Enter")
        expect(page.locator("#buy")).to_have_text("You got it")
        self.assert_fits(page)
        page.set_viewport_size({"width": 320, "height": 600})
        self.assert_fits(page)

    def test_the_order_to_pay_is_one_press_away_on_a_phone(self):
        page = self.open(Sale().path, viewport=PHONE_SCREEN)
        self.sign_in(page)
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")
        to_order = page.get_by_role("button", name="To my order")
        expect(to_order).to_be_in_viewport(ratio=1)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Pay")).to_be_in_viewport(ratio=1)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#orders .badge")).to_have_text("paid")
        expect(to_order).to_be_hidden()

    def test_times_are_those_of_the_browsers_zone_which_is_named(self):
        sale = Sale()
        page = self.open(sale.path, timezone_id=AWAY)
        token = self.sign_in(page)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("You got it")
        order = api("GET", "/voucher-order/of/me", token=token)["data"][0]
        ordered = datetime.fromisoformat(order["createTime"]).replace(tzinfo=ZONE)
        expect(page.locator("#orders .order")).to_contain_text(shown_away(ordered))

        ended = datetime.fromisoformat(local(-5)).replace(tzinfo=ZONE)
        sales = page.request.get(f"/voucher/list/{sale.shop}").json()
        sales["data"][0]["endTime"] = ended.strftime("%Y-%m-%dT%H:%M:%S")
        page.route("**/voucher/list/*", lambda route: route.fulfill(json=sales))
        expect(page.locator(".ticket")).to_contain_text(f"Ended on {shown_away(ended)}")

    def test_the_api_is_described_where_a_link_leads(self):
        page = self.open("/")
        page.get_by_role("link", name="API").click()
        expect(page.locator("#order_buy")).to_be_visible()
        page.get_by_role("link", name="Learn").click()
        expect(page.locator("#level-title")).to_be_visible()

    def test_a_link_to_what_is_not_on_sale_says_so(self):
        sale = Sale()
        Sale(at=(10, sale.shop))
        page = self.open(sale.path.replace(f"voucher={sale.voucher}", "voucher=1"))
        expect(page.locator("#wrong-link")).to_contain_text("not on sale here")
        expect(page.locator("#sale-title")).to_have_text("100 for 80")
        page.locator("#vouchers .choice").click()
        expect(page.locator("#wrong-link")).to_be_hidden()
        page.evaluate("location.hash = '#shop=4000000000'")
        expect(page.locator("#shop-name")).to_have_text("There is no such shop.")

    def test_a_link_with_something_else_than_an_id_says_so(self):
        for id in ["Infinity", "one", "1.5", "-1"]:
            with self.subTest(id):
                page = self.open(f"/#type=10&shop={id}")
                expect(page.locator("#shop-name")).to_have_text("There is no such shop.")

    def test_a_link_to_a_voucher_that_is_published_later_shows_it_then(self):
        last = Sale(title="earlier")
        page, named = self.open(last.path), None
        # Other tests publish, too: it is tried until the id in the link is that of this shop's next sale.
        while last.voucher != named:
            named = last.voucher + 1
            page.evaluate(f"location.hash = '#type=10&shop={last.shop}&voucher={named}'")
            expect(page.locator("#wrong-link")).to_contain_text("not on sale here")
            last = Sale(at=(10, last.shop), title="the one of the link")
        expect(page.locator("#sale-title")).to_have_text("the one of the link")
        expect(page.locator("#wrong-link")).to_be_hidden()

    def test_names_without_a_break_fit_every_screen(self):
        for screen in [self.screen, PHONE_SCREEN]:
            shop = Sale.new_shop("w" * 100, address="A" * 255)
            sale = Sale(at=(10, shop), title="W" * 255, subTitle="S" * 255, rules="R" * 1024)
            page = self.open(sale.path, viewport=screen)
            expect(page.locator("#sale-title")).to_have_text("W" * 255)
            page.locator(".ticket summary").click()
            self.assert_fits(page)
            self.assert_is_inside(page, "#buy", ".ticket")
            self.sign_in(page)
            page.locator("#buy").click()
            expect(page.locator("#orders")).to_contain_text("W" * 255)
            self.assert_fits(page)

    def assert_is_inside(self, page, inner, outer):
        """No part of the one is cut off by the other."""
        inner, outer = (page.locator(one).bounding_box() for one in (inner, outer))
        self.assertGreaterEqual(inner["x"], outer["x"])
        self.assertLessEqual(inner["x"] + inner["width"], outer["x"] + outer["width"])

    def test_a_code_can_be_sent_again(self):
        page = self.open(Sale().path)
        page.locator("input[name=phone]").fill(phone())
        page.locator(".sign-in button[type=submit]").click()
        page.locator("input[name=code]").fill("000000")
        page.locator(".sign-in button[type=submit]").click()
        expect(page.locator("#account .said")).to_contain_text("wrong, or it has expired")
        page.get_by_role("button", name="Send another code").click()
        expect(page.locator("input[name=code]")).not_to_have_value("000000")

    def test_what_the_shop_is_and_where_the_lab_is(self):
        page = self.open("/")
        page.locator(".about a").click()
        expect(page.locator("#break")).to_be_enabled()

    def test_a_hostile_title_stays_text(self):
        title = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
        page = self.open(Sale(title=title, shop="<b>bold</b>").path)
        expect(page.locator("#sale-title")).to_have_text(title)
        expect(page.locator("#shop-name")).to_have_text("<b>bold</b>")
        self.sign_in(page)
        page.locator("#buy").click()
        expect(page.locator("#orders")).to_contain_text(title)
        self.assertEqual((page.locator("main img").count(), page.title()), (0, "Flash sale"))


class EndedSession(BrowserTest):
    allowed_statuses = frozenset({401})

    def is_refused(self, node, token):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{node}/user/me", headers={"authorization": token})).close()
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code == 401
        return False

    def test_an_ended_session_asks_to_sign_in_again(self):
        page = self.open(Sale().path)
        token = self.sign_in(page)
        api("POST", "/user/logout", token=token)
        # A node remembers a session for less than a second.
        for node in os.environ["NODES"].split(","):
            until(lambda: self.is_refused(node, token))
        page.locator("#buy").click()
        expect(page.locator("#account")).to_contain_text("You were signed out")
        expect(page.locator("#buy")).to_have_text("Sign in to buy")


class Recording(BrowserTest):
    """The recorded errors can fail a test."""

    def test_a_request_to_another_host_is_recorded_and_refused(self):
        page = self.open("/")
        page.evaluate("fetch('https://example.org/').catch(() => 0)")
        page.evaluate("new Promise((done) => setTimeout(done))")
        self.assertTrue(any("policy" in error for error in self.errors), self.errors)
        self.errors.clear()


if __name__ == "__main__":
    unittest.main()
