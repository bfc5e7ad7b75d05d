"""The page of the API's document."""

import json
import re
import unittest

from playwright.sync_api import expect

from support import PHONE_SCREEN, BrowserTest, Sale, api, phone, sign_in


class ApiPage(BrowserTest):
    allowed_statuses = frozenset({403})

    def open_operation(self, page, name):
        """Opens an operation; returns its element."""
        operation = page.locator(f"#{name}")
        operation.locator("summary").click()
        return operation

    def test_it_describes_and_sends_requests_and_leads_back(self):
        sale, token = Sale(), sign_in(phone())
        page = self.open("/docs/")
        expect(page.locator(".operation")).not_to_have_count(0)
        shop = self.open_operation(page, "shop_get")
        expect(shop).to_contain_text("SHOP_NOT_FOUND")
        shop.locator("input[name=id]").fill(str(sale.shop))
        shop.get_by_role("button", name="Send").click()
        expect(shop.locator(".said")).to_contain_text("200 in")
        expect(shop.locator("form ~ pre")).to_contain_text("Test shop")

        page.locator("#session").fill(token)
        buy = self.open_operation(page, "order_buy")
        expect(buy).to_contain_text("needs a session")
        buy.locator("input[name=id]").fill(str(sale.voucher))
        buy.get_by_role("button", name="Send").click()
        expect(buy.locator("form ~ pre")).to_contain_text('"success": true')
        reply = buy.locator("form ~ pre").inner_text()
        order = sale.buy(token)["orderId"]
        self.assertIn(f'"data": {order},', reply, "an id must not be rounded")

        publish = self.open_operation(page, "voucher_publish_seckill")
        expect(publish.locator("textarea")).to_have_value(re.compile('"beginTime": "2024-01-01T00:00:00"'))
        publish.get_by_role("button", name="Send").click()
        expect(publish.locator("form ~ pre")).to_contain_text("FORBIDDEN")
        publish.get_by_text("Headers of the reply").click()
        expect(publish).to_contain_text("content-type: application/json")
        page.get_by_role("link", name="Shop").click()
        expect(page.locator("#shops .choice").first).to_be_visible()

    def test_a_link_opens_its_operation_and_the_page_fits_a_phone(self):
        page = self.open("/docs/#order_get", viewport=PHONE_SCREEN, language="zh-CN")
        operation = page.locator("#order_get[open]")
        expect(operation.locator("input[name=orderId]")).to_have_value("62496928117555201")
        expect(operation.locator("summary")).to_be_in_viewport()
        self.assert_fits(page)
        page.get_by_role("button", name="English").click()
        expect(page.locator("#order_get[open]")).to_contain_text("Try it")

    def test_a_request_is_found_copied_and_signed_with_the_token_of_a_login(self):
        number = phone()
        api("POST", f"/user/code?phone={number}")
        page = self.open("/docs/", permissions=["clipboard-read", "clipboard-write"])
        page.locator("#filter").fill("/user/login")
        expect(page.locator("#shop_get")).to_be_hidden()
        login = self.open_operation(page, "user_login")
        body = json.dumps({"phone": number, "code": api("GET", f"/lab/code/{number}")["data"]})
        login.locator("textarea").fill(body)
        login.get_by_role("button", name="Copy as curl").click()
        expect(login).to_contain_text("Copied")
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"),
                         f"curl -i -X POST '{self.base}/user/login' \\\n  -H 'content-type: application/json' \\\n  -d '{body}'")
        login.get_by_role("button", name="Send").click()
        login.get_by_role("button", name="Use this token").click()
        page.locator("#filter").fill("/user/me")
        me = self.open_operation(page, "user_me")
        me.get_by_role("button", name="Send").click()
        expect(me.locator(".said")).to_contain_text("200 in")
        page.locator("#filter").fill("nothing has this")
        expect(page.locator("#filter-said")).to_contain_text("No operation")

    def test_it_is_accessible(self):
        page = self.open("/docs/#order_buy")
        expect(page.locator("#order_buy form")).to_be_visible()
        self.assert_accessible(page)
        # One operation of each group is enough: all are made alike, with the same colours.
        page.locator(".operation:first-of-type").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        expect(page.locator(".operation-body form").last).to_be_visible()
        self.assert_accessible(page, contrast=False)
        dark = self.open("/docs/#order_buy", color_scheme="dark", viewport=PHONE_SCREEN)
        expect(dark.locator("#order_buy form")).to_be_visible()
        self.assert_accessible(dark)


if __name__ == "__main__":
    unittest.main()
