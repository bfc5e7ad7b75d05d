"""Base of the browser tests: the running stack, one browser for all tests, and pages whose requests, console errors and policy
violations are recorded. A test fails if its pages contacted another host or logged an error. Each test prints how long it took."""

import atexit
import functools
import json
import os
import random
import re
import socket
import time
import unittest
import urllib.request
from datetime import datetime, timedelta
from urllib.parse import urlsplit
from pathlib import Path
from zoneinfo import ZoneInfo

import axe_playwright_python
from playwright.sync_api import expect, sync_playwright

BASE = os.environ["TARGETS"].split(",")[0]
ADMIN_TOKEN = os.environ["ADMIN_TOKEN"]
ZONE = ZoneInfo(os.environ.get("TIME_ZONE", "Asia/Shanghai"))
# The browser itself must not contact another host either.
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
] + (["--no-sandbox"] if os.geteuid() == 0 else [])
# The category of the tests' shops; the seed has no shop in it.
CATEGORY = 10
# A time zone that is not the service's, for browsers.
AWAY = "America/New_York"
# How long a page may take to show something, ms.
TIMEOUT_MS = 15_000
expect.set_options(timeout=TIMEOUT_MS)
# The checker of accessibility, axe-core. It is evaluated in the page, as the page's policy does not let it be loaded.
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
PHONE_SCREEN = {"width": 390, "height": 844}


def api(method, path, body=None, token=None, admin=False):
    """Sends a request without a browser, and again while the service says that nothing was done; returns the reply's envelope."""
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = token
    if admin:
        headers["x-admin-token"] = ADMIN_TOKEN
    data = json.dumps(body).encode() if body is not None else b"" if method == "POST" else None
    request = urllib.request.Request(BASE + path, data, headers, method=method)
    until = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as refused:
            if refused.code != 503 or json.load(refused)["code"] != "UNAVAILABLE" or time.monotonic() > until:
                raise
            time.sleep(int(refused.headers["retry-after"]))


def phone():
    """A phone number that is very likely unused."""
    return f"198{random.randrange(10**8):08}"


def sign_in(number):
    """Signs in without a browser; returns the token."""
    api("POST", f"/user/code?phone={number}")
    code = api("GET", f"/lab/code/{number}")["data"]
    return api("POST", "/user/login", {"phone": number, "code": code})["data"]


def local(seconds_from_now):
    """A local date-time in the service's zone."""
    at = datetime.now(ZONE) + timedelta(seconds=seconds_from_now)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def shown_away(moment):
    """A moment as the English pages show it in the zone AWAY."""
    at = moment.astimezone(ZoneInfo(AWAY))
    return f"{at:%b} {at.day}, {at:%Y, %H:%M:%S %Z}"


class Sale:
    """A flash sale, in a shop of its own unless one is named."""

    def __init__(self, stock=10, strategy="reentrant-lock", begins_in=-60, title="100 for 80", shop="Test shop", at=None, **more):
        category, self.shop = at or (CATEGORY, self.new_shop(shop))
        sale = {
            "shopId": self.shop, "title": title, "subTitle": "All week", "payValue": 8000, "actualValue": 10000,
            "stock": stock, "beginTime": local(begins_in), "endTime": local(86400), "strategy": strategy, **more,
        }
        self.voucher = api("POST", "/voucher/seckill", sale, admin=True)["data"]
        self.path = f"/#type={category}&shop={self.shop}&voucher={self.voucher}"

    @staticmethod
    def new_shop(name, address="1 Test Road"):
        shop = {"name": name, "typeId": CATEGORY, "address": address, "x": 120.1, "y": 30.3}
        return api("POST", "/shop", shop, admin=True)["data"]

    def buy(self, token):
        """Buys without a browser; returns the envelope."""
        return api("POST", f"/voucher-order/seckill/{self.voucher}", token=token)


@functools.cache
def browser():
    """The browser; each test has contexts of its own in it."""
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    return playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=FLAGS)


def until(condition):
    """Waits for a condition that no page shows."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "it does not come"
        time.sleep(0.05)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class BrowserTest(unittest.TestCase):
    """A test with pages. `allowed_statuses` are error statuses that the test provokes: the browser logs each as a
    console error. A 503 to a read is no error: a busy machine refuses reads so, and every page repeats them."""

    allowed_statuses = frozenset()
    # Whether the test lets requests fail, or the page gives up some: the browser logs each.
    loses_requests = False
    screen = {"width": 1280, "height": 900}
    base = BASE

    def run(self, result=None):
        begun = time.monotonic()
        super().run(result)
        print(f"{time.monotonic() - begun:6.1f} s  {self.id()}", flush=True)

    def setUp(self):
        self.errors = []

    def tearDown(self):
        self.assertEqual(self.errors, [])

    def open(self, path, language="en-US", **options):
        """A recorded page in a new browser context; without transitions, as no test means to see the colours in between."""
        options = {"viewport": self.screen, "base_url": self.base, "reduced_motion": "reduce", **options}
        context = browser().new_context(locale=language, **options)
        self.addCleanup(context.close)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI))")
        page = context.new_page()
        self.record_errors(page)
        page.goto(path)
        return page

    def record_errors(self, page):
        def console(message):
            if message.type != "error":
                return
            provoked = any(f"status of {status}" in message.text for status in self.allowed_statuses | {503})
            if not provoked and not (self.loses_requests and "net::ERR_" in message.text):
                self.errors.append(f"console: {message.text}")

        def request(request):
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob", "file") and f"{parts.scheme}://{parts.netloc}" != self.base:
                self.errors.append(f"another host: {request.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("request", request)

    def sign_in(self, page, number=None):
        """Signs in by the form; returns the session's token."""
        page.locator("input[name=phone]").fill(number or phone())
        page.locator(".sign-in button[type=submit]").click()
        # The lab shows the code and fills it in.
        expect(page.locator("input[name=code]")).to_have_value(re.compile(r"^\d{6}$"))
        page.locator(".sign-in button[type=submit]").click()
        page.locator("#sign-out").wait_for()
        return page.evaluate("localStorage.getItem('token')")

    def assert_fits(self, page):
        """The page does not scroll horizontally."""
        width, screen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, screen)

    def assert_accessible(self, page, contrast=True):
        """axe finds nothing serious in the page as it is now. The contrast of colours, which takes most of the time, can be left
        out."""
        page.evaluate(AXE)
        found = page.evaluate("(enabled) => axe.run({ resultTypes: ['violations'], rules: { 'color-contrast': { enabled } } })", contrast)["violations"]
        serious = [f"{one['id']}: {', '.join(str(node['target']) for node in one['nodes'][:3])} ({len(one['nodes'])})"
                   for one in found if one["impact"] in ("serious", "critical")]
        self.assertEqual(serious, [], page.url)
