"""What is written in one turn is sent as one, in order, and nothing stays behind."""

import asyncio

from app.api.corked import Corked


class Wire(asyncio.Transport):
    """What the kernel would be given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed_after = len(self.sent)

    def get_write_buffer_size(self) -> int:
        return 5


async def test_head_and_body_of_an_answer_are_sent_together():
    wire = Wire()
    corked = Corked(wire)

    corked.write(b"head ")
    corked.write(b"body")
    assert (wire.sent, corked.get_write_buffer_size()) == ([], 9 + 5)
    await asyncio.sleep(0)

    assert wire.sent == [b"head body"]
    corked.write(b"next")
    await asyncio.sleep(0)
    assert wire.sent == [b"head body", b"next"]
    assert corked.get_write_buffer_size() == 5


async def test_much_is_not_held_until_the_turn_is_over():
    """Who streams a large body must learn at once that the client is slow."""
    wire = Wire()
    corked = Corked(wire)

    corked.write(b"x" * 40_000)
    corked.write(b"y" * 40_000)

    assert [len(piece) for piece in wire.sent] == [80_000]


async def test_closing_sends_the_rest_first():
    wire = Wire()
    corked = Corked(wire)

    corked.write(b"last words")
    corked.close()

    assert wire.sent == [b"last words"]
    assert wire.closed_after == 1
    await asyncio.sleep(0)
    assert wire.sent == [b"last words"]
