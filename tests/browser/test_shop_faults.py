"""The shop page when replies are cut, delayed or refused, and when another tab or another device changes things. What
the page says must stay true, and it must recover by itself."""

import json
import re
import unittest

from playwright.sync_api import expect

from support import PHONE_SCREEN, BrowserTest, Sale, api, phone, sign_in, until

BOUGHT = "You got it"
ORDERS = "**/voucher-order/of/me?*"
ONE_ORDER = re.compile(r"/voucher-order/\d+$")
PURCHASE = "**/voucher-order/seckill/*"


def refusal(status, code, order=None):
    """A reply that the test puts in the place of the service's."""
    body = {"success": False, "errorMsg": code, "code": code, **({"orderId": order} if order else {})}
    headers = {"retry-after": "1"} if status == 503 else {}
    return {"status": status, "headers": headers, "content_type": "application/json", "body": json.dumps(body)}


def unavailable(route):
    route.fulfill(**refusal(503, "UNAVAILABLE"))


class FaultTest(BrowserTest):
    allowed_statuses = frozenset({401})
    loses_requests = True

    def open(self, path, token=None, clock=False, **options):
        """As the base, with the session of `token`, and on request with a clock that the test moves on."""
        kept = [{"origin": self.base, "localStorage": [{"name": "token", "value": token}]}] if token else []
        page = super().open("about:blank", storage_state={"cookies": [], "origins": kept}, **options)
        # Time limits of requests go by the page's clock, which a test may set.
        page.add_init_script("""AbortSignal.timeout = (ms) => {
            const controller = new AbortController();
            setTimeout(() => controller.abort(), ms);
            return controller.signal;
        }""")
        if clock:
            page.clock.install()
        page.goto(path)
        return page

    def buyer(self, sale, clock=False):
        """A page on the sale whose buyer is signed in; returns the page and the session's token."""
        token = sign_in(phone())
        page = self.open(sale.path, token, clock)
        expect(page.locator("#person")).to_contain_text("Signed in as")
        return page, token


class Orders(FaultTest):
    """An order's state on the ticket is the order's state."""

    def test_an_order_cancelled_elsewhere_can_be_bought_again(self):
        page, token = self.buyer(Sale(), clock=True)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        order = api("GET", "/voucher-order/of/me", token=token)["data"][0]["orderId"]
        api("POST", f"/voucher-order/{order}/cancel", token=token)
        page.clock.run_for(5_000)
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        expect(page.locator("#orders .badge")).to_have_text("cancelled")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_an_order_cancelled_in_another_tab_is_seen_at_once(self):
        sale = Sale()
        page, _ = self.buyer(sale)
        other = page.context.new_page()
        self.record_errors(other)
        other.goto(sale.path)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        expect(other.locator("#buy")).to_have_text(BOUGHT)
        other.get_by_role("button", name="Cancel").click()
        other.get_by_role("button", name="Yes, cancel it").click()
        expect(other.locator("#buy")).to_have_text("Buy for ¥80")
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")

    def test_a_paid_order_asks_for_no_payment(self):
        page, _ = self.buyer(Sale())
        page.locator("#buy").click()
        expect(page.locator("#outcome")).to_contain_text("Pay for it")
        page.get_by_role("button", name="Pay").click()
        expect(page.locator("#buy")).to_have_text("You have one")
        expect(page.locator("#outcome")).to_contain_text("paid")
        expect(page.locator("#outcome")).not_to_contain_text("Pay for it")


