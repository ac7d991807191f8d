"""Secrets are masked wherever they stand, counts stay, and no text takes longer than its length allows."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

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
)


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_masked_in_text(text: str) -> None:
    secret = "Sw0rdfishSw0rdfishSw0rdfish"
    clean, count = redact.text(text.format(secret, secret))
    assert secret not in clean
    assert count == 1


@pytest.mark.parametrize(
    "text", ["--max-tokens 512", "num_tokens=512", "--tokenizer gpt2", "missing key: conv1", "--key-dim=64", "a@b.org"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == (text, 0)
    assert redact.arguments(text.split()) == (text.split(), 0)


def test_a_secret_in_the_quotes_of_a_command_within_a_command_is_masked() -> None:
    """As a job's script has it of ``bash -c "train --password 'open sesame'"``."""
    script = shlex.join(["bash", "-c", "train --password 'open sesame' && PGPASSWORD='of two' psql"])
    clean, count = redact.text(script)
    assert (clean, count) == ("bash -c 'train --password [redacted] && PGPASSWORD=[redacted] psql'", 2)


@pytest.mark.parametrize(
    "part", ["a-", "a.", "-", "a", "eyJ-", "--pw ", "key=", "://a", "token-", "-----BEGIN ", "pw='\"'\"'"]
)
def test_a_long_word_takes_no_time(part: str) -> None:
    code = f"import sys; sys.path.insert(0, {redact.__file__.rpartition('/')[0]!r})\n"
    code += f"import redact; redact.text({part!r} * ({1 << 16} // {len(part)}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # matched at each part it took minutes
