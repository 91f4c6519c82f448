"""YAML files: safe, UTF-8, and no key twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from llm_batch_assets.errors import WorkloadError


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses repeated keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is written twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        WorkloadError: the file cannot be read or holds no mapping.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: is not UTF-8 text.") from None
    try:
        found = yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise WorkloadError(f"{path}:{line} is no valid YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise WorkloadError(f"{path}: is no valid YAML: {error}.") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise WorkloadError(f"{path}: write a mapping of fields, starting with name: ….")
    return found
