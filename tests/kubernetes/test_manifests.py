"""deploy/kubernetes/ against the published schemas of Kubernetes, and against the binary's own settings and defaults."""

import os
import re
import subprocess
import unittest
from pathlib import Path

import kubernetes_validate
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
# The oldest version with `sleep` in preStop, and a current one.
VERSIONS = ("1.30", "1.37")
LABEL = "app.kubernetes.io/name"


def documents(folder):
    """The folder's manifests by kind, each with the labels that the kustomization adds."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    labels = {key: value for one in kustomization.get("labels", []) for key, value in one["pairs"].items()}
    found = {}
    for name in kustomization["resources"]:
        for document in yaml.safe_load_all((folder / name).read_text()):
            document["metadata"].setdefault("labels", {}).update(labels)
            found[document["kind"]] = document
    return kustomization, found


def settings():
    """The settings of `seckill serve` by environment variable: their defaults, or None."""
    text = subprocess.run([os.environ["SECKILL"], "serve", "--help"], check=True, capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"]}).stdout
    return {name: default for name, default in
            re.findall(r"\[env: (\w+)=?\]\n(?:\s+\[default: \"?([^\]\"]*)\"?\])?", text)}


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kustomization, cls.base = documents(FOLDER)
        _, cls.monitoring = documents(FOLDER / "monitoring")
        cls.settings = settings()
        cls.pod = cls.base["Deployment"]["spec"]["template"]
        cls.container = cls.pod["spec"]["containers"][0]

    def test_they_match_the_published_schemas(self):
        for version in VERSIONS:
            for kind, document in self.base.items():
                with self.subTest(f"{kind} in {version}"):
                    kubernetes_validate.validate(document, version, strict=True)

    def test_a_wrong_field_would_be_found(self):
        wrong = yaml.safe_load((FOLDER / "deployment.yaml").read_text())
        wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 40
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)

    def test_every_file_is_part_of_the_kustomization(self):
        self.assertEqual({*self.kustomization["resources"], "kustomization.yaml"},
                         {file.name for file in FOLDER.glob("*.yaml")})

    def test_settings_are_the_binarys(self):
        self.assertGreater(len(self.settings), 20)
        named = {*self.base["ConfigMap"]["data"], *(one["name"] for one in self.container["env"])}
        self.assertEqual(named - set(self.settings), set())
        # The address and the format differ on purpose; the others are shown so that they can be changed.
        for name in ("TIME_ZONE", "TRUSTED_PROXIES"):
            self.assertEqual(self.base["ConfigMap"]["data"][name], self.settings[name])

    def test_secrets_come_by_reference_only(self):
        secrets = {"DATABASE_URL", "REDIS_URL", "ADMIN_TOKEN"}
        self.assertEqual(secrets & set(self.base["ConfigMap"]["data"]), set())
        job = self.base["Job"]["spec"]["template"]["spec"]["containers"][0]
        for one in [*self.container["env"], *job["env"]]:
            self.assertNotIn("value", one)
            if one["name"] in secrets:
                self.assertEqual(one["valueFrom"]["secretKeyRef"],
                                 {"name": "seckill", "key": one["name"].lower().replace("_", "-")})

    def test_the_grace_period_covers_the_drain(self):
        wait = self.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace = self.pod["spec"]["terminationGracePeriodSeconds"]
        drain = float(self.settings["DRAIN_DEADLINE_MS"]) / 1000
        self.assertGreaterEqual(grace, wait + drain + 5)
        # An unready pod is noticed, and its endpoint gone, while it still accepts connections.
        probe = self.container["readinessProbe"]
        self.assertGreaterEqual(wait, probe["periodSeconds"] * probe["failureThreshold"])

    def test_the_probes_are_the_binarys(self):
        limit = re.search(r"PROBE_LIMIT: Duration = Duration::from_secs\((\d+)\)", (ROOT / "src/health.rs").read_text())
        self.assertGreater(self.container["readinessProbe"]["timeoutSeconds"], int(limit[1]))
        paths = {name: self.container[name]["httpGet"]["path"] for name in ("readinessProbe", "livenessProbe", "startupProbe")}
        self.assertEqual(paths, {"readinessProbe": "/health/ready", "livenessProbe": "/health/live", "startupProbe": "/health/live"})
        document = (ROOT / "docs/openapi.json").read_text()
        for path in {*paths.values(), self.monitoring["ServiceMonitor"]["spec"]["endpoints"][0]["path"]}:
            self.assertIn(f'"{path}"', document)

    def test_ports_and_user_are_the_images(self):
        image = (ROOT / "deploy/Dockerfile").read_text()
        port = self.container["ports"][0]
        self.assertIn(f"EXPOSE {port['containerPort']}\n", image)
        self.assertTrue(self.base["ConfigMap"]["data"]["BIND_ADDR"].endswith(f":{port['containerPort']}"))
        for kind in ("Deployment", "Job"):
            user = self.base[kind]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
            self.assertIn(f"--uid {user} ", image)
        self.assertEqual(self.base["Service"]["spec"]["ports"][0]["targetPort"], port["name"])
        self.assertEqual(self.base["NetworkPolicy"]["spec"]["ingress"][0]["ports"], [{"port": port["name"]}])
        self.assertEqual(self.monitoring["ServiceMonitor"]["spec"]["endpoints"][0]["port"],
                         self.base["Service"]["spec"]["ports"][0]["name"])

    def test_every_selector_finds_its_pods(self):
        serve = self.pod["metadata"]["labels"]
        migrate = self.base["Job"]["spec"]["template"]["metadata"]["labels"]

        def matches(selector, labels):
            return selector.items() <= labels.items()

        spread = [one["labelSelector"]["matchLabels"] for one in self.pod["spec"]["topologySpreadConstraints"]]
        for selector in [
            self.base["Deployment"]["spec"]["selector"]["matchLabels"], self.base["Service"]["spec"]["selector"],
            self.base["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"], *spread,
        ]:
            self.assertTrue(matches(selector, serve))
            self.assertFalse(matches(selector, migrate), "a Job's pod is no instance")
        policy = self.base["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        self.assertTrue(matches(policy, serve) and matches(policy, migrate))
        monitor = self.monitoring["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
        self.assertTrue(matches(monitor, self.base["Service"]["metadata"]["labels"]))
        target = self.base["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
        self.assertEqual((target["kind"], target["name"]), ("Deployment", self.base["Deployment"]["metadata"]["name"]))

    def test_the_autoscaler_keeps_within_what_it_documents(self):
        scaler = self.base["HorizontalPodAutoscaler"]["spec"]
        self.assertGreaterEqual(scaler["minReplicas"], 2, "one instance could not be replaced without a gap")
        # Beside those of purchases 8 for reads (the default of --read-connections), 4 for changes, and one for the probe.
        most = (scaler["maxReplicas"] + 1) * (int(self.settings["DATABASE_CONNECTIONS"]) + 8 + 4 + 1)
        # What docs/OPERATIONS.md tells the database to allow.
        self.assertIn(f"{most} connections", (ROOT / "docs/OPERATIONS.md").read_text())


if __name__ == "__main__":
    unittest.main()
