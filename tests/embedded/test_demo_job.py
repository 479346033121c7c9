"""The demonstration's job is one that the service accepts, and whose output it masks."""

from app.domain.masking import Masker
from app.embedded.demo_job import CREDENTIAL_FORM, expected, script


def test_the_script_holds_no_secret_and_its_output_does():
    masker = Masker()
    printed = f"warning: {CREDENTIAL_FORM} expires soon\n".encode()

    assert masker.find_secrets_in_spec({"script": script()}) == []
    assert masker.mask_bytes(printed).data == expected()["stderr"]
