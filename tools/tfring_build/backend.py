"""The PEP 517 backend: setuptools, which asks for missing requirements.

A fixed list of build requirements could not tell an environment that has a
TensorFlow from one that has none.  See Note [Build isolation] in `find`.
"""

from collections.abc import Mapping
from typing import Any

from setuptools.build_meta import *  # noqa: F403

from tfring_build.find import missing_requirements


def get_requires_for_build_wheel(
    config_settings: Mapping[str, Any] | None = None,
) -> list[str]:
    return missing_requirements()


get_requires_for_build_editable = get_requires_for_build_wheel
