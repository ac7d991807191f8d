"""Secrets are masked wherever they stand, counts stay, and no text takes longer than its length allows."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.rundir import redact

SECRETS = (
    *("accessToken={}", '{{"clientSecret":"{}"}}', "AccountKey={}==;EndpointSuffix=x", "PGPASSWORD={} psql"),
    *("https://user:p@{}@host/", "redis://:{}@host:6379", "https://a/c?sv=1&sig={}", "sk_live_{}", "r8_{}", "nvapi-{}"),
    *(
        "hf_{}",
        "glrt-{}",
        "ya29.{}",
        "--hf-token {}",
        "--pw={}",
        "X-API-Key: {}",
        "SLURM_JWT={}",
        "--otp {}",
        "password = '{}'",
        "basic {}",
    ),
    *("Authorization: Token {}", "Authorization: ApiKey {}", "X: https://hooks.slack.com/services/T0/B0/{}"),
    *("GITHUB_PAT={}", "--creds {}", "DBPASS={}", "SECRETKEY={}", "TOKEN_2={}", "password1: {}", "Uid=a;Pwd={};"),
    *("token => {}", "TOKEN=$'{} x'", "123456789:AA{}{}"),
    *("az --sas {}", "--passcode {}", "--bind-pw {}", "SharedAccessSignature={}", "--store-pass {}"),
    *(f"https://host/path?a=1&{name}={{}}&b=2" for name in ("key", "sig", "sas", "pwd", "token", "X-Goog-Signature")),
    *("https://host?key={}", "https://host?code={}", "https://host#access_token={}", "curl 'https://host?key={}'"),
    *("setenv TOKEN {}", "setenv HF_TOKEN '{}'", "set -gx API_KEY {}", "setx TOKEN {}", "git config hub.token {}"),
    "aws configure set aws_secret_access_key {}",
)
GIVEN = (  # to a program that takes it as an argument without a telling name
    *("curl -u me:{} https://host", "curl -ume:{}", "/usr/bin/curl -sSLu me:{} host", "curl --proxy-user=me:{} host"),
    *("curl -d '{{}}' -u me:{} host", "curl 'https://host?a=1&b=2' --user me:{}", "curl -b session={} host"),
    *("http -a me:{} GET host", "smbclient -U me%{} //host", "redis-cli -a {}", "sshpass -p {} ssh host"),
    *("mysql -u root -p{} data", "unzip -P {} data.zip", "7z x -p{} data.7z", "docker login -u me -p {} host"),
    "wandb login --relogin {}{}",
)
READABLE = (
    *("--max-tokens 512", "num_tokens=512", "--tokens 512", "--num-keys 4", "--tokenizer gpt2", "missing key: conv1"),
    *("--key-dim=64", "--key-dim 64", "--sasl plain", "--signal 15", "--pass-through 3", "--keyframes 3", "a@b.org"),
    *("https://host?page=2&sort=key", "https://host?code=200", "https://host?keyword=cat&author=me&monkey=1"),
    *("python -u script.py", "python -u -m package.module:function", "docker run -u 1000:1000 image", "id -u root"),
    *("rsync -u a:b c:d", "srun -u a:b", "sort -k 2 -u a:b", "mkdir -p abc", "ssh -p 2222 host", "train.py -p 4"),
    *("curl -u me https://host", "curl -o a:b host", "curl -b cookies.txt host", "curl -HUser-Agent:x host"),
    "mysql -P 3306 data",
    *("setenv LR 0.1", "set -gx LR 1", "set -euo pipefail", "git config user.name me", "run wandb login first"),
)


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_masked_in_text(text: str) -> None:
    secret = "Sw0rdfishSw0rdfishSw0rdfish"
    clean, count = redact.text(text.format(secret, secret))
    assert secret not in clean
    assert count == 1


@pytest.mark.parametrize("text", GIVEN)
def test_a_secret_given_to_a_program_is_masked_in_text_and_in_arguments(text: str) -> None:
    secret = "Sw0rdfishSw0rdfishSw0rdfish"
    line = text.format(secret, secret)
    clean, count = redact.text(f"cd data && {line}; echo done")
    assert secret not in clean
    assert clean.endswith("; echo done")
    assert count == 1
    words, count = redact.arguments(shlex.split(line))
    assert secret not in " ".join(words)
    assert (len(words), count) == (len(shlex.split(line)), 1)


def test_all_passwords_of_one_command_are_masked() -> None:
    clean, count = redact.arguments(["curl", "-U", "me:one", "-u", "me:two words; three", "-ume:four", "host"])
    assert (clean, count) == (["curl", "-U", redact.MASK, "-u", redact.MASK, f"-u{redact.MASK}", "host"], 3)


@pytest.mark.parametrize("text", READABLE)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == (text, 0)
    assert redact.arguments(text.split()) == (text.split(), 0)


@pytest.mark.parametrize("operator", ["|", "&&", ";", "&", "\n"])
def test_the_options_of_the_next_command_stay(operator: str) -> None:
    text = f"curl host {operator} docker run -u me:me image"
    assert redact.text(text) == (text, 0)


@given(st.lists(st.sampled_from(["curl", "-u", "-u'", "a:b", "'", '"', "\\", "x:'y z", "setenv", "TOKEN", "&", "p=1"])))
def test_arguments_stay_as_many_whatever_they_contain(values: list[str]) -> None:
    assert len(redact.arguments(values)[0]) == len(values)


def test_a_secret_in_the_quotes_of_a_command_within_a_command_is_masked() -> None:
    """As a job's script has it of ``bash -c "train --password 'open sesame'"``."""
    script = shlex.join(["bash", "-c", "train --password 'open sesame' && PGPASSWORD='of two' psql"])
    clean, count = redact.text(script)
    assert (clean, count) == ("bash -c 'train --password [redacted] && PGPASSWORD=[redacted] psql'", 2)


@pytest.mark.parametrize(
    "part",
    [
        *("a-", "a.", "-", "a", "eyJ-", "--pw ", "key=", "://a", "token-", "-----BEGIN ", "pw='\"'\"'"),
        *("curl ", "curl -u ", "curl -u a:b ", "-u a:b ", "set -x ", "setenv ", "?a-", "&key=", "login -p "),
    ],
)
def test_a_long_word_takes_no_time(part: str) -> None:
    code = f"import sys; sys.path.insert(0, {redact.__file__.rpartition('/')[0]!r})\n"
    code += f"import redact; redact.text({part!r} * ({1 << 16} // {len(part)}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # matched at each part it took minutes
