"""The findings of ``millstream doctor``, for given values and on this machine."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
from rich.console import Console

from millstream.edge.cli.doctor import brokers, doctor_report, machine
from millstream.edge.cli.doctor.finding import Finding, Inquiry
from millstream.edge.cli.doctor.probe import existing_part
from millstream.testing import EmbeddedKafka
from millstream.testing.kafka import KAFKA_VERSION


def inquiry(tmp_path: Path, servers: str | None = None, topics: tuple[str, ...] = ()) -> Inquiry:
    return Inquiry(servers, topics, tmp_path / "state", {}, timeout_s=1.0)


class TestPython:
    def test_must_be_version_3_11_or_newer(self) -> None:
        assert machine.python_finding((3, 11, 0)).ok
        assert machine.python_finding((3, 10, 18)) == Finding(
            "Python", False, "3.10.18", "create the environment with Python 3.11 or newer"
        )


class TestPackages:
    def test_are_read_from_the_metadata_including_the_spark_extra(self) -> None:
        lines = ["pyspark>=4.2; extra == 'spark'", "pandas<3,>=2.2", "rich>=13.9; extra == 'cli'", "lmdb"]
        lines += ["here>=1; python_version >= '3'", "elsewhere; python_version < '3'"]

        expected = [("pyspark", ">=4.2"), ("pandas", "<3,>=2.2"), ("lmdb", ""), ("here", ">=1")]
        assert machine.requirements(lines) == expected

    @pytest.mark.parametrize(
        ("found", "limits", "fits"),
        [
            ("4.2.0", ">=4.2", True),
            ("4.10.0", ">=4.2", True),
            ("4.2.0.dev3", ">=4.2", False),
            ("4.3.0rc1", ">=4.2", True),
            ("2.3.1", ">=2.2,!=2.3.1", False),
            ("3.0", "~=2.2", False),
            ("4.1.9", ">=4.2", False),
            ("2.2", "<3,>=2.2", True),
            ("3.0.0", "<3,>=2.2", False),
            ("anything", "", True),
            ("anything", ">=1", False),
        ],
    )
    def test_must_satisfy_their_version_limits(self, found: str, limits: str, fits: bool) -> None:
        assert machine.satisfies(found, limits) == fits

    def test_that_are_too_old_or_missing_are_reported_with_a_pip_command(self) -> None:
        old, missing = (
            machine.package_finding("lmdb", ">=99"),
            machine.package_finding("no-such-package", ">=1"),
        )

        assert not old.ok
        assert old.fix.endswith("-m pip install 'lmdb>=99'")
        assert (missing.ok, missing.detail) == (False, "not installed")
        assert missing.fix.endswith("-m pip install 'no-such-package>=1'")

    def test_of_this_environment_are_ok(self, tmp_path: Path) -> None:
        findings = machine.check_packages(inquiry(tmp_path))

        assert {"pyspark", "pandas", "protobuf", "pyarrow", "confluent-kafka", "lmdb"} <= {
            f.name for f in findings
        }
        assert [finding for finding in findings if not finding.ok] == []


class TestJava:
    def test_that_is_missing_is_reported_with_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

        finding = machine.check_java(inquiry(tmp_path))

        assert not finding.ok
        assert finding.detail == f"no Java found (JAVA_HOME is {tmp_path})"
        assert finding.fix.startswith("Install Java 17 or newer")

    def test_that_is_too_old_is_reported(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

        finding = machine.check_java(inquiry(tmp_path))

        assert not finding.ok
        assert finding.detail == f"{java} (JAVA_HOME is {tmp_path}) is Java 11, too old for Kafka"
        assert finding.fix.startswith("Install Java 17 or newer")

    def test_is_shown_with_its_version_even_if_it_prints_other_lines(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(
            "#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dpassword=x' >&2\necho 'openjdk version \"21.0.2\"' >&2\n"
        )
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

        assert machine.check_java(inquiry(tmp_path)).detail == f'openjdk version "21.0.2" ({java})'


class TestMemory:
    def test_must_be_at_least_two_gibibytes_if_it_is_known(self) -> None:
        assert machine.memory_finding(2 << 30).ok
        assert not machine.memory_finding((2 << 30) - 1).ok
        assert machine.memory_finding(None).ok

    def test_of_a_container_is_limited_by_its_cgroup(self, tmp_path: Path) -> None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8000 kB\n")
        assert machine.available_memory(tmp_path) == 8_000 * 1024

        cgroup = tmp_path / "sys/fs/cgroup"
        cgroup.mkdir(parents=True)
        (cgroup / "memory.current").write_text("1000\n")
        (cgroup / "memory.max").write_text("max\n")
        assert machine.available_memory(tmp_path) == 8_000 * 1024

        (cgroup / "memory.max").write_text("5000\n")
        assert machine.available_memory(tmp_path) == 4_000


class TestStateDirectory:
    def test_is_neither_created_nor_changed_by_the_checks(self, tmp_path: Path) -> None:
        question = inquiry(tmp_path)

        assert machine.check_disk(question).ok
        assert machine.check_lmdb_file(question).ok
        assert list(tmp_path.iterdir()) == []

    def test_below_a_file_is_checked_at_the_nearest_existing_directory(self, tmp_path: Path) -> None:
        (tmp_path / "state").write_text("a file")

        assert existing_part(tmp_path / "state" / "deeper") == tmp_path

    def test_with_little_space_is_a_problem(self, tmp_path: Path) -> None:
        assert machine.disk_finding(tmp_path, 1 << 30).ok
        assert "MILLSTREAM_STATE_DIR" in machine.disk_finding(tmp_path, 1).fix


class TestLoopback:
    def test_works_on_this_machine(self, tmp_path: Path) -> None:
        assert [finding.ok for finding in machine.check_loopback(inquiry(tmp_path))] == [True, True, True]

    def test_without_localhost_is_reported_with_the_line_to_add(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def unknown(name: str) -> str:
            raise OSError("Name or service not known")

        monkeypatch.setattr(socket, "gethostbyname", unknown)
        localhost, own_name, ports = machine.check_loopback(inquiry(tmp_path))

        assert (localhost.ok, own_name.ok, ports.ok) == (False, False, True)
        assert localhost.fix == "add the line '127.0.0.1 localhost' to /etc/hosts"
        assert own_name.fix.endswith("SPARK_LOCAL_IP=127.0.0.1")


class TestBrokers:
    def test_are_required_only_if_topics_are_given(self, tmp_path: Path) -> None:
        assert brokers.check_brokers(inquiry(tmp_path)) == []
        assert not brokers.check_brokers(inquiry(tmp_path, topics=("a",)))[0].ok

    def test_that_do_not_answer_are_reported_with_the_reason(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        [finding] = brokers.check_brokers(inquiry(tmp_path, f"127.0.0.1:{port}", ("a",)))

        assert not finding.ok
        assert "Connection refused" in finding.detail
        assert f"start a broker at 127.0.0.1:{port}" in finding.fix

    def test_that_advertise_unreachable_addresses_have_their_own_message(self) -> None:
        finding = brokers.advertised_finding(
            [("kafka", 9092)], {("kafka", 9092): "Name or service not known"}
        )

        assert not finding.ok
        assert "kafka:9092: Name or service not known" in finding.detail
        assert "advertised.listeners" in finding.fix

    def test_topics_are_shown_with_their_partitions_or_the_command_that_creates_them(self) -> None:
        existing, missing = (brokers.topic_finding(t, {"lines": 4}, "b:1") for t in ("lines", "counts"))

        assert (existing.ok, existing.detail) == (True, "4 partitions")
        assert (missing.ok, missing.detail) == (False, "does not exist")
        assert missing.fix == "kafka-topics.sh --bootstrap-server b:1 --create --topic counts --partitions 4"

    @pytest.mark.broker
    def test_that_answer_are_ok_and_their_missing_topics_are_reported(
        self, kafka: EmbeddedKafka, tmp_path: Path
    ) -> None:
        kafka.create_topic("doctor", partitions=3)
        question = inquiry(tmp_path, kafka.bootstrap_servers, ("doctor", "nobody"))

        found = [(finding.name, finding.ok) for finding in brokers.check_brokers(question)]
        assert found == [
            ("broker", True),
            ("advertised addresses", True),
            ("topic doctor", True),
            ("topic nobody", False),
        ]


class TestJars:
    def test_can_be_in_a_directory_of_the_user(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("MILLSTREAM_KAFKA_JARS", str(tmp_path))
        assert not brokers.check_jars(inquiry(tmp_path)).ok

        (tmp_path / "kafka_2.13-4.3.0.jar").touch()
        assert brokers.check_jars(inquiry(tmp_path)).ok

    def test_are_found_in_the_cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("MILLSTREAM_KAFKA_JARS", raising=False)
        monkeypatch.setenv("MILLSTREAM_CACHE_DIR", str(tmp_path))
        folder = tmp_path / f"kafka-{KAFKA_VERSION}"
        folder.mkdir()
        (folder / "kafka_2.13-x.jar").touch()

        assert brokers.check_jars(inquiry(tmp_path)) == Finding("Kafka jars", True, f"in {folder}")


class TestReport:
    @pytest.fixture(autouse=True)
    def _no_settings(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("BOOTSTRAP_SERVERS", "CONFIG", "KAFKA"):
            monkeypatch.delenv(f"MILLSTREAM_{name}", raising=False)
        monkeypatch.setenv("MILLSTREAM_STATE_DIR", str(tmp_path))

    def run_report(
        self, monkeypatch: pytest.MonkeyPatch, *entries: doctor_report.DoctorEntry
    ) -> tuple[int, str]:
        monkeypatch.setattr(doctor_report, "CHECKS", entries)
        screen = io.StringIO()
        return doctor_report.examine(None, (), Console(file=screen, width=200)), screen.getvalue()

    def test_fails_only_if_a_required_check_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        good, bad = Finding("good", True, "there"), Finding("bad", False, "missing", "get it")

        code, text = self.run_report(
            monkeypatch,
            doctor_report.DoctorEntry(lambda _: good),
            doctor_report.DoctorEntry(lambda _: [bad], required=False),
        )
        assert code == 0
        assert "ok      good: there\nnote    bad: missing\n        -> get it\n" in text

        code, text = self.run_report(monkeypatch, doctor_report.DoctorEntry(lambda _: [good, bad]))
        assert code == 1
        assert "problem bad: missing\n" in text
        assert text.endswith("Required checks that failed (1): bad\n")

    def test_names_a_check_whose_package_cannot_be_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def check_package(_: Inquiry) -> Finding:
            raise ImportError("no module named 'lmdb'")

        code, text = self.run_report(monkeypatch, doctor_report.DoctorEntry(check_package))
        assert code == 1
        assert "problem package: cannot be checked: no module named 'lmdb'\n" in text

    def test_uses_the_settings_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "b:1")
        monkeypatch.setenv("MILLSTREAM_KAFKA", '{"sasl.mechanism": "PLAIN"}')

        question, finding = doctor_report.inquiry_for(None, ("t",))

        assert finding == Finding("settings", True, "valid")
        assert (question.bootstrap_servers, question.topics, question.state_dir) == ("b:1", ("t",), tmp_path)
        assert question.client["sasl.mechanisms"] == "PLAIN"

    def test_connects_to_no_broker_by_default(self) -> None:
        question, finding = doctor_report.inquiry_for(None, ())
        assert finding.ok
        assert question.bootstrap_servers is None

    def test_does_not_connect_to_an_empty_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MILLSTREAM_BOOTSTRAP_SERVERS", raising=False)
        question, finding = doctor_report.inquiry_for("", ())
        assert question.bootstrap_servers is None
        assert "'bootstrap_servers' cannot be '': Input should not be empty" in finding.detail
        assert finding.fix.startswith("correct --bootstrap-servers")

    def test_reports_invalid_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_MAX_BATCH_RECORDS", "0")

        question, finding = doctor_report.inquiry_for("b:1", ())

        assert question.bootstrap_servers == "b:1"
        assert not finding.ok
        assert "'max_batch_records' cannot be '0'" in finding.detail
