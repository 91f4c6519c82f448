"""Prompt templates: sandboxed Jinja2, compiled once to a macro over the columns they name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm_batch_assets.errors import WorkloadError

ROW = "row"
"""Name under which a template may reach columns whose names are no identifiers."""


def _finalize(value: Any) -> Any:
    return "" if value is None else value


def _tojson(value: Any) -> str:
    # Jinja's own filter escapes for HTML, which no model asked for.
    return json.dumps(value, ensure_ascii=False, default=str)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_finalize,
    )
    environment.filters["tojson"] = _tojson
    return environment


def check_template(field: str, text: str) -> frozenset[str]:
    """The names a template uses.

    Raises:
        WorkloadError: it does not parse.
    """
    environment = _environment()
    try:
        tree = environment.parse(text)
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateSyntaxError("a template takes in no other file", node.lineno)
        names = frozenset(meta.find_undeclared_variables(tree))
        environment.compile(tree)
    except TemplateSyntaxError as error:
        what = (error.message or "").rstrip(".")
        raise WorkloadError(f"{field}: line {error.lineno} is no valid template: {what}.") from None
    except TemplateError as error:
        raise WorkloadError(f"{field}: this template cannot be used: {error}.") from None
    return names - frozenset(environment.globals)


def compile_template(
    field: str, text: str, columns: Sequence[str]
) -> tuple[Callable[..., str], tuple[str, ...]]:
    """A function from column values to text, and the names it takes, in order.

    A call costs about 1 µs, ``Template.render`` twenty times that.

    Raises:
        WorkloadError: a name that is no column.
    """
    names = sorted(check_template(field, text))
    absent = [name for name in names if name != ROW and name not in columns]
    if absent:
        have = ", ".join(columns[:20]) + (", …" if len(columns) > 20 else "")
        raise WorkloadError(
            f"{field}: the template names {', '.join(map(repr, absent))}, which the table does "
            f"not have; its columns are {have}."
        )
    environment = _environment()
    if not any(mark in text for mark in ("{{", "{%", "{#")):
        return (lambda: text), ()
    source = "{% macro render_(" + ", ".join(names) + ") %}" + text + "{% endmacro %}"
    module = environment.from_string(source).module
    return module.render_, tuple(names)  # type: ignore[attr-defined]
