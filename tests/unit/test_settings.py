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
    port, address = "TFRING_METRICS_PORT", "TFRING_METRICS_ADDRESS"
    for name in (port, address):
        monkeypatch.delenv(name, raising=False)
    assert settings.metrics_endpoint() is None
    monkeypatch.setenv(port, "9400")
    assert settings.metrics_endpoint() == ("127.0.0.1", 9400)
    monkeypatch.setenv(address, "0.0.0.0")
    assert settings.metrics_endpoint() == ("0.0.0.0", 9400)
    for wrong in ("http", "-1", "0", "65536"):
        monkeypatch.setenv(port, wrong)
        with pytest.raises(
            ValueError, match=f"{port}='{wrong}' must be a port"
        ):
            settings.metrics_endpoint()
