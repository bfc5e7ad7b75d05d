"""The shop page where unpaid orders expire: on an instance, a database and a Redis of its own, as on the stack's the orders
of all tests would."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock
from urllib.parse import urlsplit

from playwright.sync_api import expect

import support
from support import Sale, free_port, until
from test_shop_faults import BOUGHT, ORDERS, FaultTest, unavailable

DATABASE = "seckill_test_browser"
# Time enough to see the countdown.
UNPAID_SECONDS = 12


class Expiry(FaultTest):
    @classmethod
    def setUpClass(cls):
        stack = urlsplit(os.environ["DATABASE_URL"])
        cls.sql(stack, f"DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4")
        cls.addClassCleanup(cls.sql, stack, f"DROP DATABASE {DATABASE}")
        folder = tempfile.mkdtemp(prefix="seckill-browser-")
        cls.addClassCleanup(shutil.rmtree, folder)
        port = free_port()
        cls.start("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder)
        until(lambda: subprocess.run(["redis-cli", "-p", str(port), "PING"], capture_output=True).returncode == 0)
        env = {
            **os.environ, "DATABASE_URL": stack._replace(path=f"/{DATABASE}").geturl(), "REDIS_URL": f"redis://127.0.0.1:{port}/",
            "UNLIMITED_CLIENTS": "127.0.0.0/8", "UNPAID_SECONDS": str(UNPAID_SECONDS), "RUST_LOG": "info",
        }
        for command in ("migrate", "seed"):
            subprocess.run([os.environ["SECKILL"], command], env=env, check=True, capture_output=True)
        instance = cls.start(os.environ["SECKILL"], "serve", "--lab", "--bind", "127.0.0.1:0", env=env, stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(instance.stderr.close)
        line = next(line for line in instance.stderr if "serving" in line)
        cls.base = "http://" + re.search(r"127\.0\.0\.1:\d+", line)[0]
        cls.enterClassContext(mock.patch.object(support, "BASE", cls.base))

    @classmethod
    def start(cls, *command, **options):
        process = subprocess.Popen(command, **{"stdout": subprocess.DEVNULL, **options})
        for end in (process.wait, process.terminate):
            cls.addClassCleanup(end)
        return process

    @staticmethod
    def sql(server, text):
        client = ["mariadb", "--no-defaults", "--protocol=tcp", "-h", server.hostname, "-P", str(server.port), "-u", server.username]
        subprocess.run([*client, "-e", text], env={**os.environ, "MYSQL_PWD": server.password}, check=True)

    def test_the_time_to_pay_is_shown_and_its_end_is_said(self):
        page, _ = self.buyer(Sale(stock=1))
        page.locator("#buy").click()
        expect(page.locator("#buy")).to_have_text(BOUGHT)
        for timer in ("#due", "#orders [role=timer]"):
            expect(page.locator(timer)).to_have_text(re.compile(r"Pay within 00:00:\d\d, or it is cancelled\."))
        # While the page cannot learn that the order is cancelled, it does not ask to pay for it any more.
        page.route(ORDERS, unavailable)
        expect(page.locator("#stock")).to_have_text("1")
        expect(page.locator("#buy")).to_have_text("The time to pay is over.")
        expect(page.locator("#orders [role=timer]")).to_have_text("The time to pay is over.")
        expect(page.locator(".ticket")).not_to_contain_text("Pay for it")
        page.unroute(ORDERS)
        expect(page.locator("#buy")).to_have_text("Buy for ¥80")
        expect(page.locator("#outcome")).to_have_text("Your order was not paid in time, so it was cancelled.")
        expect(page.locator("#orders .badge")).to_have_text("not paid in time")
        page.get_by_role("button", name="中文").click()
        expect(page.locator("#outcome")).to_have_text("你的订单未按时支付，已被取消。")
        # An order that its buyer cancels is only cancelled.
        page.locator("#buy").click()
        page.get_by_role("button", name="取消").click()
        page.get_by_role("button", name="确定取消").click()
        expect(page.locator("#orders .badge").first).to_have_text("已取消")
        expect(page.locator("#outcome")).to_have_text("")


if __name__ == "__main__":
    unittest.main()
