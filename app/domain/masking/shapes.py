"""Credentials that can be told by their look alone, as their issuers publish them.

A shape is literal text with places in angle brackets: a letter for the set of characters and the
least number of them, `+` where more may stand before what follows. The last place always takes
what fits, because lengths grow over the years. From one line follow the detector, the canary of
the self-test and the words that are looked for in base64.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

_SETS = {
    "A": b"A-Za-z0-9",
    "B": b"A-Za-z0-9+/",
    "D": b"0-9",
    "H": b"0-9a-f",
    "L": b"A-Za-z",
    "P": b"A-Za-z0-9%+/=_\\-",
    "S": b"A-Za-z0-9=_\\-",
    "T": b"A-Za-z0-9._\\-",
    "U": b"A-Z0-9",
    "W": b"A-Za-z0-9_\\-",
    "Q": b"A-Za-z0-9_~.\\-",
    "C": b"./A-Za-z0-9,=$+",
    "E": b"./A-Za-z0-9,=+",
}
_SAMPLES = {
    "D": b"8316497205",
    "H": b"4f9a07c3e1b85d26",
    "L": b"QrTzKwVbNmXcLpHs",
    "U": b"Q7RT2ZK4WV6BN3MX",
}
_SAMPLE = b"Qr7Tz2Kw9Vb4Nm6Xc1Lp8Hs3"
_PLACE = re.compile(r"<([A-Z])(\d+)(\+?)>")


@dataclass(frozen=True)
class Shape:
    """One published form.

    `bounded`: only where no word runs into it; `mixed`: with a digit, a small and a capital letter.
    Both are for prefixes so short that plain words and hashes have them.
    """

    kind: str
    text: str
    bounded: bool = False
    mixed: bool = False
    _parts: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", re.split(r"(<[A-Z]\d+\+?>)", self.text))

    @cached_property
    def detector(self) -> bytes:
        """The shortest match; what follows it is taken by `tail`."""
        return b"".join(
            b"[%b]{%b%b}" % (_SETS[place[1]], place[2].encode(), b"," if place[3] else b"")
            if (place := _PLACE.fullmatch(part))
            else _quote(part)
            for part in self._parts
        )

    @cached_property
    def tail(self) -> re.Pattern[bytes]:
        """What still belongs to a credential after its shortest form."""
        last = [place for part in self._parts if (place := _PLACE.fullmatch(part))][-1]
        return re.compile(b"[%b]*" % _SETS[last[1]])

    @cached_property
    def canary(self) -> bytes:
        """A made-up credential of this shape."""
        return b"".join(
            _sample(place[1], int(place[2])) if (place := _PLACE.fullmatch(part)) else part.encode()
            for part in self._parts
        )

    @cached_property
    def word(self) -> bytes:
        """The longest literal piece, which every credential of this shape contains."""
        return max((part.encode() for part in self._parts if not _PLACE.fullmatch(part)), key=len)


def _quote(text: str) -> bytes:
    return re.escape(text.encode())


def _sample(letters: str, count: int) -> bytes:
    source = _SAMPLES.get(letters, _SAMPLE)
    return (source * (count // len(source) + 1))[:count]


def _parse(table: str) -> tuple[Shape, ...]:
    shapes = []
    for line in filter(None, map(str.strip, table.splitlines())):
        kind, flags, texts = line.split(None, 2)
        shapes += [
            Shape(kind, text.replace("·", " "), bounded="b" in flags, mixed="m" in flags)
            for text in texts.split()
        ]
    return tuple(shapes)


# kind, flags (b bounded, m mixed, - none), shapes; "·" stands for a space.
SHAPES = _parse("""
aws_key_id            -   AKIA<U16> ASIA<U16> ABIA<U16> ACCA<U16>
aws_bedrock           b   ABSK<B100>
google                -   AIza<W35> AQ.Ab8RN6<W44> ya29.<T30> GOCSPX-<W28>
google                b   1//0<W40>
azure                 m   <A3><D1>Q~<Q31>
azure_devops          -   <A76>AZDO<A4>
digitalocean          -   dop_v1_<H64> doo_v1_<H64> dor_v1_<H64>
cloudflare            -   cfk_<A40> cfut_<A40> cfat_<A40> v1.0-<H24>-<H146>
heroku                -   HRKU-AA<W58>
fly                   -   FlyV1·fm<W90> fm1r_<B40> fm2_<B40> fo1_<W40>
alibaba               bm  LTAI<A17>
databricks            b   dapi<H32>
supabase              -   sb_secret_<W31> sbp_<H40>
github                -   ghp_<A36> gho_<A36> ghu_<A36> ghr_<A36> ghs_<T36>
github                -   github_pat_<A22>_<A59>
gitlab                -   glpat-<T20> glrt-<T20> gldt-<T20> glptt-<T20> glft-<T20> glsoat-<T20>
gitlab                -   glimt-<T20> glagent-<T20> gloas-<T20> glffct-<T20> glcbt-<T20>
gitlab                -   GR1348941<W20>
bitbucket             b   ATBB<A28> BBDC-<B32>
atlassian             -   ATATT3<S100> ATCTT3<S60> ATSTT3<S60>
circleci              -   CCIPAT_<A22>_<H40> CCIPRJ_<A22>_<H40>
buildkite             -   bkua_<A40>
sonarqube             -   squ_<H40> sqp_<H40> sqa_<H40>
sourcegraph           -   sgp_<H16>_<H40> sgp_local_<H40>
sentry                -   sntrys_eyJ<P40+>_<B43> sntryu_<H64>
doppler               -   dp.pt.<A40> dp.ct.<A40> dp.st.<T40> dp.sa.<A40> dp.scim.<A40>
npm                   -   npm_<A36>
pypi                  -   pypi-AgE<W50>
rubygems              -   rubygems_<H48>
crates                bm  cio<A32>
crates                -   cio_tp_<A32>
docker                -   dckr_pat_<W27> dckr_oat_<W27> SWMTKN-1-<A50>-<A24>
jfrog                 b   AKCp<A60> cmVmd<A59>
nuget                 bm  oy2<A43>
clojars               -   CLOJARS_<A60>
openvsx               -   ovsxp_<W36>
slack                 -   xoxb-<D10>-<W16> xoxp-<D10>-<W16> xoxa-<W24> xoxe-<W24> xoxe.xoxp-<W24>
slack                 -   xapp-1-<W30> xoxc-<W24> xoxd-<P24> xoxr-<W24> xoxs-<W24>
slack_webhook         -   hooks.slack.com/services/<B40> hooks.slack.com/workflows/<B40>
slack_webhook         -   hooks.slack.com/triggers/<B40>
discord_webhook       -   /api/webhooks/<D15+>/<W60>
teams_webhook         -   webhook.office.com/webhookb2/<B20+>@<B20>
telegram              m   <D8>:AA<W33>
stripe                -   sk_live_<A10> sk_test_<A10> rk_live_<A10> rk_test_<A10> whsec_<B32>
square                -   sq0atp-<W22> sq0csp-<W43>
square                bm  EAAA<W60>
shopify               -   shpat_<H32> shpca_<H32> shppa_<H32> shpss_<H32>
sendgrid              -   SG.<W22>.<W43>
mailgun               b   key-<H32>
mailchimp             b   <H32>-us<D1>
brevo                 -   xkeysib-<H64>-<A16>
twilio                b   SK<H32>
postman               -   PMAK-<H24>-<H34>
notion                -   ntn_<D11><A35>
airtable              b   pat<A14>.<H64>
linear                -   lin_api_<A40>
figma                 -   figd_<W38>
newrelic              -   NRAK-<U27>
grafana               -   glsa_<A32>_<H8> glc_<B40>
dynatrace             -   dt0c01.<U24>.<U64>
vault                 -   hvs.<W24> hvb.<W100> hvr.<W24>
vault                 bm  s.<A24> b.<A24>
terraform             -   <A14>.atlasv1.<S60>
pulumi                b   pul-<H40>
prefect               -   pnu_<A36> pnb_<A36>
tailscale             -   tskey-auth-<W20> tskey-api-<W20> tskey-client-<W20> tskey-scim-<W20>
onepassword           -   ops_eyJ<S200>
age                   -   AGE-SECRET-KEY-1<U58>
openshift             -   sha256~<W43>
openai                -   sk-<W20>T3BlbkFJ<W20> sk-proj-<W40> sk-svcacct-<W40> sk-admin-<W40>
anthropic             -   sk-ant-api03-<W80> sk-ant-admin01-<W80> sk-ant-oat01-<W80>
ai_service            -   gsk_<A52> xai-<A70> pplx-<A48> nvapi-<W60> sk-or-v1-<H64>
ai_service            -   sk-lf-<H8>-<H4>-<H4>-<H4>-<H12>
ai_service            b   hf_<L34> r8_<A37>
ai_service            bm  sk-<A32>
jwt                   -   eyJ<W10+>.eyJ<T8>
jwe                   -   eyJ<W16+>.<W20+>.<W12+>.<W12+>.<W16>
password_hash         -   $1$<E2+>$<E8><C1> $5$<E2+>$<E8><C1> $6$<E2+>$<E8><C1> $y$<E2+>$<E8><C1>
password_hash         -   $2a$<D2>$<E8><C1> $2b$<D2>$<E8><C1> $2y$<D2>$<E8><C1>
password_hash         -   $apr1$<E2+>$<E8><C1> $argon2i$<E2+>$<E8><C1> $argon2id$<E2+>$<E8><C1>
""")