class Unknown(FaultTest):
    """That no order was seen does not mean that there is none."""

    def hang(self, page):
        """No purchase is answered."""
        page.route(PURCHASE, lambda route: None)
        self.addCleanup(page.unroute_all, behavior="ignoreErrors")

    def test_an_order_whose_look_ups_fail_is_found_when_they_succeed(self):
        page, _ = self.buyer(Sale(), clock=True)
        order = []

        def lose_reply(route):
            order.append(route.fetch().json()["orderId"])
            route.fulfill(**refusal(503, "OUTCOME_UNKNOWN", order[0]))
        page.route(PURCHASE, lose_reply)
        page.route(ONE_ORDER, unavailable)
        page.route(ORDERS, unavailable)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("No reply arrived. Looking up the result…")
        for _ in range(12):
            page.clock.run_for(4_000)
        expect(page.locator("#outcome")).to_contain_text("still not known")
        expect(page.locator("main")).not_to_contain_text("No order")
        page.unroute(ONE_ORDER)
        page.unroute(ORDERS)
        for _ in range(5):
            page.clock.run_for(4_000)
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        expect(page.locator("#outcome")).to_contain_text(order[0])

    def test_an_order_that_lands_late_is_found(self):
        sale = Sale()
        page, token = self.buyer(sale, clock=True)
        page.route(PURCHASE, lambda route: route.abort())
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("No reply arrived. Looking up the result…")
        for _ in range(4):
            page.clock.run_for(4_000)
        expect(page.locator("#outcome")).to_contain_text("still not known")
        sale.buy(token)
        for _ in range(5):
            page.clock.run_for(4_000)
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_a_purchase_that_hangs_says_so_and_is_looked_up(self):
        sale = Sale()
        page, token = self.buyer(sale, clock=True)
        self.hang(page)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("Buying…")
        page.clock.run_for(5_000)
        expect(page.locator("#outcome")).to_contain_text("longer than usual")
        # Bought, and the reply never comes.
        sale.buy(token)
        page.clock.run_for(11_000)
        expect(page.locator("#buy")).to_have_text(re.compile(f"No reply arrived|{BOUGHT}"))
        for _ in range(5):
            page.clock.run_for(4_000)
        expect(page.locator("#buy")).to_have_text(BOUGHT)


    def wait_for(self, page, selector, text):
        """Moves the page's clock on until the page says so."""
        until(lambda: page.clock.run_for(2_000) or text in page.locator(selector).inner_text())

    def test_looking_for_an_order_without_an_id_ends(self):
        page, _ = self.buyer(Sale(), clock=True)
        page.context.set_offline(True)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("No reply arrived. Looking up the result…")
        page.context.set_offline(False)
        self.wait_for(page, "#outcome", "there is no order of yours")
        expect(page.locator("#orders")).to_have_text("No orders yet.")
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_looking_for_an_order_by_its_id_ends_with_what_the_service_says_of_it(self):
        page, _ = self.buyer(Sale(), clock=True)
        # Of 2022: it will never be an order's.
        page.route(PURCHASE, lambda route: route.fulfill(**refusal(503, "OUTCOME_UNKNOWN", "62496928117555201")))
        page.route(ONE_ORDER, unavailable)
        page.locator("#buy").click()
        self.wait_for(page, "#outcome", "still not known")
        # A reload changes nothing, however late.
        page.clock.run_for(180_000)
        page.reload()
        expect(page.locator("#buy")).to_have_text("No reply arrived. Looking up the result…")
        page.unroute(ONE_ORDER)
        self.wait_for(page, "#outcome", "It is certain: there is no such order.")
        page.unroute(PURCHASE)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_a_reload_in_the_middle_of_a_purchase_goes_on_looking_for_its_order(self):
        sale = Sale()
        page, token = self.buyer(sale, clock=True)
        self.hang(page)
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text("Buying…")
        page.reload()
        expect(page.locator("#buy")).to_have_text("No reply arrived. Looking up the result…")
        expect(page.locator("#orders")).to_have_text("Looking for your order…")
        sale.buy(token)
        for _ in range(5):
            page.clock.run_for(4_000)
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_an_order_that_lands_after_the_page_was_loaded_is_found(self):
        sale, token, looks = Sale(), sign_in(phone()), []

        def look(route):
            looks.append(route)
            if len(looks) == 2:
                sale.buy(token)
            route.continue_()
        page = self.open("about:blank", token, clock=True)
        page.route(ORDERS, look)
        page.goto(sale.path)
        for _ in range(3):
            page.clock.run_for(4_000)
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        expect(page.locator("#orders .badge")).to_have_text("unpaid")


