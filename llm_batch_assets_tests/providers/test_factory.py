from __future__ import annotations

import subprocess
import sys

import pytest

SDKS = ("openai", "anthropic", "google.genai", "boto3", "httpx2", "dagster", "pandas")
CODE = """
import sys
from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.providers.factory import open_provider
env = {
    "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GOOGLE_API_KEY": "k",
    "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "k", "AWS_DEFAULT_REGION": "us-east-1",
    "LLM_BATCH_BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/r",
    "LLM_BATCH_BEDROCK_S3": "s3://bbb/p",
}
if sys.argv[1]:
    provider = open_provider(sys.argv[1], env=env, deployment="d")
    assert provider.name == sys.argv[1]
    provider.close()
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("", set()),
        ("openai", {"openai", "httpx2"}),
        ("anthropic", {"anthropic", "httpx2"}),
        ("gemini", {"google.genai", "httpx2"}),
        ("bedrock", {"boto3", "httpx2"}),
    ],
)
def test_a_provider_loads_its_own_sdk_and_no_other(name, loaded):
    done = subprocess.run(
        [sys.executable, "-c", CODE, name, *SDKS], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == loaded
