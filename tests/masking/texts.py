"""Texts for the tests and the measurements: ordinary logs, near misses and hostile repeats."""

# ruff: noqa: E501, W291 - lines as programs print them

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator

ORDINARY = r"""
PLAY [Configure web servers] ***************************************************
TASK [Gathering Facts] *********************************************************
ok: [web-01.example.net]
TASK [app : Set password policy] ***********************************************
changed: [web-01.example.net] => {"changed": true, "path": "/etc/security/pwquality.conf"}
TASK [app : Read the token from the file] **************************************
ok: [web-01] => {"censored": "the output has been hidden due to the fact that no_log is true"}
fatal: [web-02]: FAILED! => {"changed": false, "msg": "password: incorrect", "rc": 1}
ok: [db-1] => {"invocation": {"module_args": {"password": "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"}}}
ok: [db-1] => {"api_password": null, "login_password": "", "token_type": "bearer", "tokens": 512}
PLAY RECAP *********************************************************************
web-01.example.net : ok=12 changed=3 unreachable=0 failed=0 skipped=2 rescued=0 ignored=0
[WARNING]: Password prompt was not matched, passwords with spaces need quotes
Vault password: 
New password (again):
NAME                          READY   STATUS    RESTARTS   AGE
web-7d4b9c6f5-x2k9p           1/1     Running   0          4d2h
secret/db-credentials created
secret/db-credentials unchanged
serviceaccount/token-reader configured
Error from server (NotFound): secrets "db-credentials" not found
Error: secret "registry" is forbidden: User "dev" cannot get resource "secrets" in API group ""
E0112 10:00:00.123456       1 reflector.go:140] failed to list *v1.Secret: unknown
I0112 10:00:01.000001       1 secret.go:88] "Synced" secret="cert-manager/webhook-ca" took="12.5ms"
Name:         default-token-x7f2q
Type:         kubernetes.io/service-account-token
Mountable secrets:   default-token-x7f2q
Tokens:              default-token-x7f2q
Image pull secrets:  <none>
    SecretName:  default-token-x7f2q
    Optional:    false
  envFrom: [{"secretRef": {"name": "db-credentials"}}]
    valueFrom: {"secretKeyRef": {"key": "password", "name": "db"}}
      DB_PASSWORD:  <set to the key 'password' in secret 'db'>  Optional: false
      TOKEN_FILE:   /var/run/secrets/kubernetes.io/serviceaccount/token
node/worker-3 cordoned; kubeconfig: /home/runner/.kube/config
Warning  FailedMount  12s  kubelet  MountVolume.SetUp failed for volume "tls": secret "tls" not found
helm upgrade --install web ./chart --set image.tag=1.2.3 --set existingSecret=web-db
  export PGPASSWORD=$(kubectl get secret --namespace default pg -o jsonpath="{.data.password}")
  password: {{ .Values.auth.password | quote }}
  password: ${DB_PASSWORD}
  passwordSecretRef: {name: db, key: password}
Pulled: registry.example.net/charts/web:1.2.3
Digest: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
NOTES: use --password to set the password, or --token is read from the environment
Usage: tool login [--username name] [--password password] [--token token]
random_password.db: Creating...
random_password.db: Creation complete after 0s [id=none]
  + password         = (sensitive value)
  + admin_password   = (known after apply)
  + secret_id        = "db-password"
  + password_length  = 24
  + token_ttl        = 3600
  + secret_name      = "app/db"
  + password         = var.db_password
  ~ secret_arn       = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf"
  - access_key_id    = null
aws_secretsmanager_secret.db: Refreshing state... [id=arn:aws:secretsmanager:eu-west-1:1:secret:db]
Plan: 3 to add, 1 to change, 0 to destroy.
google_service_account_key.ci: Still creating... [10s elapsed]
data.external.token: Reading... data.external.token: Read complete after 1s
 ---> Running in 4f9a07c3e1b8
Step 4/9 : ARG NPM_TOKEN
npm warn config token: expired, please log in
Collecting tokenizers==0.20.3 (from -r requirements.txt (line 4))
  Downloading tokenizers-0.20.3-cp311-abi3-manylinux_2_17_x86_64.whl.metadata (6.7 kB)
Requirement already satisfied: keyring>=24 in /usr/lib/python3/dist-packages (24.3.0)
go: downloading golang.org/x/crypto v0.31.0
--- PASS: TestTokenRefresh (0.01s)
PASS: 12 tests, pass=12 fail=0
ok  	example.net/app/secret	0.123s
git clone https://github.com/example/app.git && git@github.com:example/app.git
remote: Resolving deltas: 100% (1234/1234), done. commit 3b18e512dba79e4c8300dd08aeb37f8e728b8dad
GET https://host:8443/v1/items?page_token=&limit=50&sort=name%3Aasc HTTP/1.1 200 1234
Authorization: required
www-authenticate: Bearer realm="https://auth.example.net/token",service="registry.example.net"
WARN missing bearer token in request to /healthz
the basic idea of a bearer token is that whoever holds it may use it
{"level":"info","ts":1700000000.1,"msg":"lease renewed","lease":"018f3c2e-7b1a-7c3d-9e4f-112233445566"}
{"usage":{"prompt_tokens": 123456, "completion_tokens": 654321, "max_tokens": 1000000}}
{"data":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAA"}
integrity sha512-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a089f86d081==
-----BEGIN CERTIFICATE-----
MIIBhTCCASugAwIBAgIQIRi6zePL6mKjOipn+dNuaTAKBggqhkjOPQQDAjASMRAw
DgYDVQQKEwdBY21lIENvMB4XDTE3MTAyMDE5NDMwNloXDTE4MTAyMDE5NDMwNlow
-----END CERTIFICATE-----
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Qd3sQm1m6nK9xTtq7uYw7mX1yUq3k5eQz0Zl8pQwR deploy@host
-----BEGIN PRIVATE KEY----- was not found in /etc/ssl/private/app.key
$ANSIBLE_VAULT;1.1;AES256
File "/app/login.py", line 12, in connect
    return self.session.open(user=self.user, password=self.password, token=get_token())
TypeError: connect() got an unexpected keyword argument 'password'
keyword: value, monkey: business, turkey=1, hotkey: ctrl-c, primary_key: id, foreign_key=user_id
2026-01-12T10:00:00Z INFO s3.put key=logs/018f/1/stdout/00000000000000000000 bytes=65536 ms=12
docker run -u 1000:1000 --rm -e MODE=test image:tag
Progress  10%|##        | 1/10 [00:01<00:09,  1.0 it/s]
0123456789abcdef0123456789abcdef  ./file.bin
fresh cioqueryresultsetmetadatatablename36 sk-animation-container-with-a-long-name-for-a-class
b.abcdefghijklmnopqrstuvwxyz0123456789 LTAIABCDEFGHIJKLMNOPQRSTUV
container monkey-4f9a07c3e1b85d264f9a07c3e1b85d26 started, layer TASK4f9a07c3e1b85d264f9a07c3e1b85d26
""".lstrip()

