"""Callbacks go to receivers alone: every spelling of an address, every trick of a name."""
# ruff: noqa: SIM905, RUF001 - long lists of words, some of them meant to deceive

import asyncio
from ipaddress import ip_address, ip_network

import pytest
from starlette.responses import RedirectResponse

from app.callbacks.guard import AddressRefused, GuardedBackend
from app.callbacks.sender import Sender
from app.domain.addresses import Rules
from app.domain.receivers import read
from app.embedded.tls import ensure_certificates
from tests.callbacks.receiver import Receiver

PUBLIC = Rules()

REFUSED_ADDRESSES = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1
127.0.0.2 127.255.255.255 168.63.129.16 169.254.0.1 169.254.169.253 169.254.169.254 169.254.170.2
172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255
198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255
:: ::1 ::2 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::10.0.0.1
2002:7f00:1:: 2002:a00:1:: 2002:a9fe:a9fe:: 2002:c0a8:1:: 2001:0:7f00:1:: 2001::1 2001:db8::1
2001:10::1 2001:20::1 100::1 fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fec0::1 ff02::1
3fff::1 5f00::1 4000::1 8000::1 2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:127.0.0.1
""".split()

ACCEPTED_ADDRESSES = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 93.184.216.34 100.63.255.255 100.128.0.1 172.15.255.255
172.32.0.1 192.167.255.255 192.169.0.1 223.255.255.254
2606:4700:4700::1111 2a00:1450:4001:81b::200e 2620:fe::fe 64:ff9b::8.8.8.8 2002:808:808::
::ffff:8.8.8.8
""".split()


@pytest.mark.parametrize("text", REFUSED_ADDRESSES)
def test_addresses_that_are_no_receivers(text):
    assert not PUBLIC.permits("receiver.example", ip_address(text))


@pytest.mark.parametrize("text", ACCEPTED_ADDRESSES)
def test_addresses_that_are(text):
    assert PUBLIC.permits("receiver.example", ip_address(text))


@pytest.mark.parametrize(
    "text", [one for one in REFUSED_ADDRESSES if ":" in one] + ["127.0.0.1", "169.254.169.254"]
)
def test_an_address_in_a_url_is_judged_when_it_is_given(text):
    host = f"[{text}]" if ":" in text else text

    with pytest.raises(ValueError, match="address"):
        read(f"https://{host}/", PUBLIC)


URLS = """
http://receiver.example/ file:///etc/passwd gopher://receiver.example/ ftp://receiver.example/
//receiver.example/ receiver.example https:receiver.example https:/receiver.example https:///x https://
https://127.1/ https://127.0.1/ https://0x7f000001/ https://0x7f.1/ https://2130706433/ https://017700000001/
https://0177.0.0.1/ https://127.0.0.1./ https://1.2.3.4.5/ https://256.1.1.1/ https://0/ https://1/
https://0x/ https://00000177.1/ https://[fe80::1%25eth0]/ https://[fe80::1%eth0]/ https://[example.com]/
https://[127.0.0.1]/ https://[::1 https://::1/ https://[]/ https://[v1.x]/
https://user@receiver.example/ https://user:pw@receiver.example/ https://@receiver.example/
https://receiver.example@127.0.0.1/ https://127.0.0.1#@receiver.example/ https://receiver.example#x
https://127.0.0.1\\@receiver.example/ https://receiver.example\\.evil/ https://receiver.example/\\x
https://receiver.example:22/ https://receiver.example:25/ https://receiver.example:80/
https://receiver.example:5432/ https://receiver.example:0/ https://receiver.example:65536/
https://receiver.example:99999/ https://receiver.example:-1/ https://receiver.example:443:80/
https://receiver.example:4 4/ https://receiver.example:٤٤٣/
https://receiver..example/ https://.receiver.example/ https://receiver.example./ https://-x.example/
https://x-.example/ https://receiver_x.example/ https://ré.example/ https://①②⑦.⓪.⓪.①/ https://１２７.0.0.1/
https://receiver.example/%zz https://receiver.example/é https://receiver.example/|x https://receiver.example/"x"
https://receiver%2eexample/ https://127.0.0.1%00.example/ https://receiver.example%0d%0aX:y/
""".split()
SPACED = [
    " https://receiver.example/",
    "https://receiver.example/ ",
    "https://receiver.example/\r\nHost: other",
    "https://receiver.example\t/",
    "https://rec\neiver.example/",
    "https://receiver.example/a b",
    "https://receiver.example/\x00",
    "",
    "https://receiver.example/" + "x" * 2000,
    "https://" + "a" * 64 + ".example/",
    "https://" + "a." * 130 + "example/",
]


