"""Settings that Python reads from the environment."""

import pytest

from tfring._core import settings

NAME = "TFRING_TEST_SECONDS"


@pytest.mark.parametrize(
    ("text", "value"), [(None, 7.0), ("", 7.0), ("0", 0.0), ("1.5", 1.5)]
)
def test_seconds(monkeypatch, text, value):
    monkeypatch.delenv(NAME, raising=False)
    if text is not None:
        monkeypatch.setenv(NAME, text)
    assert settings.seconds(NAME, 7.0) == value


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", "1e300"])
def test_what_is_no_time(monkeypatch, text):
    monkeypatch.setenv(NAME, text)
    with pytest.raises(ValueError, match=f"{NAME}='.*' must be a number"):
        settings.seconds(NAME, 7.0)


def test_metrics_endpoint(monkeypatch):
    name = "TFRING_METRICS_PORT"
    monkeypatch.delenv(name, raising=False)
    assert settings.metrics_endpoint() is None
    for text, endpoint in {
        "": None,
        "9400": ("127.0.0.1", 9400),
        "0.0.0.0:9400": ("0.0.0.0", 9400),
        "localhost:65535": ("localhost", 65535),
        "[::]:9400": ("::", 9400),
    }.items():
        monkeypatch.setenv(name, text)
        assert settings.metrics_endpoint() == endpoint
    for wrong in (
        *("http", "-1", "0", "65536", " 9400", "0.0.0.0", "0.0.0.0:", ":9400"),
        *("0.0.0.0:0", "::9400", ":::9400", "[::]9400", "[::]", "[]:9400"),
    ):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ValueError, match="must be a port") as raised:
            settings.metrics_endpoint()
        assert str(raised.value).startswith(f"{name}='{wrong}' ")