CANARY_VALUE = "q7-Rt2.zK4_wV9"


def ordinary(size: int, seed: int = 1) -> bytes:
    """An ordinary log of about this size, without secrets."""
    chance = random.Random(seed)
    hosts = [f"web-{number:02}" for number in range(40)]
    lines: list[Callable[[], str]] = [
        lambda: f"ok: [{chance.choice(hosts)}] => (item=/etc/app/{chance.randrange(999)}.conf)",
        lambda: f"TASK [role-{chance.randrange(60)} : install packages] " + "*" * 40,
        lambda: (
            f"aws_instance.web[{chance.randrange(40)}]: Still creating... [{chance.randrange(99)}s]"
        ),
        lambda: f"#{chance.randrange(30)} sha256:{chance.randbytes(32).hex()} 12.3MB / 45.6MB 1.2s",
        lambda: (
            '{"level":"info","time":"2026-01-12T10:00:00Z","request":"'
            f'{chance.randbytes(16).hex()}","status":{chance.randrange(200, 500)},"ms":12}}'
        ),
        lambda: (
            f"  Downloading package_{chance.randrange(99)}-1.2.{chance.randrange(9)}.whl (12 kB)"
        ),
        lambda: (
            f"pod/web-{chance.randbytes(4).hex()}-x2k9p condition met after {chance.random():.3f}s"
        ),
    ]
    pieces, length = [], 0
    while length < size:
        line = chance.choice(lines)() + "\n"
        pieces.append(line)
        length += len(line)
    return "".join(pieces).encode()