@pytest.mark.parametrize("url", URLS + SPACED)
def test_urls_that_two_readers_could_read_differently_are_refused(url):
    with pytest.raises(ValueError, match=r".+"):
        read(url, PUBLIC)


@pytest.mark.parametrize(
    ("url", "authority", "target"),
    [
        ("https://receiver.example", "receiver.example", "/"),
        ("https://RECEIVER.example/X?y=%20&z=@", "receiver.example", "/X?y=%20&z=@"),
        ("https://receiver.example:8443?q", "receiver.example:8443", "/?q"),
        ("https://xn--e1afmkfd.example/", "xn--e1afmkfd.example", "/"),
        ("https://8.8.8.8/", "8.8.8.8", "/"),
        ("https://[2606:4700:4700::1111]/", "[2606:4700:4700::1111]", "/"),
    ],
)
def test_ordinary_urls_are_receivers(url, authority, target):
    receiver = read(url, PUBLIC)

    assert (receiver.authority, receiver.target) == (authority, target)


def test_what_an_operator_allowed_is_allowed_and_nothing_beside_it():
    rules = Rules(
        networks=(ip_network("10.1.0.0/16"),),
        hosts=("receiver.default.svc", ".internal.example"),
    )

    assert read("http://10.1.2.3:9000/", rules).port == 9000
    assert read("http://receiver.default.svc:8080/", rules).port == 8080
    assert rules.permits("x.example", ip_address("10.1.2.3"))
    assert rules.permits("a.internal.example", ip_address("192.168.1.1"))
    assert rules.permits("receiver.default.svc", ip_address("127.0.0.1"))
    for url in ("http://10.2.0.1/", "http://evilinternal.example/", "http://default.svc/"):
        with pytest.raises(ValueError, match=r".+"):
            read(url, rules)
    assert not rules.permits("x.example", ip_address("10.2.0.1"))
    assert not rules.permits("x.example", ip_address("::ffff:10.2.0.1"))
    assert not rules.permits("a.internal.example", ip_address("169.254.169.254"))
    assert not rules.permits("a.internal.example", ip_address("::ffff:169.254.169.254"))


# --- on connecting -------------------------------------------------------------------------------


@pytest.fixture
async def listener():
    """A port that must not be connected to, and how often it was."""
    connected = []

    async def note(reader, writer):
        connected.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], connected
    server.close()


def resolving(*answers: list[str]):
    """A resolver that gives these answers in turn, the last one for ever."""
    left = list(answers)
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return left.pop(0) if len(left) > 1 else left[0]

    resolve.asked = asked
    return resolve


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%lo"],
        ["169.254.169.254"],
    ],
)
async def test_a_name_that_leads_inside_is_not_connected_to(answers, listener):
    port, connected = listener
    backend = GuardedBackend(PUBLIC, resolving(answers))

    with pytest.raises(AddressRefused):
        await backend.connect_tcp("receiver.example", port, timeout=1)

    assert connected == []


async def test_the_address_that_was_judged_is_the_one_connected_to(listener):
    port, connected = listener
    resolve = resolving(["127.0.0.1"], ["10.255.255.1"])
    rules = Rules(hosts=("receiver.example",))

    stream = await GuardedBackend(rules, resolve).connect_tcp("receiver.example", port, timeout=2)
    await stream.aclose()

    assert resolve.asked == ["receiver.example"]
    assert len(connected) == 1


async def test_a_name_that_flips_to_an_address_inside_is_refused_at_the_next_connection(
    callbacks, lives, listener
):
    """DNS rebinding: public when the subscription was made, ours when it is called."""
    port, connected = listener
    services = callbacks.services
    sender = Sender(
        services.settings.callbacks.model_copy(
            update={
                "allowed_networks": (),
                "allowed_ports": (443, port),
            }
        ),
        services.keys,
        resolving(["127.0.0.1"]),
    )
    object.__setattr__(services, "callbacks", sender)
    await callbacks.put(url=f"https://receiver.example:{port}/")
    await lives.created()

    await (await callbacks.worker()).live_once()

    standing = await callbacks.get()
    assert (standing["last_result"], standing["failures"]) == ("address_refused", 1)
    assert connected == []


