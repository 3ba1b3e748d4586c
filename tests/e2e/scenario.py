"""The frame of a scenario: a workspace that is gone afterwards, and the logs if it failed."""
import sys
import unittest

from processes import Workspace
from switch import Switch


class Scenario(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.workspace = Workspace()
        self.addCleanup(self._close)

    def _close(self):
        outcome = self._outcome.result
        # What fails in a subTest is recorded under an object of its own.
        failed = any(getattr(case, "test_case", case) is self
                     for case, _ in outcome.failures + outcome.errors)
        self.workspace.close(show_logs=failed)

    def start_switch(self, *flags):
        return Switch(self.workspace, *flags)

    def assert_nothing_dropped(self, switch, *ports):
        """But for greetings to everybody while nobody else was there."""
        for port in ports:
            drops = switch.drops(port)
            drops.pop(("receive", "no-destination"), None)
            self.assertEqual({}, drops, f"drops of port {port}")


def main():
    # unittest writes to stderr; one stream keeps the order with what a failure prints.
    unittest.main(module="__main__", verbosity=2,
                  testRunner=unittest.TextTestRunner(stream=sys.stdout, verbosity=2))
