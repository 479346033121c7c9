"""The documentation: served without a network, complete, and never staler than the code."""

import hashlib
import re
from pathlib import Path

import httpx
import pytest

from app.api import docs
from app.api.advice import ADVICE, PLAIN
from app.api.problems import ANSWERS, TYPE_BASE, problem
from app.domain.errors import (
    RequestInvalid,
    SecretInRequest,
    ServiceError,
    SettingsInvalid,
    Unauthenticated,
)
from app.domain.lifecycle import EventType, Status
from app.main import create_app
from docs import generate

ROOT = Path(__file__).parents[1]
PAGES = ("/docs", "/docs/errors", "/docs/lifecycle")
FILES = [f"/docs/static/{name}" for name in docs.FILES]


@pytest.fixture
async def browser():
    """A client of the application; nothing of these pages needs a token or a database."""
    app = create_app(generate.unconnected(generate.example_settings()))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://docs.test") as client:
        yield client


# --- the pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_refers_to_nothing_outside_of_this_service(browser, path):
    page = (await browser.get(path)).text

    addresses = re.findall(r'(?:href|src|action)="([^"]*)"', page)
    assert addresses
    assert all(re.match(r"/(?!/)|#", address) for address in addresses), addresses
    for address in addresses:
        if address.startswith("/"):
            assert (await browser.get(address)).status_code == 200, address


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_works_under_a_policy_without_inline_code_and_foreign_origins(browser, path):
    answer = await browser.get(path)

    assert answer.headers["Content-Security-Policy"] == docs.POLICY
    assert "default-src 'none'" in docs.POLICY
    assert not re.search(r"unsafe|https?:|\*", docs.POLICY)
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", answer.text)


@pytest.mark.parametrize("name", ["pages.css", "viewer.js", "icon.svg", "viewer.html", "page.html"])
def test_our_own_files_name_no_remote_address(name):
    text = (docs.STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")

    assert "//" not in re.sub(r"^//.*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", [*PAGES, *FILES, "/openapi.json"])
async def test_everything_is_served_packed_or_plain_and_known_again(browser, path):
    packed = await browser.get(path, headers={"Accept-Encoding": "gzip, br"})
    plain = await browser.get(path, headers={"Accept-Encoding": "identity"})
    again = await browser.get(
        path, headers={"If-None-Match": f'"other", W/{plain.headers["ETag"]}'}
    )

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.content == plain.content  # the client has unpacked it
    assert packed.headers["Cache-Control"] == plain.headers["Cache-Control"]
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["page.html", "LICENSE", "..%2fdocs.py", "swagger-ui%2fLICENSE"])
async def test_only_the_files_of_the_pages_are_served(browser, name):
    answer = await browser.get(f"/docs/static/{name}")

    assert answer.status_code == 404
    assert answer.json()["reason"] == "not-found"


async def test_the_viewer_is_the_one_that_its_note_names(browser):
    note = (docs.STATIC / "swagger-ui" / "README.md").read_text()
    sums = re.findall(r"\| `([\w.-]+)` \| `([0-9a-f]{64})` \|", note)

    assert {name for name, _ in sums} == {"swagger-ui-bundle.js", "swagger-ui.css"}
    for name, digest in sums:
        content = (await browser.get(f"/docs/static/{name}")).content
        assert hashlib.sha256(content).hexdigest() == digest


async def test_the_root_says_where_to_go_on(browser):
    told = (await browser.get("/")).json()

    assert told["name"] == "execution-plane-service"
    assert told["version"] == (await browser.get(told["openapi"])).json()["info"]["version"]
    assert (await browser.get(told["docs"])).status_code == 200
    paths = (await browser.get(told["openapi"])).json()["paths"]
    assert {told["health"], told["push"]} <= set(paths)


async def test_the_page_on_the_lifecycle_names_every_status(browser):
    page = (await browser.get("/docs/lifecycle")).text

    assert all(f'id="{status}"' in page for status in Status)


# --- errors --------------------------------------------------------------------------------------


def _classes(base: type[ServiceError] = ServiceError) -> set[type[ServiceError]]:
    return {found for one in base.__subclasses__() for found in (one, *_classes(one))}


def test_every_error_has_an_answer_and_advice():
    ours = {error for error in _classes() if error.__module__.startswith("app.")}

    assert set(ANSWERS) == ours
    assert set(ADVICE) == ours


def test_every_error_has_a_reason_and_a_sentence_of_its_own():
    assert len({error.reason() for error in ANSWERS}) == len(ANSWERS)
    assert all(error.sentence().endswith(".") for error in ANSWERS)


@pytest.mark.parametrize("error", ANSWERS)
async def test_the_type_of_a_problem_leads_to_its_explanation(browser, error):
    made = {
        SettingsInvalid: lambda: SettingsInvalid(["one"]),
        RequestInvalid: lambda: RequestInvalid([]),
        SecretInRequest: lambda: SecretInRequest([]),
        Unauthenticated: lambda: Unauthenticated("none", token_sent=False),
    }.get(error, error)()
    kind = problem(made, "request").body.decode()

    page, anchor = re.search(r'"type":"([^"#]*)#([^"]*)"', kind).groups()
    assert f'<tr id="{anchor}">' in (await browser.get(page)).text


async def test_answers_without_an_error_class_are_explained_too(browser):
    page = (await browser.get(TYPE_BASE)).text

    missing = await browser.get("/v1/no-such-thing")
    wrong = await browser.delete("/docs")
    assert [missing.json()["reason"], wrong.json()["reason"]] == ["not-found", "method-not-allowed"]
    assert all(f'<tr id="{reason}">' in page for _, reason, _, _ in PLAIN)


# --- what is generated, and what is written by hand ----------------------------------------------


def test_generated_files_are_as_the_code_would_make_them():
    stale = [path.name for path, text in generate.files() if path.read_text() != text]

    assert not stale, "run make docs"


def test_a_check_shows_what_is_stale_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(generate, "EVENTS", {**generate.EVENTS, EventType.CREATED: "Otherwise."})

    assert generate.main(["--check"]) == 1

    assert "+| `created` | Otherwise. |" in capsys.readouterr().out


def test_every_event_type_is_explained():
    assert set(generate.EVENTS) == set(EventType)


def _pages() -> list[Path]:
    folders = (ROOT / "docs").rglob("*.md")
    return [*ROOT.glob("*.md"), *folders, *(ROOT / "charts").rglob("*.md")]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)|\]:\s+(\S+)", page.read_text()):
        address = (target[0] or target[1]).partition("#")[0]
        if address and not address.startswith(("https://", "/")):
            assert (page.parent / address).exists(), address


def test_every_make_target_that_the_documentation_names_exists():
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in _pages()
        for name in re.findall(r"`(?:.* )?make ([a-z-]+)", page.read_text())
    }

    benches = {f"bench-{path.stem}" for path in (ROOT / "bench").glob("*.py")}
    missing = {name for name in named - targets - benches if not name.startswith("demo-")}
    assert named
    assert not missing