def near_misses(size: int, seed: int = 2) -> bytes:
    """What looks like secrets and is none: hashes, base64 of nothing, too short prefixes."""
    chance = random.Random(seed)
    lines: list[Callable[[], str]] = [
        lambda: chance.randbytes(32).hex(),
        lambda: "sha256:" + chance.randbytes(32).hex(),
        lambda: "data:image/png;base64," + base64.b64encode(chance.randbytes(150)).decode(),
        lambda: f"AKIA{chance.randrange(9999)} sk-{chance.randrange(99)} ghp_short glpat-x",
        lambda: "password={{ vault_db }}" if chance.random() < 0.1 else "key=value other=thing",
        lambda: f"etag-{chance.randbytes(16).hex()} id={chance.randbytes(8).hex()}",
    ]
    pieces, length = [], 0
    while length < size:
        line = chance.choice(lines)() + "\n"
        pieces.append(line)
        length += len(line)
    return "".join(pieces).encode()


REPEATED = (
    b"password=", b'password="', b"password='x \"", b"eyJaaaaaaaaaaaa.", b"$1$aaaaaaaaaaaaaaaa",
    b"-----BEGIN PRIVATE KEY-----", b"-----BEGIN PRIVATE KEY-----\n", b"://a:b@", b"://aaaa", b"%3d",
    b"secret: %3d", b"cGFzc3dvcmQ", b"dG9rZW4=", b"\x1b[1mtoken", b"password: |\n ",
    b"\\u0022token", b"Authorization: Basic ", b"--token ", b"a=b;password=(", b"SK0123456789abcdef",
    b"curl -u a:", b"token:'", b'\\\\\\"secret\\"=', b"Cookie: a=b ",
)  # fmt: skip


def repeated(fragment: bytes, size: int) -> bytes:
    """The fragment over and over."""
    return (fragment * (size // len(fragment) + 1))[:size]


def private_key(chance: random.Random, lines: int = 12) -> bytes:
    """Something of the form of a private key."""
    body = base64.b64encode(chance.randbytes(lines * 48 - 20))
    rows = [body[at : at + 64] for at in range(0, len(body), 64)]
    begin, end = (b"-----%b RSA PRIVATE KEY-----" % word for word in (b"BEGIN", b"END"))
    return b"\n".join([begin, *rows, end])


def samples(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Texts that hold a secret, each with the part that must not be seen afterwards."""
    chance = random.Random(seed)
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"

    def word(size: int) -> str:
        return "".join(chance.choice(letters) for _ in range(size - 2)) + "A7"

    for template in TEMPLATES:
        secret = word(18)
        yield template.replace("<S>", secret).encode(), secret.encode()
    basic = base64.b64encode(f"app:{word(18)}".encode())
    yield b"> Authorization: Basic " + basic, basic
    yield b'{"auths":{"r.example":{"auth":"' + basic + b'"}}}', basic
    key = private_key(chance)
    for shown in (key, key.replace(b"\n", b"\\n"), key.replace(b"\n", b"\r\n")):
        yield b"begin\n" + shown + b"\nend", key.split(b"\n")[3]
    yield b"\n".join(b"app_1  | " + line for line in key.split(b"\n")), key.split(b"\n")[5]


TEMPLATES = (
    "DB_PASSWORD=<S>", "export API_TOKEN='<S>'", 'password = "<S>"', "password: <S>",
    '{"user":"a","password":"<S>","x":1}', r'{"body":"{\"client_secret\":\"<S>\"}"}',
    "postgres://app:<S>@db.internal:5432/app", "https://host/cb?access_token=<S>&x=1",
    "curl -s -u admin:<S> https://host/x", "mysql --password=<S> -h db", "tool --token <S> run",
    "X-Vault-Token: <S>", "PRIVATE-TOKEN: <S>", "Authorization: Bearer <S>", "Cookie: sid=<S>",
    "AccountName=x;AccountKey=<S>;EndpointSuffix=y", "Server=db;User Id=a;Password=<S>;",
    "<password><S></password>", "password => <S>", "secret_key: '<S>'", "//r/:_authToken=<S>",
    'clientSecret: "<S>"', "ghp_<S>abcdefghijklmnopqr", "npm_<S>abcdefghijklmnopqr",
    "glpat-<S>abcd", "AWS_SECRET_ACCESS_KEY=<S>", "PASS=<S>", "redis://:<S>@cache:6379/0",
)  # fmt: skip
