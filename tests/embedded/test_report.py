import io
import json

import pytest

from app.embedded.environment import as_exports, passed_on
from app.embedded.failure import PartFailed
from app.embedded.report import Report


@pytest.fixture
def stream():
    return io.StringIO()


async def test_finished_part_is_one_aligned_line(stream):
    report = Report(stream)

    async with report.part("migrations", "none to apply", ".dev/postgres") as texts:
        texts.append("14 applied")

    line = "  migrations    14 applied                      ready    0.0 s  .dev/postgres\n"
    assert stream.getvalue() == line


async def test_part_that_fails_is_not_called_ready(stream):
    with pytest.raises(PartFailed):
        async with Report(stream).part("database", "PostgreSQL"):
            raise PartFailed("database", "no")

    assert not stream.getvalue()


def test_failure_shows_the_last_ten_lines_and_the_remedy(stream, tmp_path):
    log = tmp_path / "postgres.log"
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    failed = PartFailed("database", "not ready after 20 s.", mend="make clean", log_file=log)

    Report(stream).failure(failed)

    shown = stream.getvalue()
    assert shown.startswith("  database      not ready after 20 s. Its last lines:\n")
    assert "line 20\n" in shown
    assert "line 19\n" not in shown
    assert "Mend:  make clean\n" in shown
    assert f"Log:   {log}\n" in shown


async def test_json_style_is_one_object_a_line(stream):
    report = Report(stream, style="jsonl")

    report.title("0.1.0")
    async with report.part("objects", "S3"):
        pass
    report.text("for people only")
    report.failure(PartFailed("service", "ended."))

    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["begin", "ready", "failed"]


def test_reader_that_went_away_is_no_error(stream):
    stream.close()

    Report(stream).title("0.1.0")


def test_what_the_stack_decides_wins_over_a_shell_that_holds_another_stacks_settings():
    ours = {"EXECUTION_PLANE_DATABASE__URL": "ours"}
    shell = {
        "EXECUTION_PLANE_DATABASE__URL": "another",
        "EXECUTION_PLANE_DATABASE__URL_FILE": "/another",
        "EXECUTION_PLANE_LEASES__LEASE_SECONDS": "10",
        "PGPORT": "5432",
    }

    assert passed_on(shell, ours) == {"EXECUTION_PLANE_LEASES__LEASE_SECONDS": "10"}


def test_exports_survive_a_shell():
    assert as_exports({"A": 'x "y" $z'}) == "export A='x \"y\" $z'\n"