async def test_a_url_that_is_not_allowed_any_more_is_not_called(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    services = callbacks.services
    narrower = services.settings.callbacks.model_copy(update={"allowed_networks": ()})
    object.__setattr__(services, "callbacks", Sender(narrower, services.keys))
    await lives.created()

    await (await callbacks.worker()).live_once()

    assert receiver.requests == []
    assert (await callbacks.get())["last_result"] == "address_refused"


# --- receivers that misbehave --------------------------------------------------------------------


async def behaving(speak):
    """A receiver by hand: it is given the connection's two ends after the request's head."""
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await speak(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connections


async def never(_, writer):
    await asyncio.sleep(60)


async def endless_body(_, writer):
    writer.write(b"HTTP/1.1 500 no\r\nContent-Length: 10000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_head(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def dripping(_, writer):
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.5)


async def endless_100(_, writer):
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def garbage(_, writer):
    writer.write(b"\x00\xff" * 5000)
    await writer.drain()


async def hangs_up(_, writer):
    return


@pytest.mark.parametrize(
    ("speak", "results"),
    [
        (never, {"timed_out"}),
        (endless_body, {"refused"}),
        (endless_head, {"unreachable"}),
        (dripping, {"timed_out"}),
        (endless_100, {"timed_out"}),
        (garbage, {"unreachable"}),
        (hangs_up, {"unreachable"}),
    ],
)
async def test_a_receiver_that_misbehaves_costs_a_try_and_nothing_else(
    callbacks, lives, speak, results
):
    server, url, connections = await behaving(speak)
    await callbacks.put(url=url, timeout_seconds=1)
    await lives.created()
    worker = await callbacks.worker()

    async with asyncio.timeout(5):
        wait = await worker.live_once()

    assert wait.seconds
    standing = await callbacks.get()
    assert standing["last_result"] in results
    assert standing["failures"] == 1
    for connection in connections:
        connection.close()
    server.close()


async def test_a_success_that_never_ends_its_body_is_a_success(callbacks, lives):
    async def accepts_at_length(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    server, url, _ = await behaving(accepts_at_length)
    await callbacks.put(url=url, timeout_seconds=2)
    await lives.created()

    await callbacks.drain(await callbacks.worker())

    assert (await callbacks.get())["delivered"] == 1
    server.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(callbacks, receiver, lives, listener, status):
    port, connected = listener
    receiver.answering = lambda _: RedirectResponse(f"http://127.0.0.1:{port}/", status)
    await callbacks.put(url=receiver.url)
    await lives.created()

    await (await callbacks.worker()).live_once()

    assert len(receiver.requests) == 1
    assert connected == []
    assert (await callbacks.get())["last_status"] == status


@pytest.fixture
def files(tmp_path):
    return ensure_certificates(tmp_path / "tls")


async def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent(
    callbacks, lives, files
):
    receiver = await Receiver().start(files)
    await callbacks.put(url=receiver.url)
    await lives.created()

    await (await callbacks.worker()).live_once()

    standing = await callbacks.get()
    assert standing["last_result"] == "certificate"
    assert receiver.requests == []
    await receiver.stop()


async def test_a_certificate_of_an_authority_that_the_operator_trusts_is_good(
    callbacks, lives, files
):
    receiver = await Receiver().start(files)
    services = callbacks.services
    trusting = services.settings.callbacks.model_copy(update={"ca_file": files.ca_file})
    object.__setattr__(services, "callbacks", Sender(trusting, services.keys))
    await callbacks.put(url=receiver.url)
    await lives.created()

    await callbacks.drain(await callbacks.worker())

    assert len(receiver.taken) == 1
    await receiver.stop()


async def test_a_trusted_certificate_for_another_name_is_refused(callbacks, lives, files):
    receiver = await Receiver().start(files)
    services = callbacks.services
    trusting = services.settings.callbacks.model_copy(
        update={"ca_file": files.ca_file, "allowed_hosts": ("other.example",)}
    )
    sender = Sender(trusting, services.keys, resolving(["127.0.0.1"]))
    object.__setattr__(services, "callbacks", sender)
    await callbacks.put(url=f"https://other.example:{receiver.port}/")
    await lives.created()

    await (await callbacks.worker()).live_once()

    assert (await callbacks.get())["last_result"] == "certificate"
    assert receiver.requests == []
    await receiver.stop()
