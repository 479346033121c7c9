"""The life of an attempt, from its creation to the proof, over REST."""

from tests.driver import new_attempt


async def test_an_attempt_is_created_claimed_started_logged_and_completed(control, runner):
    attempt = await control.create()
    await runner.register()

    held = await runner.claim()
    started = await held.start()
    beaten = await held.beat(phase="executing", progress_percent=50, message="half way")
    await held.log(b"hello\n", 0)
    await held.log(b"world\n", 6, final=True)
    completed = await held.complete(result={"exit_code": 0})

    assert started.json()["action"] == beaten.json()["action"] == "continue"
    assert completed.status_code == 200, completed.text
    assert (await control.get(attempt["id"]))["status"] == "succeeded"
    assert (await control.read_log(attempt["id"])).content == b"hello\nworld\n"
    assert await control.event_types(attempt["id"]) == [
        "created",
        "leased",
        "started",
        "heartbeat",
        "succeeded",
    ]


async def test_the_same_create_again_gives_the_same_attempt(control):
    request = new_attempt()

    first = await control.call("POST", "/v1/attempts", json=request)
    second = await control.call("POST", "/v1/attempts", json=request)

    assert (first.status_code, second.status_code) == (201, 200)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert first.json() == second.json()
