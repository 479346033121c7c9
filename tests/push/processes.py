"""Service processes of these tests: with the handlers of `tests.push.service`, over plain HTTP."""

import subprocess
import sys

from tests.kill.world import ROOT, ServiceProcess


class PushService(ServiceProcess):
    """One service process that also knows the handlers of the tests."""

    @property
    def endpoint(self) -> str:
        return f"{self.url}/push/pubsub"

    def spawn(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.push.service"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
