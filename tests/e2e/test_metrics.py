"""The metrics endpoint, as Prometheus sees it."""
import subprocess
import threading

from processes import find_tool
from scenario import Scenario, main

EXPECTED_FAMILIES = [
    "vswitch_build_info",
    "vswitch_port_info",
    "vswitch_port_receive_packets_total",
    "vswitch_port_receive_bytes_total",
    "vswitch_port_transmit_packets_total",
    "vswitch_port_transmit_bytes_total",
    "vswitch_dropped_packets_total",
    "vswitch_virtqueue_available_descriptors",
    "vswitch_guest_notifications_total",
    "vswitch_worker_cpu_seconds_total",
    "vswitch_fdb_entries",
]


class Metrics(Scenario):
    def test_promtool_has_nothing_to_say(self):
        switch = self.start_switch()
        switch.create_bridge()
        switch.create_port("p0")
        result = subprocess.run(
            [find_tool("promtool", ".cache/tools/promtool"), "check", "metrics"],
            input=switch.scrape(), capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((0, ""), (result.returncode, result.stdout + result.stderr))

    def test_every_family_is_described(self):
        switch = self.start_switch()
        switch.create_bridge()
        switch.create_port("p0")
        text = switch.scrape()
        for family in EXPECTED_FAMILIES:
            self.assertIn(f"# HELP {family} ", text)
            self.assertIn(f"# TYPE {family} ", text)
        self.assertIn('port="p0"', text)

    def test_a_deleted_port_is_gone_at_once(self):
        switch = self.start_switch()
        switch.create_bridge()
        switch.create_port("p0")
        self.assertIn('port="p0"', switch.scrape())
        switch.control("delete", "port", "p0")
        self.assertNotIn('port="p0"', switch.scrape())

    def test_scrapes_from_the_first_moment(self):
        """Scraped without a pause while the process starts, works and stops."""
        switch = self.start_switch()
        switch.create_bridge()
        for number in range(30):
            switch.create_port(f"p{number}")
        switch.kill()
        done = threading.Event()
        answers = []

        def scrape():
            while not done.is_set():
                try:
                    answers.append(switch.scrape())
                except OSError:
                    # Nobody listens yet, or no more.
                    done.wait(0.01)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        try:
            switch.start()
            for number in range(30):
                switch.control("delete", "port", f"p{number}")
            self.assertEqual(0, switch.stop())
        finally:
            done.set()
            scraper.join()
        self.assertTrue(answers)
        self.assertTrue(all(text.startswith("# HELP") for text in answers))


if __name__ == "__main__":
    main()
