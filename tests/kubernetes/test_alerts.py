"""deploy/prometheus/ by Prometheus' own tool: which alerts fire in which state; and docs/OPERATIONS.md, which names them."""

import re
import subprocess
import unittest
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
SCENARIOS = Path(__file__).with_name("alerts.yml")


def rules():
    """The rules by name."""
    found = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in found}


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Alerts(unittest.TestCase):
    def test_each_state_has_its_alerts_and_no_other(self):
        status, said = promtool("test", "rules", SCENARIOS)
        self.assertEqual(status, 0, said)

    def test_every_alert_is_seen_to_fire_and_in_its_state_only(self):
        scenarios = yaml.safe_load(SCENARIOS.read_text())["tests"]
        fired = {label for scenario in scenarios for one in scenario["promql_expr_test"]
                 for sample in one["exp_samples"] for label in re.findall(r'alertname="(\w+)"', sample["labels"])}
        self.assertEqual(fired, set(rules()))

    def test_prometheus_takes_the_configuration(self):
        status, said = promtool("check", "config", ROOT / "deploy" / "prometheus" / "prometheus.yml")
        self.assertEqual(status, 0, said)

    def test_every_reply_of_a_failure_has_an_alert_or_a_reason_why_none(self):
        text = (ROOT / "docs" / "OPERATIONS.md").read_text()
        table = re.search(r"## Replies when something fails\n\n(.*?)\n\n", text, re.DOTALL)[1]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        header, _, *states = rows
        self.assertEqual(header[-1], "alert")
        for state in states:
            with self.subTest(state[0]):
                named = re.findall(r"`([A-Z][a-z]\w+)`", state[-1])
                self.assertTrue(named or state[-1].startswith("none: "), state[-1])
                self.assertLessEqual(set(named), set(rules()))


if __name__ == "__main__":
    unittest.main()
