"""The pages in place of an error: while no instance answers, and at an address that leads nowhere. Behind an nginx of its own
with the shipped configuration, as the stack's instances must live."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from playwright.sync_api import expect

from support import BrowserTest, free_port, until

ROOT = Path(__file__).parents[2]


class Unavailable(BrowserTest):
    allowed_statuses = frozenset({404})

    def start(self, *command, **options):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
        for end in (process.wait, process.terminate):
            self.addCleanup(end)

    def start_nginx(self, instance):
        """nginx before one instance and no lab; returns its address."""
        port = free_port()
        folder = Path(tempfile.mkdtemp(prefix="seckill-browser-"))
        self.addCleanup(shutil.rmtree, folder)
        values = {
            "NGX_LISTEN": f"127.0.0.1:{port}", "NGX_ONE": instance, "NGX_TWO": instance, "NGX_LAB": "127.0.0.1:1",
            "NGX_FILES": "1024", "NGX_CONNECTIONS": "256",
        }
        text = (ROOT / "deploy/nginx.conf").read_text()
        (folder / "nginx.conf").write_text(re.sub(r"\$\{(NGX_\w+)\}", lambda name: values[name[1]], text))
        (folder / "web").symlink_to(ROOT / "web")
        self.start("nginx", "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; master_process off;")
        with socket.socket() as client:
            until(lambda: client.connect_ex(("127.0.0.1", port)) == 0)
        return f"http://127.0.0.1:{port}"

    def test_the_page_that_was_opened_is_shown_as_soon_as_an_instance_answers(self):
        instance = f"127.0.0.1:{free_port()}"
        self.base = self.start_nginx(instance)
        page = self.open("/learn#level=1")
        expect(page.locator("h1")).to_have_text("The service does not answer.")
        expect(page.locator("[lang=zh-CN]")).to_contain_text("服务没有响应")
        self.assert_accessible(page)
        self.assert_fits(page)
        self.start(os.environ["SECKILL"], "serve", "--bind", instance)
        expect(page.locator("nav a[aria-current=page]")).to_have_text("Learn")
        page.goto("/no/such/page")
        expect(page.locator("h1")).to_have_text("There is nothing at this address.")
        self.assert_accessible(page)
        page.get_by_role("link", name="去商店").click()
        expect(page.locator("#shops .choice").first).to_be_visible()
        # nginx's own.
        page.goto("/metrics")
        expect(page.locator("h1")).to_have_text("There is nothing at this address.")


if __name__ == "__main__":
    unittest.main()