class Changes(FaultTest):
    """Paying, cancelling and signing out: what the page says is what happened."""

    def with_an_order(self):
        page, token = self.buyer(Sale(), clock=True)
        page.locator("#buy").click()
        expect(page.locator("#orders .badge")).to_have_text("unpaid")
        return page, token

    def test_an_error_ends_with_the_next_load(self):
        page, _ = self.with_an_order()
        page.route("**/pay", unavailable)
        page.route(ORDERS, unavailable)
        page.get_by_role("button", name="Pay").click()
        expect(page.locator("#orders")).to_contain_text("It was not paid.")
        page.unroute("**/pay")
        page.unroute(ORDERS)
        page.clock.run_for(20_000)
        expect(page.locator("#orders .said")).to_have_count(0)
        page.get_by_role("button", name="Pay").click()
        expect(page.locator("#orders .badge")).to_have_text("paid")

    def test_a_payment_whose_reply_is_lost_is_looked_up(self):
        page, _ = self.with_an_order()

        def lose_reply(route):
            route.fetch()
            route.abort()
        page.route("**/pay", lose_reply)
        page.route(ONE_ORDER, unavailable)
        page.route(ORDERS, unavailable)
        page.get_by_role("button", name="Pay").click()
        expect(page.locator("#orders")).to_contain_text("No reply arrived. Looking up the result…")
        page.unroute(ONE_ORDER)
        page.unroute(ORDERS)
        page.clock.run_for(20_000)
        expect(page.locator("#orders .badge")).to_have_text("paid")
        expect(page.locator("#orders .said")).to_have_count(0)

    def test_a_payment_shows_that_it_is_under_way_and_is_sent_once(self):
        page, _ = self.with_an_order()
        waiting = []
        page.route("**/pay", lambda route: waiting.append(route))
        page.get_by_role("button", name="Pay").click()
        paying = page.get_by_role("button", name="Paying…")
        expect(paying).to_have_attribute("aria-disabled", "true")
        expect(paying).to_be_focused()
        paying.press("Enter")
        page.get_by_role("button", name="Cancel").press("Enter")
        expect(page.get_by_role("button", name="Yes, cancel it")).to_have_count(0)
        self.assertEqual(len(waiting), 1)
        waiting[0].continue_()
        expect(page.locator("#orders .badge")).to_have_text("paid")

    def test_cancelling_asks_first(self):
        page, _ = self.with_an_order()
        page.get_by_role("button", name="Cancel").press("Enter")
        expect(page.locator("#orders")).to_contain_text("Cancel this order?")
        expect(page.get_by_role("button", name="Keep it")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        expect(page.locator("#orders .badge")).to_have_text("unpaid")

    def test_signing_out_goes_on_until_it_is_answered(self):
        page, _ = self.buyer(Sale(), clock=True)
        page.route("**/user/logout", unavailable)
        page.locator("#sign-out").click()
        expect(page.locator("#account")).to_contain_text("You are not signed out yet")
        expect(page.locator("#sign-out")).to_have_text("Signing out…")
        page.unroute("**/user/logout")
        page.clock.run_for(2_000)
        expect(page.locator("#account")).to_contain_text("Signed out.")
        expect(page.locator("#account")).not_to_contain_text("not signed out")

    def test_a_wait_is_counted_down(self):
        page = self.open("/", clock=True)
        page.route("**/user/code?*", lambda route: route.fulfill(**{**refusal(503, "UNAVAILABLE"), "headers": {"retry-after": "30"}}))
        page.locator("input[name=phone]").fill(phone())
        page.locator(".sign-in button[type=submit]").click()
        expect(page.locator("#account .wait")).to_have_text(re.compile(r"Try again in \d+ s"))
        seconds = lambda: int(re.search(r"\d+", page.locator("#account .wait").inner_text())[0])
        before = seconds()
        # The text follows the clock every 250 ms.
        page.clock.run_for(5_250)
        self.assertLessEqual(seconds(), before - 5)
        page.clock.run_for(30_000)
        expect(page.locator("#account .wait")).to_be_empty()

    def test_being_offline_is_said_until_it_is_over(self):
        page, _ = self.buyer(Sale())
        page.context.set_offline(True)
        expect(page.locator("#offline")).to_contain_text("You are offline.")
        page.context.set_offline(False)
        expect(page.locator("#offline")).to_be_hidden()


class Loading(FaultTest):
    """A failed load is said and repeated, and nothing is concluded from it."""

    def recovers(self, pattern, path, selector, says, denied, after, token=None):
        page = self.open("about:blank", token)
        page.route(pattern, unavailable)
        page.goto(path)
        expect(page.locator(selector)).to_contain_text(says)
        expect(page.locator("main")).not_to_contain_text(denied)
        page.unroute(pattern)
        expect(page.locator(after).first).to_be_visible()

    def test_the_categories(self):
        self.recovers("**/shop-type/list", "/", "#shops", "could not be loaded", "No shop", "#shops .choice")

    def test_categories_that_come_after_the_shops(self):
        for path in ["/#type=9", Sale().path]:
            page = self.open("about:blank")
            held = []
            page.route("**/shop-type/list", lambda route: held.append(route))
            page.goto(path)
            expect(page.locator("#sale-title, #sale .notice:has-text('No shop')")).to_be_visible()
            expect(page.locator("#types option")).to_have_count(0)
            held[0].continue_()
            expect(page.locator("#types option")).not_to_have_count(0)

    def test_the_shops(self):
        self.recovers("**/shop/of/type?*", "/", "#shops", "could not be loaded", "No shop", "#shops .choice")

    def test_the_vouchers(self):
        sale = Sale()
        self.recovers("**/voucher/list/*", sale.path, "#sale", "could not be loaded", "no flash sale", "#sale-title")

    def test_the_session(self):
        token = sign_in(phone())
        self.recovers("**/user/me", Sale().path, "#account", "could not be checked", "Sign in with your phone",
                      "#person:has-text('Signed in as')", token)

    def test_the_orders(self):
        sale, token = Sale(), sign_in(phone())
        order = sale.buy(token)["orderId"]
        page = self.open("about:blank", token, clock=True)
        page.route(ORDERS, unavailable)
        page.goto(sale.path)
        expect(page.locator("#orders")).to_contain_text("could not be loaded")
        expect(page.locator("#buy")).to_have_text("Checking your orders…")
        expect(page.locator("main")).not_to_contain_text("No orders yet")
        expect(page.locator("main")).not_to_contain_text("Buy for")
        # A sale does not wait for long: the buyers may buy, and are told what that means.
        page.clock.run_for(6_000)
        expect(page.locator("#buy")).to_have_text("Buy without checking")
        expect(page.locator("#outcome")).to_contain_text("you will not get a second")
        page.locator("#buy").click()
        expect(page.locator("#outcome")).to_contain_text(order)
        page.unroute(ORDERS)
        page.clock.run_for(16_000)
        expect(page.locator("#orders .order-id")).to_have_text(order)
        expect(page.locator("#buy")).to_have_text(BOUGHT)

    def test_stock_that_cannot_be_loaded_again_is_marked_as_old(self):
        page = self.open(Sale().path)
        expect(page.locator("#stock")).to_have_text("10")
        page.route("**/voucher/list/*", unavailable)
        expect(page.locator(".ticket")).to_contain_text("may be out of date")
        page.unroute("**/voucher/list/*")
        expect(page.locator(".ticket")).not_to_contain_text("may be out of date")


class Tabs(FaultTest):
    def test_signing_out_in_one_tab_signs_the_other_out_and_in(self):
        sale = Sale()
        page, _ = self.buyer(sale)
        other = page.context.new_page()
        self.record_errors(other)
        other.goto(sale.path)
        expect(other.locator("#person")).to_contain_text("Signed in as")
        page.locator("#sign-out").click()
        expect(other.locator("#account")).to_contain_text("Signed out")
        expect(other.locator("#buy")).to_have_text("Sign in to buy")
        expect(other.locator("#orders-card")).to_be_hidden()
        self.sign_in(page)
        expect(other.locator("#person")).to_contain_text("Signed in as")
        expect(other.locator("#buy")).to_have_text("Buy for ¥80")


class Address(FaultTest):
    def test_a_pasted_link_is_followed_and_back_returns(self):
        first, second = Sale(title="First"), Sale(title="Second")
        page = self.open(first.path)
        expect(page.locator("#sale-title")).to_have_text("First")
        page.evaluate("hash => { location.hash = hash }", second.path.removeprefix("/"))
        expect(page.locator("#sale-title")).to_have_text("Second")
        page.go_back()
        expect(page.locator("#sale-title")).to_have_text("First")
        page.go_forward()
        expect(page.locator("#sale-title")).to_have_text("Second")

    def test_back_returns_from_a_chosen_voucher(self):
        first = Sale(title="First")
        at = (10, first.shop)
        second = Sale(title="Second", at=at)
        page = self.open(first.path)
        expect(page.locator("#sale-title")).to_have_text("First")
        page.get_by_role("button", name="Second").click()
        expect(page.locator("#sale-title")).to_have_text("Second")
        self.assertIn(f"voucher={second.voucher}", page.url)
        page.go_back()
        expect(page.locator("#sale-title")).to_have_text("First")


    def test_a_category_without_shops_says_so_and_back_returns(self):
        page = self.open(Sale(title="First").path)
        expect(page.locator("#sale-title")).to_have_text("First")
        page.locator("#types").select_option("9")
        expect(page.locator("#sale")).to_have_text("No shop in this category yet.")
        page.go_back()
        expect(page.locator("#sale-title")).to_have_text("First")


class Keyboard(FaultTest):
    """The focus never falls back to the start of the page."""

    def assert_focus(self, page, selector):
        expect(page.locator(selector)).to_be_focused()

    def focused(self, page):
        return page.evaluate("document.activeElement.tagName")

    def test_signing_in_and_out(self):
        page = self.open(Sale().path)
        expect(page.locator("#buy")).to_have_text("Sign in to buy")
        page.locator("#buy").focus()
        page.keyboard.press("Enter")
        self.assert_focus(page, "input[name=phone]")
        page.keyboard.type(phone())
        page.keyboard.press("Enter")
        self.assert_focus(page, "input[name=code]")
        page.keyboard.press("Enter")
        expect(page.locator("#person")).to_contain_text("Signed in as")
        self.assertNotEqual(self.focused(page), "BODY")
        page.locator("#sign-out").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#account")).to_contain_text("Signed out")
        self.assertNotEqual(self.focused(page), "BODY")

    def test_buying_and_paying(self):
        page, _ = self.buyer(Sale())
        expect(page.locator("#buy")).to_be_enabled()
        page.locator("#buy").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        self.assert_focus(page, "#buy")
        page.get_by_role("button", name="Pay").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#orders .badge")).to_have_text("paid")
        self.assert_focus(page, "#orders .order")

    def test_choosing_a_shop_and_a_voucher(self):
        first = Sale(title="First")
        Sale(title="Second", at=(10, first.shop))
        page = self.open(first.path)
        page.get_by_role("button", name="Second").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#sale-title")).to_have_text("Second")
        self.assert_focus(page, "#sale-title")
        other = page.locator("#shops .choice[aria-pressed=false]").first
        other.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#sale-title, #sale .notice").first).to_be_visible()
        self.assertEqual(self.focused(page), "BUTTON")


class SlowLine(FaultTest):
    def test_the_first_screen_needs_few_bytes(self):
        # On a line of 400 kbit/s these are less than a second. Counted, since a time would depend on the machine.
        page = self.open("/")
        expect(page.locator("#shops .choice").first).to_be_visible()
        # Each file once: the browser looks for its icon again whenever the address changes.
        sizes = page.evaluate("""Object.fromEntries(['resource', 'navigation'].flatMap((type) => performance.getEntriesByType(type))
            .filter(({ name }) => /assets|[/]$/.test(name)).reverse().map(({ name, transferSize }) => [name, transferSize]))""")
        self.assertGreater(len(sizes), 5)
        self.assertLess(sum(sizes.values()), 45_000, sizes)


def on_a_phone(tests):
    """The same tests on a phone's screen. Only for the tests that use each control: what a page says when requests fail is the
    same there."""
    return type(f"{tests.__name__}OnAPhone", (tests,), {"screen": PHONE_SCREEN, "__module__": __name__})


globals().update({test.__name__: test for test in map(on_a_phone, [Orders, Keyboard])})


if __name__ == "__main__":
    unittest.main()
